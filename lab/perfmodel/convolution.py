"""FLOPs and least bytes of convolutions: two operations per multiply-add, as much again for each gradient."""

from __future__ import annotations

from lab.perfmodel.calls import OpCall, Shape, Work, count
from lab.perfmodel.products import product_flops


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
