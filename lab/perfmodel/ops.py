"""FLOPs and least bytes of an op by its arguments; None where an argument that this needs was not recorded.

Counts follow TraceLens (AMD-AGI/TraceLens) where it has them: attention, convolutions and products in files
of their own; one FLOP per element of an elementwise op or reduction, five per element of a norm or softmax.
Bytes: every tensor once.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable

from lab.perfmodel.attention import (
    attention_work,
    cache_write_work,
    convolution_work,
    experts_work,
    grouped_work,
    loop_work,
    rotary_work,
    selective_scan_work,
)
from lab.perfmodel.calls import OpCall, Work, broadcast, count, op_of, op_table
from lab.perfmodel.dtypes import item_bytes
from lab.perfmodel.products import product_work

# FLOPs per element. A softmax: maximum, difference, exponential, sum and quotient; a norm: two for mean and
# variance, three for difference, scale and shift.
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS, _NORM_FLOPS = 5, 4, 5
# The normalised input 2, its sums with the gradient 3, the gradients of weight and bias 3, of the input 4.
_NORM_BACKWARD_FLOPS = 12
BEYOND_TRACELENS = ("Elementwise", "Foreach", "Move", "RoPE", "Fused")  # kinds without parameters
# Kernels of torch.compile carry the names of the ops that they fused.
_FUSED = re.compile(r"triton_(?:poi|red|per)_fused_(.*?)_?\d+$")
Model = Callable[[OpCall], "Work | None"]


def work_of(call: OpCall) -> Work | None:
    """Return the work of one op, None where no model covers it or an argument is unknown."""
    model = _model(call.name)
    return model(call) if model else None


def has_model(op: str) -> bool:
    """Tell whether there is a model of FLOPs for an op of this name: fills and moves have none to count."""
    return _model(op) not in (None, _fill, _move)


def _model(op: str) -> Model | None:
    return _fused if _FUSED.match(op) else _MODELS.get(op_of(op).model)


def _aten_name(op: str) -> str:
    """Return `mul` for aten::mul and aten::mul_."""
    return op.removeprefix("aten::").rstrip("_")


def _norm(call: OpCall) -> Work | None:
    arguments = op_of(call.name).arguments
    x, weight = call.tensor(0), call.tensor(arguments["weight"])
    bias = call.tensor(arguments["bias"]) if "bias" in arguments else None
    if x is None or not call.element_bytes(0):
        return None
    num_parameters = sum(count(tensor) for tensor in (weight, bias) if tensor)
    channel_axis = 1 if "training" in arguments and len(x) > 1 else -1
    params = {
        "op_shape": x,
        "dtype_in_out": (call.dtype(0), None),
        "stride_input": call.stride(0),
        "stride_output": None,
        "num_channels": count(weight) if weight else x[channel_axis],
        "has_bias": bias is not None,
        "is_affine": weight is not None,
        "is_training": call.flag(arguments["training"]) if "training" in arguments else True,
    }
    num_bytes = (2 * count(x) + num_parameters) * call.element_bytes(0)
    return Work("Normalization", params, _NORM_FLOPS * count(x), num_bytes, "vector", call.dtype(0))


def _norm_backward(call: OpCall) -> Work | None:
    """Gradient and input are read, the input's gradient is written."""
    x = call.tensor(0)
    if x is None or call.tensor(1) != x or not call.element_bytes(0):
        return None
    num_bytes = 3 * count(x) * call.element_bytes(0)
    return Work(
        "NORM_bwd", {"op_shape": x}, _NORM_BACKWARD_FLOPS * count(x), num_bytes, "vector", call.dtype(0)
    )


def _unary(call: OpCall) -> Work | None:
    x = call.shape(0)
    if x is None or not call.element_bytes(0):
        return None
    out_dtype, out_stride = None, None
    if _aten_name(call.name) == "copy":
        out_dtype, out_stride = call.dtype(1), call.stride(1)
        if not item_bytes(out_dtype):
            return None
    params = {
        "op_shape": x,
        "dtype_in_out": (call.dtype(0), out_dtype),
        "stride_input": call.stride(0),
        "stride_output": out_stride,
    }
    num_bytes = count(x) * (call.element_bytes(0) + item_bytes(out_dtype or call.dtype(0)))
    kind = "Elementwise" if "beyond" in op_of(call.name).arguments else "UnaryElementwise"
    return Work(kind, params, count(x), num_bytes, "vector", call.dtype(0))


def _binary(call: OpCall) -> Work | None:
    a, b = call.shape(0), call.shape(1)
    if a is None or b is None or not call.element_bytes(0):
        return None
    out = broadcast(a, b)
    if out is None:
        return None
    # A scalar does not widen the result; of two tensors the wider type is the result's.
    wider = max((0, 1) if a and b else (0,) if a else (1,), key=call.element_bytes)
    arguments = op_of(call.name).arguments
    num_bytes = (
        count(a) * call.element_bytes(0)
        + count(b) * call.element_bytes(1)
        + count(out) * (1 if "compares" in arguments else call.element_bytes(wider))
    )
    params = {
        "shape_in1": a,
        "shape_in2": b,
        "dtype_in1_in2_out": (call.dtype(0), call.dtype(1), None),
        "stride_input1": call.stride(0),
        "stride_input2": call.stride(1),
        "stride_output": None,
    }
    kind = "Elementwise" if "beyond" in arguments else "BinaryElementwise"
    return Work(kind, params, count(out), num_bytes, "vector", call.dtype(0))


def _ternary(call: OpCall) -> Work | None:
    shapes = [call.shape(index) for index in range(3)]
    x = shapes[0]
    if x is None or None in shapes or not call.element_bytes(0):
        return None
    num_bytes = (count(x) + sum(count(shape) for shape in shapes if shape)) * call.element_bytes(0)
    return Work("Elementwise", {}, 3 * count(x), num_bytes, "vector", call.dtype(0))


def _foreach(call: OpCall) -> Work | None:
    """Element types are not recorded, so bytes and roof are not known."""
    sizes = call.nested_shapes(0)
    if not sizes:
        return None
    flops = op_of(call.name).arguments["each"] * sum(map(count, sizes))
    return Work("Foreach", {}, flops, math.nan, "vector", "")


def _fused(call: OpCall) -> Work | None:
    """Each fused op once per element of the largest tensor; None where a fused op has no known count.

    Source: Inductor lists the fused aten ops in the kernel's name.
    """
    match = _FUSED.match(call.name)
    per_element, remaining = 0, f"{match.group(1)}_" if match else ""
    while remaining:
        fitting = [name for name in _fused_counts() if remaining.startswith(f"{name}_")]
        if not fitting:
            return None
        name = max(fitting, key=len)
        per_element += _fused_counts()[name]
        remaining = remaining[len(name) + 1 :]
    shapes = [(shape, call.element_bytes(i)) for i in range(len(call.shapes)) if (shape := call.tensor(i))]
    if not shapes:
        return None
    num_bytes = sum(count(shape) * item for shape, item in shapes)
    flops = per_element * max(count(shape) for shape, _ in shapes)
    return Work("Fused", {}, flops, num_bytes, "vector", call.dtype(0))


@functools.cache
def _fused_counts() -> dict[str, int]:
    """FLOPs per element of what may be fused, by aten's name."""
    rows = op_table().items()
    return {
        name.removeprefix("aten::"): op.arguments["flops"] for name, op in rows if "flops" in op.arguments
    }


def _fill(call: OpCall) -> Work | None:
    x = call.shape(0)
    if x is None or not call.element_bytes(0):
        return Work("Move", {}, 0, math.nan, "vector", "") if "arange" in call.name else None
    return Work("Move", {}, 0, count(x) * call.element_bytes(0), "vector", call.dtype(0))


def _move(call: OpCall) -> Work | None:
    """Bytes where the arguments tell the result's size: a list of tensors, a mask."""
    name, num_bytes = _aten_name(call.name), math.nan
    shapes = [call.shape(index) for index in range(3)]
    if name == "masked_fill" and shapes[0] and shapes[1] is not None:
        num_bytes = 2 * count(shapes[0]) * call.element_bytes(0) + count(shapes[1])
    elif name == "where" and None not in shapes:
        mask, left, right = (shape or () for shape in shapes)
        result = broadcast(mask, broadcast(left, right) or ()) or ()
        num_bytes = sum(count(shape or ()) * call.element_bytes(i) for i, shape in enumerate(shapes))
        num_bytes += count(result) * max(call.element_bytes(1), call.element_bytes(2))
    elif name in ("tril", "triu", "roll", "flip") and shapes[0]:
        num_bytes = 2 * count(shapes[0]) * call.element_bytes(0)
    dtype = call.dtype(1 if name == "where" else 0)
    return Work("Move", {}, 0, num_bytes or math.nan, "vector", dtype if item_bytes(dtype) else "")


def _reduction(call: OpCall) -> Work | None:
    x = call.tensor(0)
    if x is None or not call.element_bytes(0) or call.tensor(1):  # max of two tensors is not a reduction
        return None
    name = _aten_name(call.name)
    axes = call.numbers(op_of(call.name).arguments["axes"])
    reduced_axes = {axis % len(x) for axis in axes if -len(x) <= axis < len(x)}
    out = [size for axis, size in enumerate(x) if axis not in reduced_axes] if reduced_axes else []
    return _reduced(call, "Reduce_fwd", name, count(x), count(out), 1, 1)


def _softmax(call: OpCall) -> Work | None:
    x = call.tensor(0)
    if x is None or not call.element_bytes(0):
        return None
    backward = "backward" in call.name
    flops = _SOFTMAX_BACKWARD_FLOPS if backward else _SOFTMAX_FLOPS
    reduce_type = "log_softmax" if "log" in call.name else "softmax"
    kind = "Reduce_bwd" if backward else "Reduce_fwd"
    return _reduced(call, kind, reduce_type, count(x), count(x), flops, 2 if backward else 1)


def _reduced(
    call: OpCall, kind: str, reduce_type: str, num_in: int, num_out: int, flops: int, num_inputs: int
) -> Work:
    params = {
        "num_input_elems": num_in,
        "num_output_elems": num_out,
        "dtype_in_out": (call.dtype(0), None),
        "reduce_type": reduce_type,
    }
    num_bytes = (num_inputs * num_in + num_out) * call.element_bytes(0)
    return Work(kind, params, flops * num_in, num_bytes, "vector", call.dtype(0))


def _index_select(call: OpCall) -> Work | None:
    """Cost of an embedding: a row of the table is read and written per index; no FLOPs."""
    x, axis, indices = call.tensor(0), call.numbers(1), call.shape(2)
    if x is None or len(axis) != 1 or indices is None or not call.element_bytes(0):
        return None
    size = x[axis[0]] if -len(x) <= axis[0] < len(x) else 0
    if not size:
        return None
    elements = count(x) // size * count(indices)
    num_bytes = 2 * elements * call.element_bytes(0) + count(indices) * call.element_bytes(2)
    params = {"op_shape": x, "axis": axis[0], "num_indices": count(indices)}
    return Work("Index", params, 0, num_bytes, "vector", call.dtype(0))


def _embedding_backward(call: OpCall) -> Work | None:
    """Each row of the gradient is added to its index' row; the whole table's gradient is written."""
    gradient, indices, rows = call.tensor(0), call.shape(1), call.numbers(2)
    if gradient is None or indices is None or not rows or not call.element_bytes(0):
        return None
    params = {"num_embeddings": rows[0], "embedding_dim": gradient[-1], "num_indices": count(indices)}
    elements = count(gradient) + rows[0] * gradient[-1]
    num_bytes = elements * call.element_bytes(0) + count(indices) * call.element_bytes(1)
    return Work("Embedding", params, count(gradient), num_bytes, "vector", call.dtype(0))


_MODELS: dict[str, Model] = {
    "product": product_work,
    "grouped": grouped_work,
    "experts": experts_work,
    "attention": attention_work,
    "convolution": convolution_work,
    "scan": selective_scan_work,
    "softmax": _softmax,
    "norm": _norm,
    "norm_backward": _norm_backward,
    "loop": loop_work,
    "rotary": rotary_work,
    "cache_write": cache_write_work,
    "unary": _unary,
    "binary": _binary,
    "ternary": _ternary,
    "foreach": _foreach,
    "fill": _fill,
    "move": _move,
    "reduction": _reduction,
    "index_select": _index_select,
    "embedding_backward": _embedding_backward,
}
