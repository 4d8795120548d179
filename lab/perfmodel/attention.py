"""FLOPs and least bytes of the ops of layers: attention, convolutions, fused inference ops, experts, scans.

Attention: 2 B H N_q N_kv (d_qk + d_v), and two and a half times that backward. Convolutions: two operations
per multiply-add, as much again for each gradient. Arguments of inference ops are those that vLLM, SGLang,
aiter and mamba_ssm register.
"""

from __future__ import annotations

from typing import Any

from lab.perfmodel.calls import OpCall, Shape, Work, count, op_of
from lab.perfmodel.products import product_flops

_BACKWARD_FACTOR = 2.5  # five products where forward has two (FlashAttention-2, section 4.1)


def attention_work(call: OpCall) -> Work | None:
    """Return the work of one attention op; None where q, k or v was not recorded with four axes."""
    arguments = op_of(call.name).arguments
    query = arguments["query"]
    indices = range(query, query + 3)
    q, k, v = (call.tensor(index) for index in indices)
    item = call.element_bytes(query)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or not item:
        return None
    heads, tokens = (1, 2) if "heads_first" in arguments else (2, 1)
    batch, heads_q, n_q, d_qk = q[0], q[heads], q[tokens], q[3]
    n_kv, d_v = k[tokens], v[3]
    causal = call.flag(arguments["causal"])
    flops = 2 * batch * heads_q * _visible_pairs(n_q, n_kv, causal=causal) * (d_qk + d_v)
    elements = count(q) + count(k) + count(v) + batch * heads_q * n_q * d_v
    if backward := "backward" in call.name:  # and the gradients of q, k and v
        flops *= _BACKWARD_FACTOR
        elements += count(q) + count(k) + count(v)
    params: dict[str, Any] = {
        "B": batch,
        "N_Q": n_q,
        "H_Q": heads_q,
        "N_KV": n_kv,
        "H_KV": k[heads],
        "d_h_qk": d_qk,
        "d_h_v": d_v,
    }
    if backward:
        names = ("q_stride", "k_stride", "v_stride")
        params |= {name: call.stride(index) for name, index in zip(names, indices, strict=True)}
    params |= {
        "dropout": call.number(arguments["dropout"]),
        "causal": causal,
        "flash_impl": "flash" in call.name,
        "dtype_A_B": (call.dtype(query), call.dtype(query + 1)),
    }
    kind = "SDPA_bwd" if backward else "SDPA_fwd"
    return Work(kind, params, flops, elements * item, "matrix", call.dtype(query))


def _visible_pairs(n_q: int, n_kv: int, *, causal: bool) -> float:
    """Count pairs of query and key; a causal mask hides half of the upper left square, as in TraceLens."""
    if not causal:
        return n_q * n_kv
    square = min(n_q, n_kv)
    return square * square / 2 + max(n_q - n_kv, 0) * n_kv


def convolution_work(call: OpCall) -> Work | None:
    """Return the work of a convolution; None where shapes or settings were not recorded."""
    backward = call.name.endswith("_backward")
    x_index = 1 if backward else 0
    x, weight = call.tensor(x_index), call.tensor(x_index + 1)
    item = call.element_bytes(x_index)
    if x is None or weight is None or len(x) != len(weight) or len(x) < 3 or not item:
        return None
    # After bias: one value per spatial axis, () where not recorded.
    stride, padding, dilation = (_per_axis(call.numbers(x_index + at), len(x) - 2) for at in (3, 4, 5))
    transposed, groups = call.flag(x_index + 6), (call.numbers(x_index + 8) or (1,))[0]
    extra = _per_axis(call.numbers(x_index + 7), len(x) - 2)
    if groups < 1:
        return None
    if backward:
        out = call.tensor(0)
    else:
        sizes = _sizes(x[2:], weight[2:], stride, padding, dilation, extra if transposed else None)
        out = (x[0], weight[1] * groups if transposed else weight[0], *sizes) if sizes else None
    if out is None:
        return None
    # Each output element (input element, if transposed) meets one filter of its group.
    meetings = count(x if transposed else out)
    flops = product_flops(1, meetings, 1, count(weight[1:]), False, call.dtype(x_index))
    num_bytes = (count(x) + count(weight) + count(out)) * item
    if backward:
        num_gradients = _gradients_asked(call.value(x_index + 9))
        flops, num_bytes = flops * num_gradients, num_bytes * num_gradients
    params = {
        "convNd": f"conv{len(x) - 2}d",
        "input_shape": x,
        "filter_shape": weight,
        "dtype_input_weight": (call.dtype(x_index), call.dtype(x_index + 1)),
        "input_stride": call.stride(x_index),
        "weight_stride": call.stride(x_index + 1),
        "bias": list(call.numbers(3)) if backward else call.tensor(2) is not None,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed_conv": transposed,
        "output_padding": extra,
        "groups": groups,
    }
    kind = "CONV_bwd" if backward else "CONV_fwd"
    return Work(kind, params, flops, num_bytes, "matrix", call.dtype(x_index))


def _per_axis(values: Shape, spatial: int) -> Shape:
    return values * spatial if len(values) == 1 else values


def _gradients_asked(mask: str) -> int:
    """Count the gradients of input and weight that `output_mask` asks for; both where it was not recorded."""
    wanted = [part.strip().lower() == "true" for part in mask.strip("[]").split(",")][:2]
    return sum(wanted) if mask else 2


def _sizes(
    x: Shape, weight: Shape, stride: Shape, padding: Shape, dilation: Shape, extra: Shape | None
) -> list[int]:
    """Return the result's size per spatial axis; [] where they are not known. extra: of a transposed one."""
    if not len(stride) == len(padding) == len(dilation) == len(x) or min(stride) < 1:
        return []
    sizes = []
    for axis, size in enumerate(x):
        reach = dilation[axis] * (weight[axis] - 1)
        if extra is None:
            sizes.append((size + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
        else:
            end = extra[axis] if extra else 0
            sizes.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + 1 + end)
    return sizes if min(sizes) > 0 else []


def loop_work(call: OpCall) -> Work | None:
    """Return the work of a fused loop over one input; None where its shape or type was not recorded."""
    op = op_of(call.name)
    x_index, flops, halves = (op.arguments[name] for name in ("x", "each", "halves"))
    x = call.tensor(x_index)
    weight = call.tensor(op.arguments["weight"]) if "weight" in op.arguments else None
    if x is None or not call.element_bytes(x_index):
        return None
    num_bytes = (halves * count(x) // 2 + count(weight or (0,))) * call.element_bytes(x_index)
    kind = "Normalization" if op.kind == "norm" else "UnaryElementwise"
    return Work(kind, {"op_shape": x}, flops * count(x), num_bytes, "vector", call.dtype(x_index))


def rotary_work(call: OpCall) -> Work | None:
    """Each pair of rotated elements takes four products and two sums."""
    query, key, head_size, cache = call.tensor(1), call.tensor(2), call.numbers(3), call.tensor(4)
    if query is None or not head_size or cache is None or not call.element_bytes(1):
        return None
    elements = count(query) + count(key or (0,))
    flops = 3 * elements * min(1.0, cache[-1] / head_size[0])
    num_bytes = 2 * elements * call.element_bytes(1)
    return Work("RoPE", {}, flops, num_bytes, "vector", call.dtype(1))


def cache_write_work(call: OpCall) -> Work | None:
    key, value = call.tensor(0), call.tensor(1)
    if key is None or value is None or not call.element_bytes(0):
        return None
    num_bytes = 2 * (count(key) + count(value)) * call.element_bytes(0)
    return Work("Move", {}, 0, num_bytes, "vector", call.dtype(0))


# Per state and token: exp(delta A) 2, delta B u 2, the recurrence 2 and the sum over states 2, 1 more.
_SCAN_FLOPS = 9


def grouped_work(call: OpCall) -> Work | None:
    """Return the work of a product per group: [rows, K] or [G, M, K] by [G, K, N], or rows by rows."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or not call.element_bytes(0):
        return None
    offsets = call.tensor(op_of(call.name).arguments["offsets"])
    groups = a[0] if len(a) == 3 else b[0] if len(b) == 3 else count(offsets or (0,))
    m, k, n = count(a[:-1]), a[-1], b[-1]
    # Rows by rows: every group sums over its part of K, and each has an [M, N] of its own.
    out = groups * m * n if len(a) == len(b) == 2 else m * n
    num_bytes = (count(a) + count(b) + out) * call.element_bytes(0)
    params = {"G": groups, "M": m, "N": n, "K": k}
    return Work("GroupedGEMM", params, 2 * m * n * k, num_bytes, "matrix", call.dtype(0))


def experts_work(call: OpCall) -> Work | None:
    """Return the work of all experts' two products: each token goes through k of them.

    Bytes: the weights of as many experts as there can be pairs of token and expert, the tokens in and out.
    """
    hidden, w1, w2, ids = (call.tensor(index) for index in (0, 1, 2, 4))
    if hidden is None or w1 is None or w2 is None or ids is None or len(w1) != 3 or len(w2) != 3:
        return None
    pairs = count(ids)
    flops = 2 * pairs * (count(w1[1:]) + count(w2[1:]))
    used = min(w1[0], pairs) / w1[0] if w1[0] else 0.0
    num_bytes = used * (count(w1) + count(w2)) * call.element_bytes(1)
    num_bytes += 2 * count(hidden) * call.element_bytes(0)
    params = {"T": hidden[0], "H": hidden[-1], "E": w1[0], "I": w2[-1], "top_k": ids[-1]}
    return Work("MoE", params, flops, num_bytes, "matrix", call.dtype(1)) if call.element_bytes(1) else None


def selective_scan_work(call: OpCall) -> Work | None:
    """Return the work of Mamba's scan over L tokens with N states per channel, as state-spaces/mamba does."""
    u, a = call.tensor(0), call.tensor(2)
    if u is None or a is None or len(a) != 2 or not call.element_bytes(0):
        return None
    flops = count(u) * (_SCAN_FLOPS * a[1] + sum(call.tensor(index) is not None for index in (5, 6)))
    elements = 3 * count(u) + sum(count(call.tensor(index) or (0,)) for index in (3, 4, 6))
    params = {"shape": u, "states": a[1]}
    return Work("Scan", params, flops, elements * call.element_bytes(0), "vector", call.dtype(0))
