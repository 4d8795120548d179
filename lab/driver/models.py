"""Whether the models that a plan needs are in the Hub's cache: said before anything runs, and recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from lab.core.files import read_json
from lab.core.manifest import refuse_change
from lab.core.plan import Plan
from lab.core.run import Run
from lab.core.words import size_text
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
