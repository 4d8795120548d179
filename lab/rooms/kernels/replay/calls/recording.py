"""A recording as a replay reads it: operators, the GPU work that each launched, and marks of forwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.compiled import is_inductor
from lab.recordings.load import load_torch_trace
from lab.recordings.views import launch_calls, link_ops, of_graphs
from lab.rooms.kernels.catalogue.align import in_order
from lab.rooms.kernels.replay.args import Launch, RawArgs
from lab.rooms.kernels.replay.calls.launches import launches_of

FORWARD = re.compile(r"(prefill|decode)(?:_(\d+))?\Z")
# Ops that cannot be called by themselves: the op around them is replayed instead.
INTERNAL = re.compile(r"aten::_(flash|efficient|cudnn)_attention_(forward|backward)\Z")


class Op(msgspec.Struct, gc=False):
    """An operator. raw: its arguments, None without types; parent: index of the op around it, -1 for none."""

    name: str
    row: int  # of `Capture.operators`
    start_us: float
    dur_us: float
    external_id: int
    rf_id: int
    raw: RawArgs | None
    parent: int


class GpuWork(NamedTuple):
    """One operation of the GPU. owner: index of the op that launched it, -1: none; replayed: by a graph."""

    launch: Launch
    start_us: float
    dur_us: float
    stream: int
    owner: int
    replayed: bool


class Mark(NamedTuple):
    """A marked forward, by the host's time."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Recording:
    """ops and work by start, marks by start; times count from `zero_ns`."""

    capture: Capture
    zero_ns: int
    ops: list[Op]
    work: list[GpuWork]
    marks: list[Mark]


def read_recording(path: Path) -> Recording:
    """Raises MissingError and BadDataError for a trace that cannot be read, or that torch did not write."""
    capture = load_torch_trace(path)
    operators = capture.operators
    zero_ns = capture.meta.base_ns or (int(operators.start_ns.min()) if len(operators) else 0)
    by_start = np.lexsort((operators.external_id, -operators.dur_ns, operators.start_ns))
    index = np.full(len(operators) + 1, -1, dtype=np.int64)
    index[by_start] = np.arange(len(operators))
    ops = _ops_of(capture, by_start, index, zero_ns)
    marks = [
        Mark(name, start, end)
        for name, start, end in zip(
            capture.text(capture.annotations.name_id).tolist(),
            ((capture.annotations.start_ns - zero_ns) / 1000).tolist(),
            ((capture.annotations.end_ns - zero_ns) / 1000).tolist(),
            strict=True,
        )
        if FORWARD.match(name)
    ]
    marks.sort(key=lambda mark: mark.start_us)
    return Recording(capture, zero_ns, ops, _work_of(capture, index, ops, zero_ns), marks)


def _ops_of(capture: Capture, by_start: np.ndarray, index: np.ndarray, zero_ns: int) -> list[Op]:
    operators = capture.operators.take(by_start)
    parent = index[in_order(capture.operators)[1][by_start]]
    arguments = (
        capture.text(getattr(operators, name)).tolist()
        for name in ("types_id", "dims_id", "strides_id", "concrete_id")
    )
    rows = zip(
        capture.text(operators.name_id).tolist(),
        by_start.tolist(),
        ((operators.start_ns - zero_ns) / 1000).tolist(),
        (operators.dur_ns / 1000).tolist(),
        operators.external_id.tolist(),
        operators.rf_id.tolist(),
        map(_raw, *arguments),
        parent.tolist(),
        strict=True,
    )
    return [Op(*row) for row in rows]


def _raw(types: str, dims: str, strides: str, concrete: str) -> RawArgs | None:
    """The arguments as the trace records them; None without argument types."""
    if types in ("", "null"):
        return None
    return RawArgs(_texts(types), _items(dims), _items(strides), _texts(concrete))


@lru_cache(maxsize=1 << 16)
def _items(text: str) -> tuple[Any, ...]:
    items = msgspec.json.decode(text) if text else []
    return tuple(items) if isinstance(items, list) else ()


@lru_cache(maxsize=1 << 16)
def _texts(text: str) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else str(item) for item in _items(text))


def _work_of(capture: Capture, index: np.ndarray, ops: Sequence[Op], zero_ns: int) -> list[GpuWork]:
    by_start = np.lexsort((capture.ops.corr, capture.ops.start_ns))
    rows = capture.ops.take(by_start)
    replayed = of_graphs(capture, launch_calls(capture))[by_start]
    owners = index[link_ops(capture)[by_start]].tolist()
    columns = zip(
        launches_of(capture, by_start),
        ((rows.start_ns - zero_ns) / 1000).tolist(),
        (rows.dur_ns / 1000).tolist(),
        rows.stream.tolist(),
        (_callable(ops, owner) if owner >= 0 else -1 for owner in owners),
        replayed.tolist(),
        strict=True,
    )
    return [GpuWork(*row) for row in columns]


def _callable(ops: Sequence[Op], op: int) -> int:
    """The nearest op, from `op` upwards, that can be called by itself."""
    while (
        ops[op].parent >= 0
        and not is_inductor(ops[op].name)
        and (INTERNAL.match(ops[op].name) or "::" not in ops[op].name)
    ):
        op = ops[op].parent
    return op
