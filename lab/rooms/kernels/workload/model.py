"""The model and its prompt: from the hub, from a folder, or of the same architecture with random weights.

Works with torch 1.12 (transformers 4.46.3) and with the newest of both.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from torch import nn

from lab.errors import ConfigError, MissingError, UsageError
from lab.rooms.kernels.config import MODELS, KernelsConfig, known
from lab.rooms.kernels.preflight import version

HUB = "https://huggingface.co"
REACH_S = 3.0


class Loaded(NamedTuple):
    """A model in evaluation mode, on the CPU if it is still to be sharded; `note` says where config and weights are from."""

    model: Any
    weights: str  # "checkpoint" | "random"
    note: str


def load(config: KernelsConfig, device: torch.device, *, on_cpu: bool) -> Loaded:
    """The model `config` asks for, on `device`, or on the CPU when `on_cpu` (its shards move later).

    Raises MissingError when a checkpoint is asked for and neither cached nor to be had.
    """
    dtype = choose_dtype(config, device)
    source, reason = checkpoint_source(config)
    target = torch.device("cpu") if on_cpu else device
    if source is not None:
        return Loaded(from_checkpoint(source, config, dtype, target).eval(), "checkpoint", source)
    if config.eight_bit:
        raise UsageError(f"8-bit weights need a checkpoint: {reason}", where=config.model, fix="drop --8bit")
    settings, origin = architecture(config)
    torch.manual_seed(config.seed)
    model = from_settings(settings, config, dtype, target)
    return Loaded(
        model.eval(), "random", f"random weights (seed {config.seed}), architecture of {origin}: {reason}"
    )


def choose_dtype(config: KernelsConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    found: torch.dtype = getattr(torch, config.dtype)
    return found


def checkpoint_source(config: KernelsConfig) -> tuple[str | None, str]:
    """(hub id or folder to load, why not). Without network only what is cached counts."""
    if config.weights == "random":
        return None, "asked for with --weights random"
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
            fix="--weights random, or HF_HOME of a machine that has it",
        )
    return None, reason


def is_cached(hub_id: str) -> bool:
    """Whether the hub's cache here holds this model's config."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


def hub_answers() -> bool:
    """Whether the hub can be reached, without waiting through a library's retries."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    place = urlsplit(os.environ.get("HF_ENDPOINT", HUB))
    port = place.port or (80 if place.scheme == "http" else 443)
    try:
        socket.create_connection((place.hostname or "", port), timeout=REACH_S).close()
    except OSError:
        return False
    return True


def architecture(config: KernelsConfig) -> tuple[dict[str, Any], str]:
    """Settings of the architecture, from this package or a folder's config.json, and where they are from."""
    import json

    model = known(config.model)
    if model:
        return dict(model.config), model.hub_id or config.model
    path = Path(config.model) / "config.json"
    if path.is_file():
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise ConfigError(f"config.json cannot be read: {error}", where=path) from error
        return settings, str(path)
    raise MissingError(
        f"{config.model}: neither a folder, nor cached, nor an architecture that lab knows",
        fix=f"one of {', '.join(MODELS)}, or a folder with config.json",
    )


def from_settings(
    settings: dict[str, Any], config: KernelsConfig, dtype: torch.dtype, target: torch.device
) -> Any:
    """A model with random weights. Newer torch makes it where it will live, torch 1.12 on the CPU in float32."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    settings = dict(settings)
    described = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    more = {} if config.attn == "auto" else {"attn_implementation": config.attn}
    if version(torch.__version__) < (2, 1):
        return auto.from_config(described, **more).to(dtype).to(target)
    with default_dtype(dtype), target:
        model = auto.from_config(described, **more)
    return model.to(dtype).to(target)


def from_checkpoint(source: str, config: KernelsConfig, dtype: torch.dtype, target: torch.device) -> Any:
    """The published weights; in 8 bits they go straight to the GPU."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    more: dict[str, Any] = {} if config.attn == "auto" else {"attn_implementation": config.attn}
    more["dtype" if version(transformers.__version__) >= (5,) else "torch_dtype"] = dtype
    if config.eight_bit:
        quantized: Any = transformers.BitsAndBytesConfig
        more |= {"quantization_config": quantized(load_in_8bit=True), "device_map": {"": target}}
        return auto.from_pretrained(source, **more)
    return auto.from_pretrained(source, **more).to(target)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new floating point tensors `dtype` for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def prompt_of(config: KernelsConfig) -> str:
    model = known(config.model)
    return config.prompt or (model.prompt if model else MODELS["bloom-560m"].prompt)


def encode(loaded: Loaded, config: KernelsConfig, vocab_size: int) -> tuple[list[int], str]:
    """(ids of the prompt, how they were made): by the checkpoint's tokenizer, else a stable id for each word and mark."""
    text = prompt_of(config)
    if loaded.weights != "checkpoint":
        return word_ids(text, vocab_size), "an id for each word"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(loaded.note)
    except (OSError, ValueError, ImportError) as error:  # the model runs all the same, on other tokens
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return word_ids(text, vocab_size), f"an id for each word, since the tokenizer cannot be had: {first}"
    return [int(number) for number in tokenizer(text)["input_ids"]], "the checkpoint's tokenizer"


def word_ids(text: str, vocab_size: int) -> list[int]:
    """An id in [10, vocab_size) for each word and mark, the same everywhere; the first ten are special in most models."""
    words = re.findall(r"\w+|[^\w\s]", text) or ["."]
    return [10 + zlib.crc32(word.encode()) % (vocab_size - 10) for word in words]


def count_params(model: nn.Module) -> int:
    """Elements of the parameters that lie on this rank; a shared one counts once."""
    return sum(local(parameter).numel() for parameter in model.parameters())


def local(tensor: Any) -> Any:
    """A DTensor's part on this rank; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
