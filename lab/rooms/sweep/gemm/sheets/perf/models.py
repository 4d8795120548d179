"""FLOPs and least bytes of ops by their arguments; None where an argument that this needs was not recorded.

Counts follow TraceLens where it has them: attention 2 B H N_q N_kv (d_qk + d_v), half of it under a square
causal mask, 2.5 times that backward; convolutions 2 per multiply-add, as much again for each gradient; one
FLOP per element of an elementwise op or reduction, five per element of a norm. Bytes: every tensor once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lab.recordings.views import GEMM_OPS
from lab.rooms.sweep.gemm.sheets.perf.work import Args, Shape, Work, count, item_bytes
from lab.rooms.sweep.tables import column_names

SHEETS = (
    "SDPA_fwd",
    "SDPA_bwd",
    "CONV_fwd",
    "CONV_bwd",
    "Normalization",
    "BinaryElementwise",
    "UnaryElementwise",
    "Reduce_fwd",
    "Reduce_bwd",
    "GroupedGEMM",
)
GEMM = "GEMM"
_UNARY = column_names(
    "copy pow silu neg rsqrt abs exp exp2 log log2 sqrt sin cos tanh sigmoid relu gelu erf reciprocal clamp "
    "clamp_min clamp_max hardswish leaky_relu square"
)
_BINARY = column_names(
    "add sub mul div maximum minimum silu_backward gelu_backward threshold_backward tanh_backward "
    "sigmoid_backward"
)
_REDUCE = column_names("mean sum max min amax amin prod argmax argmin norm var std logsumexp")
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS, _NORM_FLOPS = 5, 4, 5
_BACKWARD_OF_ATTENTION = 2.5
# Names of attention ops -> index of the query, of dropout, of the causal flag.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (0, 3, 4),
    "aten::_scaled_dot_product_efficient_attention": (0, 5, 6),
    "aten::_scaled_dot_product_cudnn_attention": (0, 5, 6),
    "aten::_scaled_dot_product_flash_attention_backward": (1, 10, 11),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, 9, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 13, 14),
}
# Norms -> index of weight and bias (-1: it has none).
_NORMS = {
    "aten::native_layer_norm": (2, 3),
    "aten::native_batch_norm": (1, 2),
    "aten::cudnn_batch_norm": (1, 2),
    "aten::miopen_batch_norm": (1, 2),
    "aten::native_group_norm": (1, 2),
    "aten::_fused_rms_norm": (2, -1),
}
_TRAINING = {"aten::native_batch_norm": 5, "aten::cudnn_batch_norm": 5, "aten::miopen_batch_norm": 5}
_IN_PLACE = re.compile(r"(?<=[a-z0-9])_$")


def work_of(args: Args) -> Work | None:
    """The work of one op, None where no model knows it or an argument is unknown."""
    model = _model(args.name)
    return model(args) if model else None


def has_model(name: str) -> bool:
    """Whether there is a model for an op of this name."""
    return _model(name) is not None


def _model(name: str) -> Callable[[Args], Work | None] | None:
    exact: dict[str, Callable[[Args], Work | None]] = {
        "aten::convolution": _convolution,
        "aten::convolution_backward": _convolution,
        "aten::_grouped_mm": _grouped,
        "aten::_scaled_grouped_mm": _grouped,
        "aten::_softmax": _softmax,
        "aten::_log_softmax": _softmax,
        "aten::_softmax_backward_data": _softmax,
        "aten::_log_softmax_backward_data": _softmax,
    }
    if name in exact:
        return exact[name]
    tables: tuple[tuple[Any, Callable[[Args], Work | None]], ...] = (
        (GEMM_OPS, _gemm),
        (_ATTENTION, _attention),
        (_NORMS, _norm),
    )
    for known, model in tables:
        if name in known:
            return model
    if not name.startswith("aten::"):
        return None
    plain = _plain(name)
    pairs = ((_UNARY, _unary), (_BINARY, _binary), (_REDUCE, _reduction))
    return next((model for known, model in pairs if plain in known), None)


def _plain(name: str) -> str:
    """`mul` of aten::mul and aten::mul_."""
    return _IN_PLACE.sub("", name.removeprefix("aten::"))


def _gemm(args: Args) -> Work | None:
    first = GEMM_OPS[args.name]
    a, b = args.tensor(first), args.tensor(first + 1)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or not args.size(first):
        return None
    if args.name == "aten::linear":
        b = (*b[:-2], b[-1], b[-2])
    batch, (m, k), n = count(a[:-2]), a[-2:], b[-1]
    bias = args.tensor(0) if first else args.tensor(2) if args.name == "aten::linear" else None
    flops = batch * m * n * (2 * k + (bias is not None))
    elements = batch * (m * k + k * n + m * n) + (count(bias) if bias else 0)
    params = {"B": batch, "M": m, "N": n, "K": k, "bias": bias is not None}
    return Work(GEMM, params, flops, elements * args.size(first), "matrix", args.dtype(first))


def _grouped(args: Args) -> Work | None:
    """Products of groups of rows with a matrix each: [rows, K] or [G, M, K] by [G, K, N], or rows by rows."""
    a, b = args.tensor(0), args.tensor(1)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or not args.size(0):
        return None
    offsets = args.tensor(4) if "scaled" in args.name else args.tensor(2)
    groups = a[0] if len(a) == 3 else b[0] if len(b) == 3 else count(offsets or (0,))
    m, k, n = count(a[:-1]), a[-1], b[-1]
    # Rows by rows: every group sums over its part of K, and each has an [M, N] of its own.
    out = groups * m * n if len(a) == len(b) == 2 else m * n
    num_bytes = (count(a) + count(b) + out) * args.size(0)
    params = {"G": groups, "M": m, "N": n, "K": k}
    return Work("GroupedGEMM", params, 2 * m * n * k, num_bytes, "matrix", args.dtype(0))


def _attention(args: Args) -> Work | None:
    at, dropout, causal_at = _ATTENTION[args.name]
    q, k, v = (args.tensor(index) for index in range(at, at + 3))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or not args.size(at):
        return None
    batch, heads_q, n_q, d_qk = q
    heads_kv, n_kv, d_v = k[1], k[2], v[3]
    causal = args.flag(causal_at)
    flops = 2 * batch * heads_q * _visible(n_q, n_kv, causal=causal) * (d_qk + d_v)
    out = batch * heads_q * n_q * d_v
    elements = count(q) + count(k) + count(v) + out
    backward = "backward" in args.name
    if backward:  # and the gradients of q, k and v
        flops *= _BACKWARD_OF_ATTENTION
        elements += count(q) + count(k) + count(v)
    params: dict[str, Any] = {
        "B": batch,
        "N_Q": n_q,
        "H_Q": heads_q,
        "N_KV": n_kv,
        "H_KV": heads_kv,
        "d_h_qk": d_qk,
    }
    params |= {"d_h_v": d_v}
    if backward:
        names = zip(("q_stride", "k_stride", "v_stride"), range(at, at + 3), strict=True)
        params |= {name: args.strides(index) for name, index in names}
    rate = args.concrete(dropout)
    params |= {"dropout": _number(rate), "causal": causal, "flash_impl": "flash" in args.name}
    params["dtype_A_B"] = (args.dtype(at), args.dtype(at + 1))
    sheet = "SDPA_bwd" if backward else "SDPA_fwd"
    return Work(sheet, params, flops, elements * args.size(at), "matrix", args.dtype(at))


def _visible(n_q: int, n_kv: int, *, causal: bool) -> float:
    """Pairs of query and key; a causal mask hides half of the upper left square, as TraceLens counts."""
    if not causal:
        return n_q * n_kv
    square = min(n_q, n_kv)
    return square * square / 2 + max(n_q - n_kv, 0) * n_kv


def _convolution(args: Args) -> Work | None:
    backward = args.name.endswith("_backward")
    first = 1 if backward else 0
    x, weight = args.tensor(first), args.tensor(first + 1)
    if x is None or weight is None or len(x) != len(weight) or len(x) < 3 or not args.size(first):
        return None
    spatial = len(x) - 2
    stride, padding, dilation = (_spread(args.numbers(at), spatial) for at in range(first + 3, first + 6))
    transposed, extra = args.flag(first + 6), _spread(args.numbers(first + 7), spatial)
    groups = (args.numbers(first + 8) or (1,))[0]
    out = (
        args.tensor(0)
        if backward
        else _convolved(x, weight, stride, padding, dilation, transposed, extra, groups)
    )
    if out is None or groups < 1:
        return None
    # Each output element (input element, if transposed) meets one filter of its group.
    flops = 2 * count(x if transposed else out) * count(weight[1:])
    num_bytes = (count(x) + count(weight) + count(out)) * args.size(first)
    if backward:
        asked = [part.strip().lower() == "true" for part in args.concrete(first + 9).strip("[]").split(",")][
            :2
        ]
        gradients = sum(asked) if asked else 2
        flops, num_bytes = flops * gradients, num_bytes * gradients
        bias: Any = list(args.numbers(3))
    else:
        bias = args.tensor(2) is not None
    params = {
        "convNd": f"conv{spatial}d",
        "input_shape": x,
        "filter_shape": weight,
        "dtype_input_weight": (args.dtype(first), args.dtype(first + 1)),
        "input_stride": args.strides(first),
        "weight_stride": args.strides(first + 1),
        "bias": bias,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed_conv": transposed,
        "output_padding": extra,
        "groups": groups,
    }
    sheet = "CONV_bwd" if backward else "CONV_fwd"
    return Work(sheet, params, flops, num_bytes, "matrix", args.dtype(first))


def _spread(values: tuple[int, ...], spatial: int) -> tuple[int, ...]:
    """One value per axis; () where they were not recorded."""
    return values * spatial if len(values) == 1 else values


def _convolved(
    x: Shape,
    weight: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    extra: Shape,
    groups: int,
) -> Shape | None:
    """The shape of a convolution's result."""
    spatial = len(x) - 2
    if not len(stride) == len(padding) == len(dilation) == spatial or min(stride) < 1:
        return None
    sizes = []
    for at in range(spatial):
        reach = dilation[at] * (weight[2 + at] - 1)
        if transposed:
            more = extra[at] if len(extra) == spatial else 0
            sizes.append((x[2 + at] - 1) * stride[at] - 2 * padding[at] + reach + more + 1)
        else:
            sizes.append((x[2 + at] + 2 * padding[at] - reach - 1) // stride[at] + 1)
    channels = weight[1] * groups if transposed else weight[0]
    return (x[0], channels, *sizes) if min(sizes) > 0 else None


def _norm(args: Args) -> Work | None:
    weight_at, bias_at = _NORMS[args.name]
    x, weight = args.tensor(0), args.tensor(weight_at)
    bias = args.tensor(bias_at) if bias_at >= 0 else None
    if x is None or not args.size(0):
        return None
    parameters = sum(count(one) for one in (weight, bias) if one)
    channels = count(weight) if weight else x[1] if args.name in _TRAINING and len(x) > 1 else x[-1]
    params = {
        "op_shape": x,
        "dtype_in_out": (args.dtype(0), None),
        "stride_input": args.strides(0),
        "stride_output": None,
        "num_channels": channels,
        "has_bias": bias is not None,
        "is_affine": weight is not None,
        "is_training": args.flag(_TRAINING[args.name]) if args.name in _TRAINING else True,
    }
    num_bytes = (2 * count(x) + parameters) * args.size(0)
    return Work("Normalization", params, _NORM_FLOPS * count(x), num_bytes, "vector", args.dtype(0))


def _unary(args: Args) -> Work | None:
    x = args.shape(0)
    if x is None or not args.size(0):
        return None
    if _plain(args.name) == "copy":
        out, stride_out = args.dtype(1), args.strides(1)
        if not item_bytes(out):
            return None
    else:
        out, stride_out = None, None
    params = {
        "op_shape": x,
        "dtype_in_out": (args.dtype(0), out),
        "stride_input": args.strides(0),
        "stride_output": stride_out,
    }
    num_bytes = count(x) * (args.size(0) + item_bytes(out or args.dtype(0)))
    return Work("UnaryElementwise", params, count(x), num_bytes, "vector", args.dtype(0))


def _binary(args: Args) -> Work | None:
    a, b = args.shape(0), args.shape(1)
    if a is None or b is None or not args.size(0):
        return None
    out = _broadcast(a, b)
    if out is None:
        return None
    # A scalar does not widen the result; of two tensors the wider type is the result's.
    wider = max((0, 1) if a and b else (0,) if a else (1,), key=args.size)
    num_bytes = count(a) * args.size(0) + count(b) * args.size(1) + count(out) * args.size(wider)
    params = {
        "shape_in1": a,
        "shape_in2": b,
        "dtype_in1_in2_out": (args.dtype(0), args.dtype(1), None),
        "stride_input1": args.strides(0),
        "stride_input2": args.strides(1),
        "stride_output": None,
    }
    return Work("BinaryElementwise", params, count(out), num_bytes, "vector", args.dtype(0))


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape of an elementwise result, None where the two do not fit."""
    width = max(len(a), len(b))
    one, two = ((1,) * (width - len(shape)) + shape for shape in (a, b))
    if any(x != y and 1 not in (x, y) for x, y in zip(one, two, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(one, two, strict=True))


def _reduction(args: Args) -> Work | None:
    x = args.tensor(0)
    if x is None or not args.size(0) or args.tensor(1):  # max of two tensors is no reduction
        return None
    axes = args.numbers(1 if _plain(args.name) != "norm" else 2)
    inside = {axis % len(x) for axis in axes if -len(x) <= axis < len(x)}
    kept = [size for at, size in enumerate(x) if at not in inside] if inside else []
    return _reduced(args, "Reduce_fwd", _plain(args.name), count(x), count(kept), 1, 1)


def _softmax(args: Args) -> Work | None:
    x = args.tensor(0)
    if x is None or not args.size(0):
        return None
    backward = "backward" in args.name
    flops = _SOFTMAX_BACKWARD_FLOPS if backward else _SOFTMAX_FLOPS
    kind = "log_softmax" if "log" in args.name else "softmax"
    sheet = "Reduce_bwd" if backward else "Reduce_fwd"
    return _reduced(args, sheet, kind, count(x), count(x), flops, 2 if backward else 1)


def _reduced(
    args: Args, sheet: str, kind: str, num_in: int, num_out: int, flops: int, num_inputs: int
) -> Work:
    params = {
        "num_input_elems": num_in,
        "num_output_elems": num_out,
        "dtype_in_out": (args.dtype(0), None),
        "reduce_type": kind,
    }
    num_bytes = (num_inputs * num_in + num_out) * args.size(0)
    return Work(sheet, params, flops * num_in, num_bytes, "vector", args.dtype(0))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
