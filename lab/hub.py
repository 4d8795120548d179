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

from lab.errors import UsageError
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
