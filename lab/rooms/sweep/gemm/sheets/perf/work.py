"""The arguments of one op as a model reads them, and what a model says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.recordings import views
from lab.rooms.sweep.gemm.sheets.arguments import load_argument, tuples
from lab.rooms.sweep.gemm.sheets.gemms import COMPUTE

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """The work of one op: FLOPs, least bytes (each tensor once), the sheet that it stands on, its parameters.

    unit: matrix or vector; dtype as the profiler writes it.
    """

    sheet: str
    params: dict[str, Any]
    flops: float
    num_bytes: float
    unit: str
    dtype: str

    @property
    def spec(self) -> str:
        return f"{self.unit}_{COMPUTE.get(self.dtype, self.dtype)}"


class Args:
    """The recorded arguments of one op. What is not there, or no shape, is None."""

    def __init__(self, name: str, dims: str, types: str, strides: str, concrete: str) -> None:
        self.name = name
        self._dims, self._types, self._strides, self._concrete = (
            _listed(text) for text in (dims, types, strides, concrete)
        )

    def shape(self, at: int) -> Shape | None:
        """The sizes of argument `at`, () for a scalar, None if it is absent or no tensor."""
        found = _at(self._dims, at)
        if not isinstance(found, list) or not all(isinstance(size, int) and size >= 0 for size in found):
            return None
        return tuple(found) if self.dtype(at) not in ("", "ScalarList", "TensorList") else None

    def tensor(self, at: int) -> Shape | None:
        """The sizes of argument `at` where it is a tensor with axes, else None."""
        return self.shape(at) or None

    def dtype(self, at: int) -> str:
        found = _at(self._types, at)
        return found if isinstance(found, str) else ""

    def strides(self, at: int) -> tuple[Any, ...] | None:
        found = _at(self._strides, at)
        return tuples(found) if isinstance(found, list) else None

    def concrete(self, at: int) -> str:
        found = _at(self._concrete, at)
        return found if isinstance(found, str) else ""

    def numbers(self, at: int) -> tuple[int, ...]:
        """The integers of a list argument, `[1, 1]`, or of a single one; () if there are none."""
        text = self.concrete(at).strip("[]() ")
        parts = [part.strip() for part in text.split(",")] if text else []
        return tuple(int(part) for part in parts) if all(_is_int(part) for part in parts) else ()

    def flag(self, at: int) -> bool:
        return self.concrete(at).lower() == "true"

    def size(self, at: int) -> int:
        """Bytes of one element of argument `at`; 0 where its type is unknown."""
        return item_bytes(self.dtype(at))


def item_bytes(dtype: str) -> int:
    return views.DTYPE_BYTES.get(dtype.lower(), 0)


def count(shape: Sequence[int]) -> int:
    return math.prod(shape)


def _listed(text: str) -> list[Any]:
    value = load_argument(text) if text else []
    return value if isinstance(value, list) else []


def _at(values: Sequence[Any], at: int) -> Any:
    return values[at] if at < len(values) else None


def _is_int(text: str) -> bool:
    return text.lstrip("-").isdecimal() and len(text) < 20
