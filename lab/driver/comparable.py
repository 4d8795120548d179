"""Refuse results that a run's earlier ones could not be compared with: of another lab, image or CPU."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec

from lab.core import provenance
from lab.core.manifest import ImageRecord, Lab, StepReport, refuse_change
from lab.core.run import Run
from lab.core.snapshot import imports_lab
from lab.core.step import Outcome, Status, Step
from lab.driver.report import image_of


def same_lab(run: Run, identity: Lab) -> None:
    """Refuse to go on with a run that another lab began: its manifest names one lab for all its steps."""
    if run.manifest.lab.sha256 != identity.sha256:
        fix = "start a new run, or go back to that lab: its commit, or its version"
        refuse_change("another lab", described(run.manifest.lab), described(identity), fix=fix)


def checked(run: Run, step: Step, outcome: Outcome, report: StepReport | None = None) -> Outcome:
    """A step that ended well in another image, or with another lab, has measured something else."""
    image = image_of(run.manifest, step)
    if outcome.ok and report and image and report.image_id not in (None, image.id or report.image_id):
        reason = f"the step ran in another image: {report.image_id}; the run names {image.id}"
        return msgspec.structs.replace(outcome, status=Status.failed, reason=reason)
    expected, imported = run.manifest.lab, run.imported(step)
    if not outcome.ok or expected.used is None or not imports_lab(step) or imported == expected.sha256:
        return outcome
    reason = "the step did not report which lab it imported"
    if imported:
        reason = f"the step imported another lab: content {imported[:12]}"
    return msgspec.structs.replace(
        outcome, status=Status.failed, reason=f"{reason}; the run names {described(expected)}"
    )


def described(lab: Lab) -> str:
    """In a few words: version, commit, content."""
    parts = [lab.version, f"commit {lab.commit[:12]}" if lab.commit else "no commit"]
    parts += ["with local changes"] if lab.dirty else []
    parts += [f"content {lab.sha256[:12]}"] if lab.sha256 else []
    return ", ".join(parts)


def content_of(step: Step, image: ImageRecord | None, further: Sequence[ImageRecord]) -> str:
    """Identify the step's image by its content, or its name if that is unknown; "": no image."""
    record = next((r for r in further if r.name == step.image), None) if step.image else image
    return _identity(record) if record else ""


def same_images(run: Run, image: ImageRecord | None, further: Sequence[ImageRecord]) -> None:
    """Refuse steps in other images: the manifest names one set of images for all its numbers."""
    recorded = [record for record in (run.manifest.image, *run.manifest.images) if record]
    present = [record for record in (image, *further) if record]
    # Only a node knows the content of a job's image: it refuses another one itself.
    identify = _identity if all(record.id for record in present) else attrgetter("ref")
    texts = (", ".join(map(identify, records)) or "no image" for records in (recorded, present))
    tags = "; ".join(f"docker tag {record.id} {record.ref}" for record in recorded if record.id)
    new = "start a new run, in another --output-dir"
    fix = f"{new}, or give the old image its name back: {tags}" if tags else new
    refuse_change("another image", *texts, fix=fix)


def same_cpu(run: Run) -> None:
    """Refuse to continue on another CPU than the one that the manifest names for all steps."""
    host = {**provenance.host(), **run.manifest.host}
    recorded, present = (f"{h['cpu']}, {h['machine']}" for h in (host, provenance.host()))
    refuse_change("another CPU", recorded, present, fix="continue it there, or start a new run here")


def _identity(image: ImageRecord) -> str:
    return image.id or image.ref
