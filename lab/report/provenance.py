"""Where the numbers of a page come from."""

from __future__ import annotations

from pathlib import Path

import lab
from lab.core.manifest import Kind, Manifest
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
    # The manifest's machine is the one where lab ran: for a replay not the one that was measured.
    replayed = manifest.kind is Kind.replayed
    here = " (of the machine that played it back)" if replayed else ""
    origin = {"played back from": str((manifest.container or {}).get("recording", "?"))} if replayed else {}
    groups: dict[str, dict[str, str]] = {
        "Run": {
            "id": manifest.id,
            "created": manifest.created_utc,
            "command": " ".join(manifest.command),
            "engine": manifest.engine,
            **origin,
            "image": manifest.image.ref if manifest.image else "none",
            "lab": f"{made.version} {made.commit or ''}{' with local changes' if made.dirty else ''}".strip(),
        },
        f"Host{here}": {name: str(value) for name, value in manifest.host.items()},
        "GPUs": {f"{gpu.index}": f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in manifest.gpus}
        or {"none": "CPU run"},
        "Versions": manifest.versions,
        f"Environment{here}": manifest.env,
        "Configuration": {name: str(value) for name, value in manifest.config.items()},
    }
    return {title: rows for title, rows in groups.items() if rows}
