"""Refuse what would add results to a run that are not comparable with those it has."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core import provenance
from lab.core.manifest import ImageRecord, Manifest
from lab.core.run import Run
from lab.core.step import Step
from lab.engines.base import Engine
from lab.errors import UsageError


def content_of(step: Step, image: ImageRecord | None, further: Sequence[ImageRecord]) -> str:
    """Identify the step's image by its content, or its name if that is unknown; "": no image."""
    record = next((r for r in further if r.name == step.image), None) if step.image else image
    return _identity(record) if record else ""


def same_source(run: Run, manifest: Manifest) -> None:
    """Refuse steps of another kind or image: the manifest names one origin for all its numbers."""
    recorded, planned = _origin(run.manifest), _origin(manifest)
    if recorded != planned:
        raise UsageError(
            f"this run is {', '.join(recorded)}; what would be added is {', '.join(planned)}",
            location=run.root,
            fix="choose another --output-dir",
        )


def same_cpu(run: Run) -> None:
    """Refuse to continue on another CPU than the one that the manifest names for all steps."""
    recorded, host = run.manifest.host, provenance.host()
    if any(name in recorded and recorded[name] != host[name] for name in ("machine", "cpu")):
        raise UsageError(
            "this run began on another machine, and its results would not be comparable with new ones",
            location=f"{recorded.get('name')} ({recorded.get('cpu')}) then, "
            f"{host['name']} ({host['cpu']}) now",
            fix="continue it there, or start a new run here",
        )


def same_image(run: Run, engine: Engine) -> None:
    """Refuse to continue with another image than the run began with."""
    root, gpus = str(run.root.absolute()), run.manifest.gpus
    image, _ = engine.provenance(root, gpus)
    further = {record.name: record for record in engine.further_images(root, gpus)}
    pairs = [(run.manifest.image, image)]
    pairs += [(recorded, further.get(recorded.name)) for recorded in run.manifest.images]
    for recorded, present in pairs:
        if recorded and recorded.id and present and present.id != recorded.id:
            raise UsageError(
                f"{present.ref} is not the image that this run began with",
                location=f"{recorded.id} then, {present.id} now",
                fix="start a new run, or give the old image its name back: "
                f"docker tag {recorded.id} {present.ref}",
            )


def _origin(manifest: Manifest) -> tuple[str, ...]:
    image = _identity(manifest.image) if manifest.image else "no image"
    return manifest.kind.value, image, *(_identity(record) for record in manifest.images)


def _identity(image: ImageRecord) -> str:
    return image.id or image.ref
