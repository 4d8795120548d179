"""What finished steps say of themselves joins the manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.run import Run
from lab.engines.base import Engine
from lab.errors import BadDataError


def gather(run: Run, engine: Engine) -> None:
    """After the steps: what they say of themselves joins the manifest."""
    for record in run.manifest.steps:
        run.manifest.versions.update(versions_of(run.folder(record.step) / "environment.json"))
    run.manifest.gpus = engine.gpus_seen(run)
    run.save()


def versions_of(path: Path) -> dict[str, str]:
    """The `versions` table that a workload left in its folder; {} if it left none."""
    if not path.exists():
        return {}
    try:
        versions = msgspec.json.decode(path.read_bytes()).get("versions", {})
        return {name: str(value) for name, value in versions.items() if value is not None}
    except (msgspec.DecodeError, AttributeError) as error:
        raise BadDataError(f"environment.json cannot be read: {error}", where=path) from error
