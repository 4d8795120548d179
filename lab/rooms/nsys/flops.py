"""What a model must compute and move: sizes, parameters, FLOPs and minimum bytes, from its shape alone.

A multiply and an add are two operations. B = batch, T = tokens, L = layers, h = heads, d = width.
"""

from __future__ import annotations

import msgspec

VOCAB = 10_000


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only Transformer: RMSNorm, rotary positions, SwiGLU, no biases, a separate output head."""

    name: str
    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocab: int = VOCAB
    fused_qkv: bool = False

    @property
    def d_head(self) -> int:
        return self.d_model // self.heads

    @property
    def params(self) -> int:
        per_layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model
        return self.layers * per_layer + 2 * self.vocab * self.d_model + self.d_model

    @property
    def gemms_per_layer(self) -> int:
        """q, k, v (or one for all), out, three of the feed-forward, and two of the attention itself."""
        return 7 if self.fused_qkv else 9

    @property
    def forward_gemms(self) -> int:
        return self.gemms_per_layer * self.layers + 1

    @property
    def backward_gemms(self) -> int:
        """Each product needs the gradient of both its factors."""
        return 2 * self.forward_gemms


def _spec(name: str, d_model: int, d_ff: int, layers: int, heads: int) -> ModelSpec:
    return ModelSpec(name=name, d_model=d_model, d_ff=d_ff, layers=layers, heads=heads)


# The five published sizes, and one that a CPU runs in seconds.
SIZES = {
    spec.name: spec
    for spec in (
        _spec("small", 768, 3072, 12, 12),
        _spec("medium", 1024, 4096, 24, 16),
        _spec("large", 1280, 5120, 36, 20),
        _spec("xl", 1600, 6400, 48, 25),
        _spec("2.7B", 2560, 10240, 32, 32),
        _spec("tiny", 64, 256, 2, 4),
    )
}
PUBLISHED = ("small", "medium", "large", "xl", "2.7B")


def linear_flop(spec: ModelSpec, batch: int, tokens: int) -> int:
    """Forward FLOPs of all linear layers and the head."""
    weights = spec.layers * (4 * spec.d_model**2 + 3 * spec.d_model * spec.d_ff) + spec.vocab * spec.d_model
    return 2 * batch * tokens * weights


def scores_flop(spec: ModelSpec, batch: int, tokens: int) -> int:
    """FLOPs of one layer's QK^T; as many again for weights times values."""
    return 2 * batch * spec.heads * tokens**2 * spec.d_head


def softmax_flop(spec: ModelSpec, batch: int, tokens: int) -> int:
    """FLOPs of one layer's softmax: maximum, subtraction, exponential, sum, division."""
    return 5 * batch * spec.heads * tokens**2


def forward_flop(spec: ModelSpec, batch: int, tokens: int) -> int:
    """FLOPs of all matrix products of a forward pass."""
    return linear_flop(spec, batch, tokens) + 2 * spec.layers * scores_flop(spec, batch, tokens)


def phase_flop(spec: ModelSpec, batch: int, tokens: int, phase: str) -> int:
    """FLOPs of the matrix products of `forward` or `backward`; the optimizer has none."""
    return {"forward": 1, "backward": 2}.get(phase, 0) * forward_flop(spec, batch, tokens)


def width(dtype: str) -> int:
    """Bytes of one value."""
    return 2 if dtype in ("bf16", "fp16") else 4


def softmax_bytes(spec: ModelSpec, batch: int, tokens: int, width: int = 4, *, fused: bool) -> int:
    """Minimum bytes one layer's softmax moves: scores in and weights out; unfused, there are five passes.

    The passes read 5 and write 3 arrays of scores; the two row results are negligible.
    """
    arrays = 2 if fused else 8
    return arrays * width * batch * spec.heads * tokens**2


def scores_bytes(spec: ModelSpec, batch: int, tokens: int, width: int = 4) -> int:
    """Minimum bytes of one layer's QK^T: both factors in, the scores out."""
    return width * batch * spec.heads * (2 * tokens * spec.d_head + tokens**2)


def linear_bytes(spec: ModelSpec, batch: int, tokens: int, width: int = 4) -> int:
    """Minimum bytes of all linear layers and the head: weights and inputs in, results out."""
    d, ff = spec.d_model, spec.d_ff
    weights = spec.layers * (4 * d * d + 3 * d * ff) + spec.vocab * d
    rows = spec.layers * (4 * 2 * d + 3 * (d + ff)) + d + spec.vocab
    return width * (weights + batch * tokens * rows)


def least_memory_bytes(spec: ModelSpec, profile_type: str) -> int:
    """A lower bound of the memory in use: weights, gradients and AdamW's moments, no activations."""
    copies = {"forward": 1, "forward_backward": 2, "training": 4}[profile_type]
    return 4 * copies * spec.params


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's ceilings: FLOP/s of the units that multiply in a dtype, bytes/s of its memory."""

    flop_per_s: float
    bytes_per_s: float | None
    units: str


# Compute capability -> (float32 lanes, dense bf16/fp16 tensor-core FLOPs per clock), per multiprocessor.
# Source: the throughput table of the CUDA C++ programming guide, and the vendor's
# architecture papers.
_RATES = {
    "6.0": (64, 0),
    "6.1": (128, 0),
    "7.0": (64, 1024),
    "7.5": (64, 1024),
    "8.0": (64, 2048),
    "8.6": (128, 1024),
    "8.9": (128, 1024),
    "9.0": (128, 4096),
    "10.0": (128, 8192),
}
_PAIRED = ("6.0",)  # P100's float32 lanes multiply two float16 values at once; GTX 10xx's (6.1) do not


def peaks(
    capability: str, sm_count: int, clock_hz: float, bytes_per_s: float | None, dtype: str
) -> Peaks | None:
    """The ceilings for products in `dtype` (fp32, tf32, bf16, fp16); None for an unknown GPU."""
    if capability not in _RATES or not sm_count or not clock_hz:
        return None
    lanes, tensor = _RATES[capability]
    if dtype in ("tf32", "bf16") and float(capability) < 8:
        tensor = 0  # supported since Ampere
    per_clock = {"fp32": 2 * lanes, "tf32": tensor // 2, "bf16": tensor, "fp16": tensor}[dtype]
    units = "tensor cores" if per_clock and dtype != "fp32" else "plain float32 units"
    if dtype == "fp16" and capability in _PAIRED:
        per_clock, units = 4 * lanes, "plain units, two float16 values at once"
    return Peaks(
        flop_per_s=sm_count * (per_clock or 2 * lanes) * clock_hz, bytes_per_s=bytes_per_s, units=units
    )
