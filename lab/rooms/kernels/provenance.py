"""Where a page's numbers come from: run, GPUs, weights, versions, configuration."""

from __future__ import annotations

from pathlib import Path

import lab
from lab.core.manifest import Manifest
from lab.core.provenance import lab_identity
from lab.core.run import Run
from lab.report.provenance import analysed_by
from lab.rooms.kernels.schema import Generation
from lab.rooms.kernels.trails import read_json, trails


def provenance(folder: Path, run: Run | None) -> dict[str, dict[str, str]]:
    """Groups of name and value; groups without rows are left out."""
    if run is None:
        return {
            "Recording": {"folder": str(folder), "manifest": "none: lab did not make this recording"},
            "Analysed by": {"lab": lab.__version__, "commit": lab_identity().commit or "unknown"},
        }
    manifest = run.manifest
    gpus = {f"{gpu.index}": f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in manifest.gpus}
    groups = {
        "Run": _run(manifest),
        "Analysed by": analysed_by(manifest),
        "GPUs": gpus or {"none": "CPU run"},
        "Weights": _weights(folder),
        "Versions": manifest.versions,
        "Host": {name: str(value) for name, value in manifest.host.items()},
        "Configuration": {name: str(value) for name, value in manifest.config.items()},
        "Environment": manifest.env,
    }
    return {title: rows for title, rows in groups.items() if rows}


def _run(manifest: Manifest) -> dict[str, str]:
    made_by = [manifest.lab.version, manifest.lab.commit or ""]
    made_by += ["with local changes"] if manifest.lab.dirty else []
    return {
        "id": manifest.id,
        "created": manifest.created_utc,
        "command": " ".join(manifest.command),
        "engine": manifest.engine,
        "image": manifest.image.ref if manifest.image else "none",
        "lab": " ".join(filter(None, made_by)),
    }


def _weights(folder: Path) -> dict[str, str]:
    """Of the first rank that says what it generated."""
    for trail in trails(folder):
        if trail.generation:
            made = read_json(trail.generation, Generation)
            encoded_by = made.tokens_by or "encoding not recorded"
            return {
                made.weights: made.weights_note,
                "dtype": made.dtype,
                "attention": made.attn,
                "tokens": f"{made.prompt_tokens} in the prompt ({encoded_by}), {made.new_tokens} new",
                "unprofiled generation": f"{made.unprofiled_s:.4f} s",
            }
    return {}
