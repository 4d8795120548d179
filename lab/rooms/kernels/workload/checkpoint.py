"""Where a model's weights are: in a folder, in the hub's cache, or on the hub."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from lab.errors import MissingError
from lab.rooms.kernels.config import KernelsConfig, known

HUB = "https://huggingface.co"


REACH_S = 3.0


def checkpoint_source(config: KernelsConfig) -> tuple[str | None, str]:
    """(hub id or folder to load, why there is none). Without network only cached checkpoints count."""
    if config.weights == "random":
        return None, "--weights random"
    folder = Path(config.model)
    if folder.is_dir():
        return _folder_source(folder, config)
    model = known(config.model)
    hub_id = model.hub_id if model else config.model
    if not hub_id:
        return _none(config, "a built-in model has no checkpoint")
    if is_cached(hub_id) or hub_answers():
        return hub_id, ""
    return _none(config, f"{hub_id} is not cached here and the hub does not answer")


def _folder_source(folder: Path, config: KernelsConfig) -> tuple[str | None, str]:
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return str(folder), ""
    if not (folder / "config.json").is_file():
        raise MissingError(
            "this folder holds no model",
            where=folder,
            fix="it needs config.json, and weights unless --weights random",
        )
    return _none(config, "the folder holds a config.json and no weights")


def _none(config: KernelsConfig, reason: str) -> tuple[None, str]:
    if config.weights == "checkpoint":
        raise MissingError(
            f"--weights checkpoint: {reason}",
            where=config.model,
            fix="--weights random, or set HF_HOME to a cache that has it",
        )
    return None, reason


def is_cached(hub_id: str) -> bool:
    """Whether the local cache of the hub has this model's configuration."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


def hub_answers() -> bool:
    """Whether the hub can be reached, without the retries of its library."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", HUB))
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=REACH_S).close()
    except OSError:
        return False
    return True
