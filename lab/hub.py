"""The Hub's cache of models on this machine: where it is, and whether it has a model.

Only files are looked at, by the layout that all versions of huggingface_hub share, because the host need not
have that package: models--ORG--NAME/{refs/REVISION, snapshots/COMMIT/...}.
"""

from __future__ import annotations

import enum
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lab.errors import BadDataError, MissingError, UsageError
from lab.secrets import expanded, hub_home

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?\Z", re.ASCII)
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}\Z", re.ASCII)
DEFAULT_REVISION = "main"
MODELS = "models.json"  # in the run folder: which commit of each model the run's steps load
# Set for every step but a fetch: a model that is missing fails at once instead of after retries.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# In the order in which transformers looks for them; an index names the files of a checkpoint in parts.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # as the Hub's libraries read them


class State(str, enum.Enum):
    """How much of a model the cache has. `unclear`: a config, and no weights under a usual name."""

    complete = "complete"
    incomplete = "incomplete"
    unclear = "unclear"
    absent = "absent"


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache has of one model."""

    model: str
    state: State
    commit: str = ""
    size_bytes: int = 0
    missing: tuple[str, ...] = ()  # of an incomplete one, as far as that is known

    @property
    def is_missing(self) -> bool:
        return self.state in (State.absent, State.incomplete)


class ModelNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the Hub that steps load from its cache; a row of models.json."""

    model: str
    commit: str = ""  # which the run began with; "": it began without the model
    without: str = ""  # what happens without it; "": its steps fail


def hub_cache(env: Mapping[str, str] | None = None) -> Path:
    """Where huggingface_hub keeps models, by the same variables."""
    env = os.environ if env is None else env
    folder = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    return expanded(folder) if folder else hub_home(env) / "hub"


def offline_settings(env: Mapping[str, str]) -> dict[str, str]:
    """OFFLINE, unless the caller has set one of its variables: that value then holds for both."""
    setting = next((env[name] for name in OFFLINE if env.get(name)), None)
    return dict.fromkeys(OFFLINE, setting) if setting else OFFLINE


def is_offline(env: Mapping[str, str] | None = None) -> bool:
    """Whether the Hub's libraries are told not to use the network."""
    env = os.environ if env is None else env
    setting = next((env[name] for name in OFFLINE if env.get(name)), "")
    return setting.upper() in ("1", "ON", "YES", "TRUE")


def check_hub_id(model: str, revision: str = DEFAULT_REVISION) -> None:
    """Raises UsageError for what cannot be a model of the Hub."""
    if not HUB_ID.match(model) or ".." in model or "--" in model:
        raise UsageError(
            f"{model!r} is not a Hub id", fix="name it as ORGANISATION/MODEL, or name a folder that exists"
        )
    if not REVISION.match(revision) or ".." in revision:
        raise UsageError(f"{revision!r} is not a revision", fix="a branch, a tag or a commit")


def fetch_command(model: str, image: str | None = None) -> str:
    """What a person types to download a model to where steps read it: those in `image`, or this process."""
    image = image or os.environ.get("LAB_IMAGE")
    return f"lab fetch {shlex.quote(model)}" + (f" --image {image}" if image else "")


def find_model(model: str, cache: Path, revision: str = DEFAULT_REVISION) -> CachedModel:
    """What `cache` has of a model at this revision. Reads small files only; nothing is downloaded."""
    folder = cache / f"models--{model.replace('/', '--')}"
    commit = _commit(folder, revision)
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        is_begun = any(folder.glob("blobs/*.incomplete"))
        return CachedModel(model=model, state=State.incomplete if is_begun else State.absent)
    missing = _missing(snapshot)
    state = State.unclear if missing is None else State.incomplete if missing else State.complete
    sizes = [path.stat().st_size for path in snapshot.rglob("*") if path.is_file()]
    return CachedModel(
        model=model, state=state, commit=commit, size_bytes=sum(sizes), missing=tuple(missing or ())
    )


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


def _commit(folder: Path, revision: str) -> str:
    try:
        return (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):  # no branch or tag of this name was fetched: it may be a commit
        return revision if (folder / "snapshots" / revision).is_dir() else ""


def _missing(snapshot: Path) -> list[str] | None:
    """Which files are missing; None where no weights have a usual name."""
    if not (snapshot / "config.json").is_file():
        return ["config.json"]
    weights = next((name for name in WEIGHTS if os.path.lexists(snapshot / name)), None)
    if weights is None:
        return None
    parts = [weights]
    if weights.endswith(".index.json"):
        try:
            parts = sorted(
                map(str, set(json.loads((snapshot / weights).read_bytes())["weight_map"].values()))
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [weights]  # an index that cannot be read
    return [name for name in parts if not (snapshot / name).is_file()]  # or a link whose blob is gone
