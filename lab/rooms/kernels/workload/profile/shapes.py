"""The shape log: distinct calls of every Linear."""

from __future__ import annotations

from typing import Any

import msgspec
from torch import nn

from lab.rooms.kernels.schema import Arg, LinearShape
from lab.rooms.kernels.workload.model import local
from lab.rooms.kernels.workload.recorder import Recorder, short


class ShapeLog:
    """Distinct calls of every Linear by its path, in `lines`, until `remove` is called."""

    def __init__(self, model: nn.Module, rank: int, recorder: Recorder) -> None:
        self.lines: dict[bytes, LinearShape] = {}
        self._rank, self._recorder = rank, recorder
        linears = [(path, one) for path, one in model.named_modules() if isinstance(one, nn.Linear)]
        self._hooks = [one.register_forward_hook(self._hook(path)) for path, one in linears]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, path: str) -> Any:
        def note(module: Any, args: Any, result: Any) -> None:
            phase = self._recorder.phase
            line = LinearShape(
                rank=self._rank,
                phase=phase,
                module_path=path,
                cls=type(module).__name__,
                in_=[shape_of(arg) for arg in args],
                out=[shape_of(result)],
                weight_shape_local=list(local(module.weight).shape),
                weight_placement=placement(module.weight),
            )
            key = msgspec.json.encode(line)
            if key in self.lines:
                self.lines[key].count += 1
            else:
                self.lines[key] = line

        return note


def shape_of(tensor: Any) -> Arg:
    """Shape, strides and dtype of this rank's part; `value` is the placement of a DTensor."""
    part = local(tensor)
    return Arg(
        kind="tensor",
        src="recorder",
        dtype=short(part.dtype),
        shape=list(part.shape),
        stride=list(part.stride()),
        value=placement(tensor) or None,
    )


def placement(tensor: Any) -> str:
    return " ".join(str(one) for one in getattr(tensor, "placements", ()))
