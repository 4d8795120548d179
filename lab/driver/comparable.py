"""Refuse what a run's earlier results could not be compared with: another lab, image, CPU or model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from lab.core import provenance
from lab.core.files import read_json
from lab.core.manifest import ImageRecord, Lab, StepReport, refuse_change
from lab.core.plan import Plan
from lab.core.run import Run
from lab.core.snapshot import imports_lab
from lab.core.step import Outcome, Status, Step
from lab.core.words import size_text
from lab.driver.report import image_of
from lab.engines.base import Engine
from lab.errors import MissingError
from lab.hub import (
    MODELS,
    CachedModel,
    ModelNeed,
    State,
    check_hub_id,
    fetch_command,
    find_model,
    hub_cache,
    is_offline,
    offline_settings,
)


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


# Whether the models that a plan needs are in the Hub's cache: said before anything runs, and recorded.


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """One model that a plan needs, what the cache has of it, and the command that downloads it."""

    need: ModelNeed
    cached: CachedModel
    fetch: str

    @property
    def state(self) -> str:
        """A phrase such as `not in this machine's Hub cache`."""
        cached, cache = self.cached, "this machine's Hub cache"
        if cached.state is State.absent:
            return f"not in {cache}"
        if cached.state is State.incomplete:
            return f"incomplete in {cache} (missing: {', '.join(cached.missing[:2]) or 'most files'}...)"
        unclear = ", but no weights under a usual name" if cached.state is State.unclear else ""
        return f"in {cache}, commit {cached.commit[:12]}, {size_text(cached.size_bytes)}{unclear}"

    @property
    def sentence(self) -> str:
        """For the plan's notes."""
        if not self.cached.is_missing:
            return f"model {self.need.model}: {self.state}"
        otherwise = self.need.without or "its steps will fail, because they run offline"
        return f"model {self.need.model}: {self.state}; {otherwise}; to download it: {self.fetch}"

    @property
    def record(self) -> ModelNeed:
        commit = "" if self.cached.is_missing else self.cached.commit
        return msgspec.structs.replace(self.need, commit=commit)


def look_up(needs: Sequence[ModelNeed], engine: Engine, image: str | None) -> list[Looked]:
    """What this machine's cache has of each model. Reads the file system only.

    Raises UsageError for a name that is neither a folder here nor a Hub id.
    """
    for need in needs:
        check_hub_id(need.model)
    image = image if engine.runs_here else None
    return [
        Looked(need=need, cached=find_model(need.model, hub_cache()), fetch=fetch_command(need.model, image))
        for need in needs
    ]


def with_models(plan: Plan, looked: Sequence[Looked], engine: Engine) -> Plan:
    """The plan that says of each model whether it is there, and records which commit steps here will load."""
    notes = (*plan.notes, *(lookup.sentence for lookup in looked))
    rows = [lookup.record for lookup in looked]
    inputs = {MODELS: msgspec.json.encode(rows).decode() + "\n"} if rows and engine.runs_here else {}
    return msgspec.structs.replace(plan, notes=notes, inputs={**plan.inputs, **inputs})


def refuse_missing(looked: Sequence[Looked], engine: Engine, image: str | None) -> None:
    """Raises MissingError for a model that steps on this machine cannot do without.

    Not where the caller has turned the offline mode of steps in this environment off.
    """
    if not engine.runs_here or (image is None and not is_offline(offline_settings(os.environ))):
        return
    for lookup in looked:
        if lookup.cached.is_missing and not lookup.need.without:
            raise MissingError(
                f"the model {lookup.need.model} is {lookup.state}, and steps run offline",
                location=hub_cache(),
                fix=lookup.fetch,
            )


def same_models(run: Run, engine: Engine) -> None:
    """Refuse to continue a run with other weights than it began with.

    Raises MissingError if they are gone, UsageError if they are of another commit.
    """
    path = run.root / MODELS
    if not path.is_file() or not run.pending():
        return
    rows = read_json(path, list[ModelNeed], "the list of models")
    image = run.manifest.image.name if run.manifest.image else None
    looked = look_up(rows, engine, image)
    refuse_missing(looked, engine, image)
    for row, lookup in zip(rows, looked, strict=True):
        if row.commit or row.without:  # else no step that needs it has run
            subject = f"another commit of the model {row.model}"
            refuse_change(subject, row.commit or "(none)", lookup.record.commit or "(none)")
