"""The models of the nan room: random-weight Mistrals that need no download, and any causal LLM of transformers."""

from __future__ import annotations

import importlib.util
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import GpuError, MissingError, UsageError, needs
from lab.rooms.nan.config import NanConfig

log = logging.getLogger("lab.workload")

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
    },
    "7b-shape": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
}
INITIAL_STD = 0.02


@dataclass
class Cell:
    """What is to run: one combination of dtype, attention and quantization, and what had to give way here."""

    dtype: str
    attn: str
    quant: str  # none | 4bit | 8bit
    device: torch.device
    notes: list[str] = field(default_factory=list)
    skipped: str = ""  # why the quantization that was asked for cannot run: its unquantized twin runs


@dataclass
class Loaded:
    model: Any
    tokenizer: Any
    builtin: bool


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
        """Text of the bytes among `ids`; a token that is no byte shows as <number>."""
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
        made = self._inner(list(texts), return_tensors="pt", padding=True)
        return made["input_ids"], made["attention_mask"]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=True))


def choose_cell(config: NanConfig, experiment: str) -> Cell:
    """What this experiment runs here. Raises GpuError for a GPU that is not there."""
    device = choose_device(config.device)
    cell = Cell(config.dtype, config.attn, _quant(config, experiment), device)
    if experiment == "bfloat16":
        cell.dtype = "bfloat16"
    if experiment == "eager":
        cell.attn = "eager"
    lack = _quant_lack(config, cell)
    if lack:
        cell.skipped, cell.quant = f"{cell.quant} weights cannot run here: {lack}", "none"
    if device.type == "cpu" and cell.dtype == "float16" and not _half_works_here():
        cell.dtype = "float32"
        cell.notes.append(f"torch {torch.__version__} has no half product on a CPU: float32 takes its place")
    return cell


def choose_device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise GpuError(f"torch {torch.__version__} sees no GPU", fix="--device cpu, or an image that has one")
    return torch.device("cuda", 0)


def _quant(config: NanConfig, experiment: str) -> str:
    if experiment == "8bit":
        return "8bit"
    if config.quant != "auto":
        return config.quant
    return "4bit"


def _quant_lack(config: NanConfig, cell: Cell) -> str:
    """Why quantized weights cannot run; empty if they can, or were not asked for."""
    if cell.quant == "none":
        return ""
    if cell.device.type == "cpu":
        return "bitsandbytes computes on GPUs"
    if torch.version.hip:
        return "bitsandbytes is not built for ROCm here"
    if importlib.util.find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed"
    return "random weights are made, not loaded, and are not quantized" if config.model in SHAPES else ""


def _half_works_here() -> bool:
    one = torch.ones(2, 2, dtype=torch.float16)
    try:
        _ = one @ one
    except RuntimeError:
        return False
    return True


def load(config: NanConfig, cell: Cell) -> Loaded:
    """The model in evaluation mode on its device. Raises MissingError for one that is neither here nor in the cache."""
    with needs("workload"):
        import transformers
    library: Any = transformers  # its types differ from version to version
    library.logging.set_verbosity_error()
    if config.model in SHAPES:
        return Loaded(_random_mistral(library, config, cell), ByteTokenizer(), True)
    if config.layers is not None:
        raise UsageError("--layers is for tiny and 7b-shape", fix="drop it")
    return _from_hub(library, config, cell)


def _random_mistral(library: Any, config: NanConfig, cell: Cell) -> Any:
    """A Mistral of the asked shape. Every weight is drawn by its own name's seed in float32 and rounded to the dtype,
    so that experiments in different dtypes have the same model."""
    shape = {**SHAPES[config.model], **({"num_hidden_layers": config.layers} if config.layers else {})}
    chosen: dict[str, Any] = {} if cell.attn == "auto" else {"attn_implementation": cell.attn}
    made = library.MistralConfig(
        **shape,
        max_position_embeddings=4096,
        sliding_window=None,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **chosen,
    )
    dtype = DTYPES[cell.dtype]
    before = torch.get_default_dtype()
    # Born in its own dtype on its own device: float32 on the host would need twice the memory and minutes.
    direct = cell.device.type == "cuda" and hasattr(torch.device, "__enter__")
    try:
        if direct:
            torch.set_default_dtype(dtype)
            with cell.device:
                model = library.MistralForCausalLM(made)
        else:
            model = library.MistralForCausalLM(made).to(dtype)
    finally:
        torch.set_default_dtype(before)
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
    options: dict[str, Any] = {"torch_dtype": DTYPES[cell.dtype]}
    if cell.attn != "auto":
        options["attn_implementation"] = cell.attn
    if cell.quant != "none":
        options["quantization_config"] = _bits(library, cell)
        options["device_map"] = {"": 0}  # all of it on one GPU: what is offloaded is another experiment
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(config.model)
        model = library.AutoModelForCausalLM.from_pretrained(config.model, **options)
    except (OSError, ValueError) as error:  # what is absent, and what is no model
        raise MissingError(
            f"the model cannot be loaded: {str(error).splitlines()[0]}",
            where=config.model,
            fix="name a folder, download it into the hub's cache first, or use --model tiny",
        ) from error
    if cell.quant == "none":
        model = model.to(cell.device)
    return Loaded(model.eval(), HubTokenizer(tokenizer), False)


def _bits(library: Any, cell: Cell) -> Any:
    """bitsandbytes as the published baseline had it, every choice spelled out: 4-bit fp4 without double quantization."""
    if cell.quant == "8bit":
        return library.BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=6.0)
    return library.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4",
        bnb_4bit_use_double_quant=False,
        bnb_4bit_compute_dtype=DTYPES[cell.dtype],
    )
