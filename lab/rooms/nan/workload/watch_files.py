"""The watch's tables as files, and its part of result.json."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.core.files import write_atomic
from lab.rooms.nan.watch.count import KINDS
from lab.rooms.nan.watch.explain import Row, Step, Total
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.watch import Watch

MOST_BIRTHS = 200
_MODULE = ("module", "kind", "side", "leaf", "phase", "dtype", "calls", "numel")
_CALL = ("step", "phase", "seq", "module", "class", "side", "leaf", "shape", "dtype")


def write_watch(watch: Watch, out: Path) -> dict[str, Any]:
    """Write the watch's tables into `out`; returns its part of result.json."""
    totals, first_step = watch.totals(), watch.first_step
    _write_csv(out / "modules.csv", (*_MODULE, *KINDS, "first_bad_step"), map(_module_row, totals))
    calls = (_call_row(step, row) for step in watch.steps for row in step.rows)
    _write_csv(out / "calls.csv", (*_CALL, *KINDS, "role"), calls)
    born = [_born(step, birth) for step in watch.steps[:MOST_BIRTHS] for birth in step.births]
    return {
        "counter": watch.counter,
        "counter_reason": watch.counter_reason,
        "notes": watch.notes,
        "modules": len({total.module for total in totals}),
        "forwards": len(watch.steps),
        "weights": watch.weights,
        "first": _born(first_step, first_step.births[0]) if first_step else None,
        "births": born[:MOST_BIRTHS],
        "steps": [
            {
                "step": step.number,
                "phase": step.phase,
                "query_length": step.query_length,
                "bad_leaves": step.bad_leaves,
                "reached_output": step.reached_output,
                **step.totals,
            }
            for step in watch.steps
        ],
    }


def _module_row(total: Total) -> list[Any]:
    values = [getattr(total, name) for name in _MODULE]
    return [*values, *map(_number, total.counts), total.first_bad_step]


def _call_row(step: Step, row: Row) -> list[Any]:
    cells = (row.seq, row.module, row.kind, row.side, row.leaf, row.shape, row.dtype)
    return [step.number, step.phase, *cells, *map(_number, row.counts), row.role]


def _born(step: Step, birth: Birth) -> dict[str, Any]:
    cells = {"step": step.number, "phase": step.phase}
    born = dataclasses.asdict(birth)
    return {**cells, "how": born.pop("kind"), **born, "place": birth.place}


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomic(path, text.getvalue())


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(value)
