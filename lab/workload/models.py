"""Find a model in the Hub's cache at the run's commit, or explain what to type on the host to fetch it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lab.core.plan import ModelNeed
from lab.errors import BadDataError, MissingError
from lab.hub import (
    DEFAULT_REVISION,
    MODELS,
    State,
    find_model,
    hub_cache,
    is_offline,
)
from lab.hub import fetch_command as fetch_command


def run_revision(model: str) -> str:
    """Return the model's commit at the run's start: "" if it was absent, the default if none is recorded.

    A step works in its run's folder. A fetch in the meantime moves the default branch to another commit.
    """
    path = Path(MODELS)
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[ModelNeed])
    except FileNotFoundError:
        return DEFAULT_REVISION
    except msgspec.DecodeError as error:
        raise BadDataError(f"not a list of models: {error}", location=path.absolute()) from error
    return next((row.commit for row in rows if row.model == model), DEFAULT_REVISION)


def revision_to_load(model: str) -> str:
    """The commit for a step that may download the model."""
    return run_revision(model) or DEFAULT_REVISION


def is_loadable(model: str) -> bool:
    """Whether the Hub's cache has the run's commit with a config, and all weights that it names."""
    revision = run_revision(model)
    if not revision:  # all steps of a run must see the same models
        return False
    return not find_model(model, hub_cache(), revision).is_missing


def check_model(model: str) -> None:
    """Raises MissingError at once, before the Hub's library tries and retries, where a model is not here."""
    if Path(model).is_dir() or not is_offline() or is_loadable(model):
        return
    if Path(model).is_absolute():
        raise MissingError(
            "this folder of a model does not exist where the step runs",
            location=model,
            fix="containers see only the run folder and the caches: run without --image, or name a Hub id",
        )
    offline_reason = "this container is offline" if os.environ.get("LAB_IMAGE") else "steps run offline"
    cached = find_model(model, hub_cache(), revision_to_load(model))
    state = "only partly" if cached.state is State.incomplete else "not"
    raise MissingError(
        f"the model {model} is {state} in the Hub's cache, and {offline_reason}",
        location=hub_cache(),
        fix=f"on the host, which has the network: {fetch_command(model)}",
    )
