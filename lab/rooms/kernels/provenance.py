"""Where a page's numbers come from: run, GPUs, weights, versions, configuration."""

from __future__ import annotations

from pathlib import Path

from lab.core.run import Run
from lab.report.provenance import provenance as of_manifest
from lab.rooms.kernels.schema import Generation
from lab.rooms.kernels.trails import read_json, trails


def provenance(folder: Path, run: Run | None) -> dict[str, dict[str, str]]:
    """Groups of name and value; groups without rows are left out."""
    groups = of_manifest(folder, run.manifest if run else None)
    weights = _weights(folder) if run else {}
    return {**groups, "Weights": weights} if weights else groups


def _weights(folder: Path) -> dict[str, str]:
    """Of the first rank that says what it generated."""
    for trail in trails(folder):
        if trail.generation:
            generation = read_json(trail.generation, Generation)
            encoded_by = generation.tokens_by or "encoding not recorded"
            return {
                generation.weights: generation.weights_note,
                "dtype": generation.dtype,
                "attention": generation.attn,
                "tokens": f"{generation.prompt_tokens} in the prompt ({encoded_by}), "
                f"{generation.new_tokens} new",
                "unprofiled generation": f"{generation.unprofiled_s:.4f} s",
            }
    return {}
