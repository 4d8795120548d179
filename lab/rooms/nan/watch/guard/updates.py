"""What an optimizer did: its state and the weights after the update, and why an update gave no number.

NaN and infinity stay in weights and in state, so they need not be read after every update (see `weights`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from lab.rooms.nan.watch.leaves import Unseen, leaves
from lab.rooms.nan.watch.plain import ORDINARY, REAL, all_plain, as_counted, is_unbuilt, quiet

Named = tuple[str, Tensor]
State = tuple[int, str]  # the id of a weight, and what of it the optimizer keeps
Label = TypeVar("Label")
SHARED = 0  # in place of a weight's id: a state of all weights
MOST_OF_ONE = 10_000  # tensors that are kept of one weight
SMALL, KIND = 1 << 18, attrgetter("dtype", "device")
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")


def state_tensors(optimizer: Any, unread: set[str] | None = None) -> Iterator[tuple[State, Tensor]]:
    """Every state of an optimizer that is a tensor of floating or complex numbers, in containers too.

    What is not looked into is added to `unread`, by its reason.
    """
    for parameter, state in list(getattr(optimizer, "state", {}).items()):
        # LBFGS keeps what belongs to all weights with the first of them.
        of = id(parameter) if isinstance(parameter, Tensor) and not isinstance(optimizer, LBFGS) else SHARED
        states = leaves(state, "" if isinstance(parameter, Tensor) else str(parameter))
        for met, (name, tensor) in enumerate(states):
            if met >= MOST_OF_ONE or isinstance(tensor, Unseen):
                reason = tensor.reason if isinstance(tensor, Unseen) else f"more than {MOST_OF_ONE} tensors"
                if unread is not None:
                    unread.add(f"{name} in an optimizer's state not looked into: {reason}")
                if met >= MOST_OF_ONE:
                    break
            else:
                yield (of, name), tensor


def state_name(state: State, names: dict[int, str]) -> str:
    """In words: the weight's name, and what is kept of it."""
    return f"{'all weights' if state[0] == SHARED else names.get(state[0], '?')}: {state[1]}"


def parts_of(named: Iterable[tuple[Label, Tensor]]) -> list[tuple[Label, Tensor]]:
    """The dense local parts of labelled tensors."""
    named = list(named)
    if named and all_plain([one for _, one in named]):
        return named
    return [(name, part) for name, tensor in named for part in quiet(as_counted, tensor)[0]]


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [one for group in getattr(optimizer, "param_groups", ()) for one in group.get("params", ())]


def negative_squares(states: Sequence[tuple[State, Tensor]]) -> list[State]:
    """States that are sums of squares and yet below zero: finite, and the next update is not."""
    real = [(state, one) for state, one in states if one.is_floating_point() and one.numel()]
    squares = [(state, one) for state, one in real if state[1] in SQUARES]
    if not squares:
        return []
    lows = quiet(_lowest, [one for _, one in squares])
    return [state for (state, _), low in zip(squares, lows, strict=True) if low < 0]


def _lowest(tensors: Sequence[Tensor]) -> list[float]:
    """The lowest number of each; one wait per device. Of small ones that are positive, 0 or what is there."""
    small = sum(map(Tensor.numel, tensors)) <= SMALL and len({*map(KIND, tensors)}) == 1
    if small and float(torch._C._nn.flatten_dense_tensors([*tensors]).amin()) >= 0:
        return [0.0] * len(tensors)
    lows = [tensor.detach().amin().double() for tensor in tensors]
    if len({low.device for low in lows}) > 1:
        return [float(low) for low in lows]
    lowest: list[float] = torch.stack(lows).tolist()
    return lowest


def why_not_finite(optimizer: Any, parameter: Any) -> str:
    """What makes an update of finite weights by finite gradients not finite, if it shows in the settings."""
    for group in getattr(optimizer, "param_groups", ()):
        if not any(one is parameter for one in group.get("params", ())):
            continue
        lr, eps = _number(group.get("lr")), _number(group.get("eps"))
        if lr is not None and not math.isfinite(lr):
            return f"the learning rate is {lr}"
        if (decay := _number(group.get("weight_decay"))) is not None and not math.isfinite(decay):
            return f"the weight decay is {decay}"
        if eps is not None and isinstance(parameter, Tensor):
            is_float = parameter.is_floating_point()
            rounded = float(torch.tensor(eps, dtype=parameter.dtype)) if is_float else eps
            if rounded == 0:
                inside = "0" if eps == 0 else f"{eps:g}, which is 0 in {str(parameter.dtype)[6:]}"
                return f"eps is {inside}: a second moment of zero divides by zero"
    return ""


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def named_weights(modules: Iterable[tuple[str, nn.Module]]) -> list[Named]:
    """Parameters and buffers of these modules by name, each tensor once."""
    weights: dict[int, Named] = {}
    for held in ("_parameters", "_buffers"):
        for prefix, module in modules:
            for name, tensor in getattr(module, held).items():
                if tensor is not None:
                    weights.setdefault(id(tensor), (f"{prefix}.{name}" if prefix else name, tensor))
    if ORDINARY.issuperset(type(tensor) for _, tensor in weights.values()) and all(
        tensor.dtype in REAL for _, tensor in weights.values()
    ):
        return [*weights.values()]
    built = [(name, tensor) for name, tensor in weights.values() if not is_unbuilt(tensor)]
    return [(name, tensor) for name, tensor in built if tensor.is_floating_point() or tensor.is_complex()]
