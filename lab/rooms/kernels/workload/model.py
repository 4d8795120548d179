"""The model: from the hub, from a folder, or of the same architecture with random weights.

Works with torch 1.12 (transformers 4.48.3) and with the newest of both.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lab.errors import ConfigError, MissingError, UsageError
from lab.hub import fetch_command, is_loadable, is_offline, revision_to_load
from lab.rooms.kernels.config import MODELS, KernelsConfig, known
from lab.rooms.kernels.cures import first_line
from lab.rooms.kernels.preflight import version


class Loaded(NamedTuple):
    """A model in evaluation mode; `note` is the source of its configuration and weights."""

    model: Any
    weights: str  # "checkpoint" | "random"
    note: str


def load(config: KernelsConfig, device: torch.device, *, on_cpu: bool) -> Loaded:
    """The model of `config`, on `device`, or on the CPU if `on_cpu` (its shards move later).

    Raises MissingError if a checkpoint is required but cannot be found.
    """
    dtype = choose_dtype(config, device)
    source, reason = checkpoint_source(config)
    target = torch.device("cpu") if on_cpu else device
    if source is not None:
        return Loaded(from_checkpoint(source, config, dtype, target).eval(), "checkpoint", source)
    if config.eight_bit:
        raise UsageError(
            f"8-bit weights need a checkpoint: {reason}", location=config.model, fix="drop --8bit"
        )
    settings, origin = architecture(config)
    torch.manual_seed(config.seed)
    model = from_settings(settings, config, dtype, target)
    return Loaded(
        model.eval(), "random", f"random weights (seed {config.seed}), architecture of {origin}: {reason}"
    )


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
            "no model in this folder",
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


def choose_dtype(config: KernelsConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def architecture(config: KernelsConfig) -> tuple[dict[str, Any], str]:
    """(settings of the architecture, their source): from this package or a folder's config.json."""
    import json

    model = known(config.model)
    if model:
        return dict(model.config), model.hub_id or config.model
    path = Path(config.model) / "config.json"
    if path.is_file():
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise ConfigError(f"config.json cannot be read: {error}", location=path) from error
        return settings, str(path)
    raise MissingError(
        f"{config.model}: not a folder, not cached, and not an architecture that lab knows",
        fix=f"{fetch_command(config.model)}; or one of {', '.join(MODELS)}; or a folder with config.json",
    )


def from_settings(
    settings: dict[str, Any], config: KernelsConfig, dtype: torch.dtype, target: torch.device
) -> Any:
    """A model with random weights, created on `target`; by torch 1.12 on the CPU in float32, then moved."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    settings = dict(settings)
    described = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    options = {} if config.attn == "auto" else {"attn_implementation": config.attn}
    if version(torch.__version__) < (2, 1):
        return auto.from_config(described, **options).to(dtype).to(target)
    with default_dtype(dtype), target:
        model = auto.from_config(described, **options)
    return model.to(dtype).to(target)


def from_checkpoint(source: str, config: KernelsConfig, dtype: torch.dtype, target: torch.device) -> Any:
    """The published weights; 8-bit weights are loaded directly onto the GPU."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    options: dict[str, Any] = {} if config.attn == "auto" else {"attn_implementation": config.attn}
    options["revision"] = revision_to_load(source)
    options["dtype" if version(transformers.__version__) >= (5,) else "torch_dtype"] = dtype
    if config.eight_bit:
        quantized: Any = transformers.BitsAndBytesConfig
        options |= {"quantization_config": quantized(load_in_8bit=True), "device_map": {"": target}}
        return auto.from_pretrained(source, **options)
    return auto.from_pretrained(source, **options).to(target)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New floating point tensors are `dtype` inside the block."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def count_params(model: nn.Module) -> int:
    """Elements of the parameters on this rank; a shared parameter counts once."""
    return sum(local(parameter).numel() for parameter in model.parameters())


def local(tensor: Any) -> Any:
    """A DTensor's part on this rank; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def prompt_of(config: KernelsConfig) -> str:
    model = known(config.model)
    return config.prompt or (model.prompt if model else MODELS["bloom-560m"].prompt)


def encode(loaded: Loaded, config: KernelsConfig, vocab_size: int) -> tuple[list[int], str]:
    """(ids of the prompt, how they were made). Without a tokenizer each word and mark has one stable id."""
    text = prompt_of(config)
    if loaded.weights != "checkpoint":
        return word_ids(text, vocab_size), "one id per word"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(loaded.note, revision=revision_to_load(loaded.note))
    except (OSError, ValueError, ImportError) as error:  # the model still runs, on other tokens
        reason = f"one id per word, because the tokenizer cannot be loaded: {first_line(error)}"
        return word_ids(text, vocab_size), reason
    return [int(number) for number in tokenizer(text)["input_ids"]], "the checkpoint's tokenizer"


def word_ids(text: str, vocab_size: int) -> list[int]:
    """One id in [10, vocab_size) per word and mark; ids below 10 are special in most models."""
    words = re.findall(r"\w+|[^\w\s]", text) or ["."]
    return [10 + zlib.crc32(word.encode()) % (vocab_size - 10) for word in words]
