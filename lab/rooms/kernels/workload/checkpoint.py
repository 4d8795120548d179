"""Where a model's weights are: in a folder, or in the Hub's cache."""

from __future__ import annotations

from pathlib import Path

from lab.errors import MissingError
from lab.hub import is_offline
from lab.rooms.kernels.config import KernelsConfig, known
from lab.workload.models import fetch_command, is_loadable


def checkpoint_source(config: KernelsConfig) -> tuple[str | None, str]:
    """(hub id or folder to load, why there is none). Steps run offline: only cached checkpoints count."""
    if config.weights == "random":
        return None, "--weights random"
    folder = Path(config.model)
    if folder.is_dir():
        return _folder_source(folder, config)
    model = known(config.model)
    hub_id = model.hub_id if model else config.model
    if not hub_id:
        return _none(config, "a built-in model has no checkpoint")
    if is_loadable(hub_id) or not is_offline():
        return hub_id, ""
    return _none(config, f"{hub_id} is not in the Hub's cache, and steps run offline", fetch_command(hub_id))


def _folder_source(folder: Path, config: KernelsConfig) -> tuple[str | None, str]:
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return str(folder), ""
    if not (folder / "config.json").is_file():
        raise MissingError(
            "this folder holds no model",
            location=folder,
            fix="it needs config.json, and weights unless --weights random",
        )
    return _none(config, "the folder holds a config.json and no weights")


def _none(config: KernelsConfig, reason: str, fetch: str = "") -> tuple[None, str]:
    if config.weights == "checkpoint":
        raise MissingError(
            f"--weights checkpoint: {reason}",
            location=config.model,
            fix=f"{fetch}, or --weights random" if fetch else "--weights random",
        )
    return None, reason
