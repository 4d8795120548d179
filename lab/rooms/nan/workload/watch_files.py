"""The watch's tables as files, and its part of result.json."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.core.files import write_atomic
from lab.rooms.nan.watch.count import KINDS
from lab.rooms.nan.watch.watch import Watch


def write_watch(watch: Watch, out: Path) -> dict[str, Any]:
    """The watch's tables into `out`; -> what result.json says of it."""
    fields = ("module", "kind", "side", "leaf", "phase", "dtype", "calls", "numel", *KINDS, "first_bad_step")
    totals = watch.totals()
    write_csv(
        out / "modules.csv",
        fields,
        [
            (
                t.module,
                t.kind,
                t.side,
                t.leaf,
                t.phase,
                t.dtype,
                t.calls,
                t.numel,
                *map(_number, t.counts),
                t.first_bad_step,
            )
            for t in totals
        ],
    )
    rows = [
        (
            step.number,
            step.phase,
            row.seq,
            row.module,
            row.kind,
            row.side,
            row.leaf,
            row.shape,
            row.dtype,
            *map(_number, row.counts),
            row.role,
        )
        for step in watch.steps
        for row in step.rows
    ]
    names = ("step", "phase", "seq", "module", "class", "side", "leaf", "shape", "dtype", *KINDS, "role")
    write_csv(out / "calls.csv", names, rows)
    first, first_step = watch.first, watch.first_step
    return {
        "counter": watch.counter,
        "counter_reason": watch.counter_reason,
        "notes": watch.notes,
        "modules": len({total.module for total in totals}),
        "forwards": len(watch.steps),
        "weights": watch.weights,
        "first": None
        if first is None or first_step is None
        else {
            **dataclasses.asdict(first),
            "place": first.place,
            "step": first_step.number,
            "phase": first_step.phase,
        },
        "births": [
            {"step": step.number, "phase": step.phase, **dataclasses.asdict(birth), "place": birth.place}
            for step in watch.steps[:200]
            for birth in step.births
        ][:200],
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


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomic(path, text.getvalue())


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(value)
