"""Where the numbers of a page come from."""

from __future__ import annotations

import os
from pathlib import Path

import lab
from lab.core.manifest import ImageRecord, Kind, Lab, Manifest
from lab.core.provenance import lab_identity, lab_with_content


def provenance(folder: Path, manifest: Manifest | None) -> dict[str, dict[str, str]]:
    """Group -> {name: value}, as the page shows them."""
    if manifest is None:
        identity = lab_identity()
        return {
            "Recording": {"folder": str(folder), "manifest": "none: lab did not make this recording"},
            "Analysed by": {"lab": lab.__version__, "commit": identity.commit or "unknown"},
        }
    by = _analysed_by(manifest)
    run_lab = manifest.lab
    # The manifest's machine is the one where lab ran: for a replay not the one that was measured.
    replayed = manifest.kind is Kind.replayed
    machine_note = " (of the machine that played it back)" if replayed else ""
    origin = {"played back from": str((manifest.container or {}).get("recording", "?"))} if replayed else {}
    groups: dict[str, dict[str, str]] = {
        "Run": {
            "id": manifest.id,
            "created": manifest.created_utc,
            "command": " ".join(manifest.command),
            "engine": " ".join(filter(None, [manifest.engine, manifest.engine_version])),
            **origin,
            "image": _image(manifest.image),
            **{f"image of steps that name it: {image.name}": _image(image) for image in manifest.images},
            "lab": _version(run_lab),
            **_content(run_lab),
        },
        "Analysed by": by,
        f"Host{machine_note}": {name: str(value) for name, value in manifest.host.items()},
        "GPUs": {f"{gpu.index}": f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in manifest.gpus}
        or {"none": "CPU run"},
        "Versions": manifest.versions,
        f"Environment{machine_note}": manifest.env,
        "Configuration": {name: str(value) for name, value in manifest.config.items()},
    }
    return {title: rows for title, rows in groups.items() if rows}


def _analysed_by(manifest: Manifest) -> dict[str, str]:
    """The lab that makes this page now, which need not be the run's: a run can be analysed again later."""
    this_lab = lab_with_content()
    if this_lab.sha256 == manifest.lab.sha256:
        name = "the run's own"
    else:
        name = _version(this_lab)
    image = manifest.analysis_image if os.environ.get("LAB_IMAGE") else None
    content = {"lab's content": this_lab.sha256[:16]} if this_lab.sha256 else {}
    return {"lab": name, **content, **({"image": _image(image)} if image else {})}


def _version(lab_used: Lab) -> str:
    words = [lab_used.version, lab_used.commit, "with local changes" if lab_used.dirty else ""]
    return " ".join(filter(None, words))


def _image(image: ImageRecord | None) -> str:
    return " ".join(filter(None, [image.ref, image.id])) if image else "none"


USED = {
    "copy": "from the run's copy",
    "mounted": "from the run's copy, mounted over the image's",
    "image": "from the image",
}


def _content(run_lab: Lab) -> dict[str, str]:
    """Which code the steps imported, where the run knows it."""
    if run_lab.sha256 is None or run_lab.used is None:
        return {}
    return {"lab's content": f"{run_lab.sha256[:16]}, imported {USED[run_lab.used]}"}
