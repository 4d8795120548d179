"""Bounds of integer tensors: indices must stay within what they index."""

from __future__ import annotations

import math

import msgspec

from lab.rooms.kernels.replay.args import FLOATS, SOURCES, Arg, TensorArg


def with_bounds(op: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """Integer tensors get the bounds that other arguments set; without a bound they become zeros."""
    by_name = {arg.name: arg for arg in args}
    return tuple(_bounded(op, arg, by_name) for arg in args)


def _bounded(op: str, arg: Arg, by_name: dict[str, Arg]) -> Arg:
    if arg.tensor is not None:
        tensor, src = _bounded_tensor(op, arg.name, 0, arg.tensor, arg.src, by_name)
        return msgspec.structs.replace(arg, tensor=tensor, src=src)
    if arg.tensors is not None:
        bounded = [
            _bounded_tensor(op, arg.name, i, tensor, arg.src, by_name) if tensor else (None, arg.src)
            for i, tensor in enumerate(arg.tensors)
        ]
        worst = max((src for _, src in bounded), key=_rank, default=arg.src)
        return msgspec.structs.replace(arg, tensors=tuple(tensor for tensor, _ in bounded), src=worst)
    return arg


def _bounded_tensor(
    op: str, name: str, position: int, tensor: TensorArg, src: str, by_name: dict[str, Arg]
) -> tuple[TensorArg, str]:
    if tensor.dtype in FLOATS or tensor.dtype == "bool" or tensor.number:
        return tensor, src
    high = index_limit(op.removeprefix("aten::").rstrip("_"), name, position, by_name)
    if tensor.low is not None:  # the recorder saw its values
        return msgspec.structs.replace(tensor, index=high is not None), src
    if high is None:
        return tensor, src if math.prod(tensor.shape) == 0 else max(src, "synthetic", key=_rank)
    bounded = msgspec.structs.replace(tensor, low=0, high=max(high - 1, 0), index=True)
    return bounded, max(src, "bounded", key=_rank)


def index_limit(op: str, name: str, position: int, by_name: dict[str, Arg]) -> int | None:
    """The value that integers of argument `name` must stay below; None if no rule is known."""
    sizes = _first_shape(by_name, "self", "weight", "input")
    if op in ("embedding", "_embedding_bag", "embedding_bag", "embedding_renorm") and name == "indices":
        return sizes[0] if sizes else None
    if (op, name) == ("embedding_dense_backward", "indices"):
        return _int_of(by_name, "num_weights")
    if name == "offsets":
        return 1
    if op.startswith("nll_loss") and name == "target":
        shape = _first_shape(by_name, "self")
        return shape[1 if len(shape) > 1 else 0] if shape else None
    if name == "indices" and (op.startswith(("index", "_index_put", "_unsafe_index"))):
        return sizes[position] if sizes and position < len(sizes) else None
    if name == "index" and op.startswith(("index_", "gather", "scatter", "take_along")):
        dim = _int_of(by_name, "dim")
        return _size_along(sizes, dim) if sizes and dim is not None else None
    if name == "index" and op == "take":
        return math.prod(sizes) if sizes else None
    return None


def _size_along(shape: tuple[int, ...], dim: int) -> int | None:
    return shape[dim] if shape and -len(shape) <= dim < len(shape) else None


def _first_shape(by_name: dict[str, Arg], *names: str) -> tuple[int, ...]:
    for name in names:
        arg = by_name.get(name)
        if arg and arg.tensor:
            return arg.tensor.shape
    return ()


def _int_of(by_name: dict[str, Arg], name: str) -> int | None:
    value = by_name[name].value if name in by_name else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank(src: str) -> int:
    return SOURCES.index(src)
