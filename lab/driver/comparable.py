"""Refuse what would add results to a run that are not comparable with those it has."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core import provenance
from lab.core.manifest import ImageRecord, Manifest
from lab.core.run import Run, refuse_change
from lab.core.step import Step
from lab.engines.base import Engine


def content_of(step: Step, image: ImageRecord | None, further: Sequence[ImageRecord]) -> str:
    """Identify the step's image by its content, or its name if that is unknown; "": no image."""
    record = next((r for r in further if r.name == step.image), None) if step.image else image
    return _identity(record) if record else ""


def same_source(run: Run, manifest: Manifest) -> None:
    """Refuse steps in other images: the manifest names one set of images for all its numbers."""
    recorded, planned = (
        ", ".join(_identity(image) for image in (m.image, *m.images) if image) or "no image"
        for m in (run.manifest, manifest)
    )
    refuse_change("another image", recorded, planned, fix="choose another --output-dir")


def same_cpu(run: Run) -> None:
    """Refuse to continue on another CPU than the one that the manifest names for all steps."""
    host = {**provenance.host(), **run.manifest.host}
    recorded, present = (f"{h['cpu']}, {h['machine']}" for h in (host, provenance.host()))
    refuse_change("another CPU", recorded, present, fix="continue it there, or start a new run here")


def same_image(run: Run, engine: Engine) -> None:
    """Refuse to continue with another image than the run began with."""
    root, gpus = str(run.root.absolute()), run.manifest.gpus
    image, _ = engine.provenance(root, gpus)
    further = {record.name: record for record in engine.further_images(root, gpus)}
    pairs = [(run.manifest.image, image)]
    pairs += [(recorded, further.get(recorded.name)) for recorded in run.manifest.images]
    for recorded, present in pairs:
        if recorded and recorded.id and present:
            fix = f"give the old image its name back: docker tag {recorded.id} {present.ref}"
            refuse_change(
                f"another image {present.ref}", recorded.id, str(present.id), fix=f"start a new run, or {fix}"
            )


def _identity(image: ImageRecord) -> str:
    return image.id or image.ref
