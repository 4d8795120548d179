"""FLOPs and least bytes of convolutions: two operations per multiply-add, as much again for each gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.perfmodel.calls import OpCall, Shape, Work, count
from lab.perfmodel.products import product_flops

CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


@dataclass(frozen=True)
class _Settings:
    """What `aten::convolution` takes after bias: one value per spatial axis, () where not recorded."""

    stride: Shape
    padding: Shape
    dilation: Shape
    transposed: bool
    output_padding: Shape
    groups: int


def convolution_work(call: OpCall) -> Work | None:
    """Return the work of a convolution; None where shapes or settings were not recorded."""
    backward = call.name.endswith("_backward")
    x_index = 1 if backward else 0
    x, weight = call.tensor(x_index), call.tensor(x_index + 1)
    item = call.element_bytes(x_index)
    if x is None or weight is None or len(x) != len(weight) or len(x) < 3 or not item:
        return None
    settings = _settings(call, x_index + 3, len(x) - 2)
    out = call.tensor(0) if backward else _output_shape(x, weight, settings)
    if out is None or settings.groups < 1:
        return None
    # Each output element (input element, if transposed) meets one filter of its group.
    meetings = count(x if settings.transposed else out)
    flops = product_flops(1, meetings, 1, count(weight[1:]), False, call.dtype(x_index))
    num_bytes = (count(x) + count(weight) + count(out)) * item
    if backward:
        num_gradients = _gradients_asked(call.value(x_index + 9))
        flops, num_bytes = flops * num_gradients, num_bytes * num_gradients
    params: dict[str, Any] = {
        "convNd": f"conv{len(x) - 2}d",
        "input_shape": x,
        "filter_shape": weight,
        "dtype_input_weight": (call.dtype(x_index), call.dtype(x_index + 1)),
        "input_stride": call.stride(x_index),
        "weight_stride": call.stride(x_index + 1),
        "bias": list(call.numbers(3)) if backward else call.tensor(2) is not None,
        "stride": settings.stride,
        "padding": settings.padding,
        "dilation": settings.dilation,
        "transposed_conv": settings.transposed,
        "output_padding": settings.output_padding,
        "groups": settings.groups,
    }
    kind = "CONV_bwd" if backward else "CONV_fwd"
    return Work(kind, params, flops, num_bytes, "matrix", call.dtype(x_index))


def _settings(call: OpCall, index: int, spatial: int) -> _Settings:
    """Read the settings, which begin at argument `index`."""
    stride, padding, dilation = (_per_axis(call.numbers(index + offset), spatial) for offset in range(3))
    return _Settings(
        stride,
        padding,
        dilation,
        call.flag(index + 3),
        _per_axis(call.numbers(index + 4), spatial),
        (call.numbers(index + 5) or (1,))[0],
    )


def _per_axis(values: Shape, spatial: int) -> Shape:
    return values * spatial if len(values) == 1 else values


def _gradients_asked(mask: str) -> int:
    """Count the gradients of input and weight that `output_mask` asks for; both where it was not recorded."""
    wanted = [part.strip().lower() == "true" for part in mask.strip("[]").split(",")][:2]
    return sum(wanted) if wanted else 2


def _output_shape(x: Shape, weight: Shape, settings: _Settings) -> Shape | None:
    spatial = len(x) - 2
    per_axis = (settings.stride, settings.padding, settings.dilation)
    if any(len(values) != spatial for values in per_axis) or min(settings.stride) < 1:
        return None
    sizes = []
    for axis in range(spatial):
        stride, padding, dilation = (values[axis] for values in per_axis)
        reach = dilation * (weight[2 + axis] - 1)
        if settings.transposed:
            extra = settings.output_padding
            sizes.append((x[2 + axis] - 1) * stride - 2 * padding + reach + 1 + (extra[axis] if extra else 0))
        else:
            sizes.append((x[2 + axis] + 2 * padding - reach - 1) // stride + 1)
    channels = weight[1] * settings.groups if settings.transposed else weight[0]
    return (x[0], channels, *sizes) if min(sizes) > 0 else None
