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


def softmax_bytes(spec: ModelSpec, batch: int, tokens: int, *, fused: bool) -> int:
    """Minimum bytes one layer's softmax moves, in float32: scores in and weights out; unfused, five passes.

    The passes read 5 and write 3 arrays of scores; the two row results are negligible.
    """
    arrays = 2 if fused else 8
    return arrays * 4 * batch * spec.heads * tokens**2


def scores_bytes(spec: ModelSpec, batch: int, tokens: int, width: int = 4) -> int:
    """Minimum bytes of one layer's QK^T: both factors in, the scores out."""
    return width * batch * spec.heads * (2 * tokens * spec.d_head + tokens**2)


def least_memory_bytes(spec: ModelSpec, profile_type: str) -> int:
    """A lower bound of the memory in use: weights, gradients and AdamW's moments, no activations."""
    copies = {"forward": 1, "forward_backward": 2, "training": 4}[profile_type]
    return 4 * copies * spec.params
