"""The backend's real launches, recorded instead of run: kernels, types, constants, warps. No GPU needed."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from tests.rooms.semicrf.model.triton import lint_ptx

TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64"}


@dataclass(frozen=True)
class Launch:
    """One way a kernel is launched: `signature` by argument, `constants` among them, `aliases` that share
    memory.
    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int
    aliases: frozenset[str]

    def hazards(self, module: Any) -> list[lint_ptx.Hazard]:
        """What the race lint says of the PTX that this launch is compiled to."""
        names = [name for name, kind in self.signature if kind != "constexpr"]
        ptx = lint_ptx.compile_ptx(
            getattr(module, self.kernel), dict(self.signature), dict(self.constants), self.num_warps
        )
        return lint_ptx.lint(ptx, names)


class Recorder:
    """Stands for a module of kernels.

    Whole numbers that a kernel would have written are 0: nothing is flagged.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.seen: set[Launch] = set()

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self.module, name)
        if not isinstance(kernel, JITFunction):
            return kernel
        return _Grid(lambda *args, **more: self._note(name, kernel, args, more))

    def _note(self, name: str, kernel: Any, args: tuple[Any, ...], more: dict[str, Any]) -> None:
        num_warps = more.pop("num_warps")
        given = {**dict(zip([p.name for p in kernel.params], args, strict=False)), **more}
        constants = {p.name: given[p.name] for p in kernel.params if p.is_constexpr}
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        at = [value.untyped_storage().data_ptr() for value in tensors.values()]
        signature = {
            p.name: "constexpr"
            if p.name in constants
            else TYPES[tensors[p.name].dtype]
            if p.name in tensors
            else "i32"
            for p in kernel.params
        }
        aliases = frozenset(key for key, place in zip(tensors, at, strict=True) if at.count(place) > 1)
        self.seen.add(Launch(name, tuple(signature.items()), tuple(constants.items()), num_warps, aliases))
        for value in tensors.values():
            if value.dtype == torch.int32:  # never an input: flags, exponents, durations
                value.zero_()


class _Grid:
    def __init__(self, launch: Any) -> None:
        self.launch = launch

    def __getitem__(self, grid: Any) -> Any:
        return self.launch


def entries(module: Any) -> set[str]:
    """The kernels of a module that no other function of it calls: those that are launched."""
    text = inspect.getsource(module)
    kernels = {name for name, value in vars(module).items() if isinstance(value, JITFunction)}
    return {name for name in kernels if len(re.findall(rf"\b{name}\(", text)) == 1}
