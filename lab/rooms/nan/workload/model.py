"""The models of the nan room (random-weight Mistrals, any causal LLM of transformers), and greedy tokens."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import MissingError, UsageError, needs
from lab.hub import check_model, revision_to_load
from lab.rooms.nan.config import NanConfig
from lab.rooms.nan.watch.watch import Watch
from lab.rooms.nan.workload.cell import DTYPES, SHAPES, Cell

log = logging.getLogger("lab.workload")
INITIAL_STD = 0.02


@dataclass
class Loaded:
    model: Any
    tokenizer: Any


def load(config: NanConfig, cell: Cell) -> Loaded:
    """The model in evaluation mode on its device. Raises MissingError if it cannot be found."""
    with needs("workload"):
        import transformers
    library: Any = transformers  # its types differ from version to version
    library.logging.set_verbosity_error()
    if config.model in SHAPES:
        return Loaded(_random_mistral(library, config, cell), ByteTokenizer())
    if config.layers is not None:
        raise UsageError("--layers only works with tiny and 7b-shape", fix="drop --layers")
    return _from_hub(library, config, cell)


def _random_mistral(library: Any, config: NanConfig, cell: Cell) -> Any:
    """A Mistral of the asked shape.

    Every weight is drawn by its own name's seed in float32 and rounded to the dtype, so that experiments in
    different dtypes have the same model.
    """
    shape = {**SHAPES[config.model], **({"num_hidden_layers": config.layers} if config.layers else {})}
    chosen: dict[str, Any] = {} if cell.attn == "auto" else {"attn_implementation": cell.attn}
    mistral_config = library.MistralConfig(
        **shape,
        max_position_embeddings=4096,
        sliding_window=None,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **chosen,
    )
    dtype = DTYPES[cell.dtype]
    default_dtype = torch.get_default_dtype()
    # Born in its own dtype on its own device: float32 on the host would need twice the memory and minutes.
    direct = cell.device.type == "cuda" and hasattr(torch.device, "__enter__")
    try:
        if direct:
            torch.set_default_dtype(dtype)
            with cell.device:
                model = library.MistralForCausalLM(mistral_config)
        else:
            model = library.MistralForCausalLM(mistral_config).to(dtype)
    finally:
        torch.set_default_dtype(default_dtype)
    model = model.to(cell.device).eval()
    _draw(model, config.seed)
    return model


@torch.no_grad()
def _draw(model: nn.Module, seed: int) -> None:
    for name, weight in model.named_parameters():
        generator = torch.Generator(weight.device).manual_seed((zlib.crc32(name.encode()) + seed) % 2**31)
        if "norm" in name:
            weight.fill_(1.0)
        else:
            drawn = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
            weight.copy_(drawn.normal_(0.0, INITIAL_STD, generator=generator))


def _from_hub(library: Any, config: NanConfig, cell: Cell) -> Loaded:
    check_model(config.model)
    revision = revision_to_load(config.model)
    options: dict[str, Any] = {"torch_dtype": DTYPES[cell.dtype], "revision": revision}
    if cell.attn != "auto":
        options["attn_implementation"] = cell.attn
    if cell.quant != "none":
        options["quantization_config"] = _bits(library, cell)
        options["device_map"] = {"": 0}  # all of it on one GPU: what is offloaded is another experiment
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(config.model, revision=revision)
        model = library.AutoModelForCausalLM.from_pretrained(config.model, **options)
    except (OSError, ValueError) as error:  # what is absent, or not a model
        raise MissingError(
            f"the model cannot be loaded: {str(error).splitlines()[0]}",
            location=config.model,
            fix="name a folder with a model, fetch the model again (lab fetch), or use --model tiny",
        ) from error
    if cell.quant == "none":
        model = model.to(cell.device)
    return Loaded(model.eval(), HubTokenizer(tokenizer))


def _bits(library: Any, cell: Cell) -> Any:
    """bitsandbytes as the published baseline had it, spelled out: 4-bit fp4 without double quantization."""
    if cell.quant == "8bit":
        return library.BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=6.0)
    return library.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4",
        bnb_4bit_use_double_quant=False,
        bnb_4bit_compute_dtype=DTYPES[cell.dtype],
    )


class ByteTokenizer:
    """UTF-8 bytes as tokens: 0 pads, 1 begins, 2 ends, byte b is b + 3. Needs no file and no vocabulary."""

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(input_ids, attention_mask), both (texts, longest), padded on the left."""
        rows = [[1, *(byte + 3 for byte in text.encode())] for text in texts]
        longest = max(map(len, rows))
        ids = [[0] * (longest - len(row)) + row for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(ids), torch.tensor(mask)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes among `ids`; a token that is not a byte shows as <number>."""
        parts: list[bytes] = []
        for token in ids:
            if 3 <= token < 259:
                parts.append(bytes([token - 3]))
            elif token > 2:
                parts.append(f"<{token}>".encode())
        return b"".join(parts).decode("utf-8", "replace")


class HubTokenizer:
    """A tokenizer of transformers with the same two methods."""

    def __init__(self, inner: Any) -> None:
        inner.padding_side = "left"
        if inner.pad_token is None:
            inner.pad_token = inner.eos_token
        self._inner = inner

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        encoded = self._inner(list(texts), return_tensors="pt", padding=True)
        return encoded["input_ids"], encoded["attention_mask"]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=True))


@dataclass
class Generated:
    """tokens: one list per prompt; logits: (batch, vocabulary) per step, from which tokens were chosen."""

    tokens: list[list[int]]
    logits: list[Tensor]


@torch.no_grad()
def generate(model: Any, ids: Tensor, mask: Tensor, num_tokens: int, watch: Watch | None) -> Generated:
    """Exactly `num_tokens` greedy tokens per prompt; an end token does not stop it, so that counts compare.

    One prefill, then one decode step per token. Nothing of the logits is masked. All-NaN logits always choose
    token 0.
    """
    with watch if watch is not None else contextlib.nullcontext():
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        state: Any = None
        for number in range(num_tokens):
            next_ids = ids if not number else tokens[-1][:, None]
            out = forward(model, next_ids, mask, state)
            state = state_of(out)
            logits.append(out.logits[:, -1])
            tokens.append(logits[-1].argmax(dim=-1))
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        rows: list[list[int]] = torch.stack(tokens, dim=1).tolist()
    return Generated(rows, logits)


def forward(model: Any, ids: Tensor, mask: Tensor, state: Any = None) -> Any:
    """One forward with a cache; positions count real tokens only, as left padding asks."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": True}
    return model(**inputs, **{state_name(model): state})


def state_name(model: Any) -> str:
    """What a model calls its key/value cache: transformers has renamed it in 5.24."""
    return _state_name(type(model).forward)


@functools.cache
def _state_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def state_of(out: Any) -> Any:
    """The key/value cache in what a model puts out."""
    cache = getattr(out, "cache", None)
    return cache if cache is not None else out.past_key_values


@torch.no_grad()
def first_logits(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """(batch, vocabulary) after the prompt."""
    logits: Tensor = forward(model, ids, mask).logits[:, -1].float()
    return logits
