"""What is known of an op (ops.csv), and one recorded call of it, as the models of `ops` read it."""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.perfmodel.dtypes import item_bytes, rate_name

Shape = tuple[int, ...]


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of one of the tables beside this file, without its comments."""
    with Path(__file__).with_name(name).open(newline="", encoding="ascii") as file:
        return list(csv.DictReader(line for line in file if line[0] != "#"))


class Op(NamedTuple):
    """A row of ops.csv for one op; an argument is an index or a number, 1 for a flag."""

    kind: str
    model: str
    arguments: dict[str, int]


@functools.cache
def op_table() -> Mapping[str, Op]:
    """Every known op by its full name."""
    table = {}
    for row in rows_of("ops.csv"):
        pairs = (word.partition("=") for word in row["arguments"].split())
        op = Op(row["class"], row["model"], {name: int(value or 1) for name, _, value in pairs})
        table.update({name if "::" in name else f"aten::{name}": op for name in row["ops"].split()})
    return table


def op_of(name: str) -> Op:
    """What is known of an op; of one that works in place (`aten::mul_`) what is known of the plain one."""
    table = op_table()
    return table.get(name) or table.get(name.rstrip("_")) or Op("", "", {})


@dataclass(frozen=True)
class Work:
    """The work of one op: FLOPs, least bytes (each tensor once), the kind it belongs to, its parameters.

    unit: matrix or vector; dtype as the recorder spells it.
    """

    kind: str
    params: dict[str, Any]
    flops: float
    num_bytes: float
    unit: str
    dtype: str

    @property
    def spec(self) -> str:
        return f"{self.unit}_{rate_name(self.dtype) or self.dtype}"


@dataclass(frozen=True)
class OpCall:
    """The name and arguments of one op. What was not recorded, or is not a shape, reads as None.

    shapes, strides: a list of ints per tensor argument, anything else for other arguments; dtypes: a text per
    argument; values: the concrete inputs as texts.
    """

    name: str
    shapes: Sequence[Any]
    dtypes: Sequence[Any]
    strides: Sequence[Any] = ()
    values: Sequence[Any] = ()

    @classmethod
    def from_profiler(cls, name: str, dims: str, types: str, strides: str = "", concrete: str = "") -> OpCall:
        """Read the JSON texts of torch.profiler: Input Dims, Input type, Input Strides, Concrete Inputs."""
        return cls(name, *(json_list(text) for text in (dims, types, strides, concrete)))

    def shape(self, index: int) -> Shape | None:
        """Return the sizes of argument `index`, () for a scalar, None if it is absent or not a tensor."""
        sizes = _item(self.shapes, index)
        if not isinstance(sizes, (list, tuple)) or not all(isinstance(n, int) and n >= 0 for n in sizes):
            return None
        return tuple(sizes) if self.dtype(index) not in ("", "ScalarList", "TensorList") else None

    def tensor(self, index: int) -> Shape | None:
        """Return the sizes of argument `index` where it is a tensor with axes, else None."""
        return self.shape(index) or None

    def nested_shapes(self, index: int) -> list[Shape]:
        """Return the sizes of each tensor of a list argument; [] where they were not recorded."""
        sizes = _item(self.shapes, index)
        nested = sizes if isinstance(sizes, (list, tuple)) else []
        return [tuple(shape) for shape in nested if isinstance(shape, (list, tuple))]

    def dtype(self, index: int) -> str:
        text = _item(self.dtypes, index)
        return text if isinstance(text, str) else ""

    def stride(self, index: int) -> Shape | None:
        steps = _item(self.strides, index)
        return nested_tuple(steps) if isinstance(steps, (list, tuple)) else None

    def value(self, index: int) -> str:
        text = _item(self.values, index)
        return text if isinstance(text, str) else ""

    def number(self, index: int) -> float | None:
        try:
            return float(self.value(index))
        except ValueError:
            return None

    def numbers(self, index: int) -> tuple[int, ...]:
        """Return the integers of a list argument, `[1, 1]`, or of a single one; () if there are none."""
        text = self.value(index).strip("[]() ")
        parts = [part.strip() for part in text.split(",")] if text else []
        return tuple(int(part) for part in parts) if all(_is_int(part) for part in parts) else ()

    def flag(self, index: int) -> bool:
        return self.value(index).lower() in ("true", "1")

    def element_bytes(self, index: int) -> int:
        """Return bytes per element of argument `index`; 0 where its type is unknown."""
        return item_bytes(self.dtype(index))

    def touched(self, index: int) -> int:
        """Count the distinct elements of argument `index`: an expanded axis (stride 0) is read once."""
        shape = self.shape(index) or ()
        steps = self.stride(index) or ()
        if len(steps) != len(shape):
            return math.prod(shape)
        return math.prod(size for size, step in zip(shape, steps, strict=True) if step != 0)


def count(shape: Sequence[int]) -> int:
    return math.prod(shape)


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """Return the shape of an elementwise result, None where the two do not fit."""
    width = max(len(left), len(right))
    padded = ((1,) * (width - len(shape)) + shape for shape in (left, right))
    sizes = list(zip(*padded, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in sizes):
        return None
    return tuple(y if x == 1 else x for x, y in sizes)


def json_list(text: str) -> list[Any]:
    """Read a list that a recording holds as JSON text; [] for an empty text or anything else."""
    value = json.loads(text) if text else []
    return value if isinstance(value, list) else []


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def nested_tuple(value: Any) -> Any:
    """Turn lists within lists to tuples within tuples."""
    return tuple(nested_tuple(item) for item in value) if isinstance(value, (list, tuple)) else value


def _is_int(text: str) -> bool:
    return text.lstrip("-").isdecimal() and len(text) < 20
