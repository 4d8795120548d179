"""FLOPs and least bytes of the fused ops of vLLM, SGLang and aiter, by their registered arguments."""

from __future__ import annotations

from lab.perfmodel.calls import OpCall, Work, count

_NORM_FLOPS = 5  # per element, as for aten's norms
# Op -> index of the input and of the weight, and whether a residual is added first.
_NORMS = {
    "_C::rms_norm": (1, 2, False),
    "_C::fused_add_rms_norm": (0, 2, True),
    "sgl_kernel::rmsnorm": (1, 2, False),
    "sgl_kernel::fused_add_rmsnorm": (0, 2, True),
    "aiter::rms_norm": (0, 1, False),
    "aiter::rmsnorm": (1, 2, False),
    "aiter::rmsnorm2d_fwd": (0, 1, False),
    "aiter::rmsnorm2d_fwd_with_add_ck": (1, 4, True),
    "aiter::add_rmsnorm": (1, 4, True),
    "aiter::_groupnorm_run": (0, 2, False),
}
_GATED = ("_C::silu_and_mul", "_C::gelu_and_mul", "sgl_kernel::silu_and_mul", "aiter::silu_and_mul")
# (positions, query, key, head size, cosines and sines [positions, rotated dims], style)
_ROTARY = ("_C::rotary_embedding", "sgl_kernel::rotary_embedding")
# (key, value, caches, slots): both are read and written once.
_CACHE_WRITES = (
    "_C_cache_ops::reshape_and_cache",
    "_C_cache_ops::reshape_and_cache_flash",
    "sglang::store_cache",
)
INFERENCE = frozenset([*_NORMS, *_GATED, *_ROTARY, *_CACHE_WRITES])


def inference_work(call: OpCall) -> Work | None:
    """Return the work of a fused op; None where a shape or type that it needs was not recorded."""
    if call.name in _NORMS:
        return _norm(call)
    if call.name in _GATED:
        return _gated(call)
    return _rotary(call) if call.name in _ROTARY else _cache_write(call)


def _norm(call: OpCall) -> Work | None:
    x_index, weight_index, adds = _NORMS[call.name]
    x, weight = call.tensor(x_index), call.tensor(weight_index)
    item = call.element_bytes(x_index)
    if x is None or not item:
        return None
    # With a residual: both inputs are read, the sum and the norm are written.
    num_bytes = ((4 if adds else 2) * count(x) + count(weight or (0,))) * item
    params = {"op_shape": x, "adds_residual": adds}
    flops = (_NORM_FLOPS + adds) * count(x)
    return Work("Normalization", params, flops, num_bytes, "vector", call.dtype(x_index))


def _gated(call: OpCall) -> Work | None:
    """The activation of one half of the input times the other half."""
    out, x = call.tensor(0), call.tensor(1)
    if out is None or x is None or count(x) != 2 * count(out) or not call.element_bytes(0):
        return None
    num_bytes = 3 * count(out) * call.element_bytes(0)
    params = {"op_shape": x}
    return Work("UnaryElementwise", params, 2 * count(out), num_bytes, "vector", call.dtype(0))


def _rotary(call: OpCall) -> Work | None:
    """Each pair of rotated elements takes four products and two sums."""
    query, key, head_size, cache = call.tensor(1), call.tensor(2), call.numbers(3), call.tensor(4)
    if query is None or not head_size or cache is None or not call.element_bytes(1):
        return None
    elements = count(query) + count(key or (0,))
    flops = 3 * elements * min(1.0, cache[-1] / head_size[0])
    num_bytes = 2 * elements * call.element_bytes(1)
    params = {"query": query, "key": key, "rotated_dims": cache[-1]}
    return Work("RoPE", params, flops, num_bytes, "vector", call.dtype(1))


def _cache_write(call: OpCall) -> Work | None:
    key, value = call.tensor(0), call.tensor(1)
    if key is None or value is None or not call.element_bytes(0):
        return None
    num_bytes = 2 * (count(key) + count(value)) * call.element_bytes(0)
    return Work("Move", {"key": key, "value": value}, 0, num_bytes, "vector", call.dtype(0))
