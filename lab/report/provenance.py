"""Where the numbers of a page come from."""

from __future__ import annotations

from pathlib import Path

import lab
from lab.core.manifest import Manifest
from lab.core.provenance import lab_identity


def provenance(folder: Path, manifest: Manifest | None) -> dict[str, dict[str, str]]:
    """Group -> {name: value}, as the page shows them."""
    if manifest is None:
        identity = lab_identity()
        return {
            "Recording": {"folder": str(folder), "manifest": "none: this recording was not made by lab"},
            "Analysed by": {"lab": lab.__version__, "commit": identity.commit or "unknown"},
        }
    made = manifest.lab
    groups: dict[str, dict[str, str]] = {
        "Run": {
            "id": manifest.id,
            "created": manifest.created_utc,
            "command": " ".join(manifest.command),
            "engine": manifest.engine,
            "image": manifest.image.ref if manifest.image else "none",
            "lab": f"{made.version} {made.commit or ''}{' with local changes' if made.dirty else ''}".strip(),
        },
        "Host": {name: str(value) for name, value in manifest.host.items()},
        "GPUs": {f"{gpu.index}": f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in manifest.gpus}
        or {"none": "CPU run"},
        "Versions": manifest.versions,
        "Environment": manifest.env,
        "Configuration": {name: str(value) for name, value in manifest.config.items()},
    }
    return {title: rows for title, rows in groups.items() if rows}
