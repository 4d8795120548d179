"""Rule C: torch.profiler numbers its own events from 0; a number that is not there was taken out afterwards.

All phases count (instants have numbers, too). torch writes operators and annotations first, Python's
functions after them, so a gap between two operators lies inside the recording, and one at that seam at the
end of what was kept. And what torch.profiler itself says of its losses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from lab.core.words import first_few, plural, printable
from lab.recordings.lacks import Axis, Lack, Place, doubt, missing
from lab.recordings.tables import Table

# GPU rows, API calls and arrows have none.
_WITHOUT = ("kernels", "runtime", "flows")
# Categories of slices that are not work: the span of the recording, costs of the profiler itself.
_WITHOUT_WORK = (
    "trace",
    "overhead",
    "cuda_event",
    "graph_event_node",
    "external_correlation",
    "cuda_profiler_range",
)
# Its buffers were full, or CUPTI had no room; records out of range are those before and after the window.
_LOSS = re.compile(
    r"terminating tracing|stopped early(?!\? = 0)|dropped\W{1,5}[1-9]|[1-9]\d* (?:records|events) dropped",
    re.IGNORECASE,
)
_INDEX = attrgetter("args.ev_idx")
_OPERATORS = ("ops", "ranges")
_ROWS_OF: dict[str, tuple[Axis, str]] = {
    "kernels": ("gpu", "GPU row"),
    "runtime": ("host", "API call"),
    "ops": ("ops", "operator"),
    "ranges": ("ops", "range"),
}


class EventIndices:
    """Collects the field `Ev Idx` of the events of one process."""

    def __init__(self) -> None:
        self._numbers = [np.empty(0, dtype=np.int64)]
        self._of_operators = [np.empty(0, dtype=bool)]

    def add(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """The events of one piece, by the table that they go to."""
        for table, events in rows.items():
            if table not in _WITHOUT:
                numbers = _numbers(events)
                self._numbers.append(numbers[numbers >= 0])
                self._of_operators.append(np.full(len(self._numbers[-1]), table in _OPERATORS))

    def lacks(self, owners_here: Callable[[], bool]) -> tuple[Lack, ...]:
        """What is missing up to the largest number; events after it cannot be known.

        owners_here(): every GPU row still has its operator, so the trace was thinned with care, and nothing
        that is said of the GPU rests on what was taken out.
        """
        numbers, of_operators = np.concatenate(self._numbers), np.concatenate(self._of_operators)
        if not len(numbers):
            return ()
        order = np.lexsort((~of_operators, numbers))
        in_order, is_operator = numbers[order], of_operators[order]
        is_new = np.append(True, in_order[1:] > in_order[:-1])
        in_order, is_operator = in_order[is_new], is_operator[is_new]
        gaps = np.flatnonzero(np.diff(in_order) > 1)
        if not len(gaps) and in_order[0] == 0:
            return ()
        sizes = in_order[gaps + 1] - in_order[gaps] - 1
        inside = is_operator[gaps] & is_operator[gaps + 1] & (not owners_here())
        counts: dict[Place, tuple[int, int]] = {
            "head": (int(in_order[0]), 1),
            "hole": (int(sizes[inside].sum()), int(inside.sum())),
            "tail": (int(sizes[~inside].sum()), int((~inside).sum())),
        }
        total = int(in_order[-1]) + 1
        return tuple(_lack(place, n, total, runs) for place, (n, runs) in counts.items() if n)


def owners_are_here(kernels: Table, operators: Table) -> bool:
    """Whether GPU rows name operators by External id, and each of these is in the recording."""
    wanted = kernels.external_id[kernels.external_id > 0]
    return len(wanted) > 0 and bool(np.isin(wanted, operators.external_id).all())


def owners_lost(kernels: Table, operators: Table) -> tuple[Lack, ...]:
    """The finding for GPU rows whose External id names no operator of the recording, though others are here.

    Versions before October 2024 give a row that no operator launched its own number (pytorch/kineto#1001).
    """
    wanted, ids = kernels.external_id, operators.external_id
    lost = (wanted > 0) & (wanted != kernels.corr) & ~np.isin(wanted, ids)
    n, of = int(lost.sum()), len(wanted)
    if not n or not (ids > 0).any():
        return ()
    is_inside = kernels.start_ns[lost].max() >= operators.start_ns.min()
    words = "name an operator that is not in the recording"
    return (missing("ops", "hole" if is_inside else "head", "C", n, of, "GPU row", words),)


def cut_short(reason: str | None) -> tuple[Lack, ...]:
    """The finding for a file that ends too early; events are in no order of time."""
    if reason is None:
        return ()
    return (Lack("gpu", "tail", "C", 0, 0, 0, None, f"the file is not whole: {printable(reason)}"),)


def of_merged(frame: Mapping[str, Any]) -> tuple[Lack, ...]:
    """The findings about the ranks' own files that `lab.recordings.merge` wrote beside their events."""
    merged = frame.get("merged")
    rows = merged.get("lacks") if isinstance(merged, dict) else None
    try:
        lacks = msgspec.convert(rows or [], list[Lack])
    except msgspec.ValidationError:
        return ()
    # A hostile file must not fill the report, nor command the terminal.
    return tuple(msgspec.structs.replace(lack, text=printable(lack.text)[:300]) for lack in lacks[:1000])


def loss_lines(frame: Mapping[str, Any]) -> list[str]:
    """The lines of Kineto's own log, which it writes into the trace, that speak of lost GPU rows."""
    logs = [lines for level in ("INFO", "WARNING", "ERROR") if isinstance(lines := frame.get(level), list)]
    lines = dict.fromkeys(line for log in logs for line in log if isinstance(line, str))
    # A hostile log must not fill the report.
    return [printable(line.strip())[:300] for line in lines if _LOSS.search(line)][:20]


def of_log(frame: Mapping[str, Any]) -> tuple[Lack, ...]:
    """Rule N: the findings for what torch.profiler says of a loss."""
    return tuple(doubt("gpu", "N", f"torch.profiler says: {line}") for line in loss_lines(frame))


def untimed(lost: Mapping[str, int], totals: Mapping[str, int]) -> tuple[Lack, ...]:
    """The findings for events left out because their times cannot be read; both counts are by table."""
    lacks = []
    for table, (axis, rows) in _ROWS_OF.items():
        n, of = lost.get(table, 0), totals.get(table, 0)
        if n:
            words = "have no readable start or duration and were left out"
            lack = missing(axis, "hole", "C", n, of, rows, words, process=0)
            lacks.append(msgspec.structs.replace(lack, share=None) if axis == "host" else lack)
    return tuple(lacks)


def unread(events: Mapping[str, int]) -> tuple[Lack, ...]:
    """The finding for events of kinds that lab does not read, such as the rows of another accelerator."""
    counts = {name: n for name, n in sorted(events.items()) if name.lower() not in _WITHOUT_WORK}
    total = sum(counts.values())
    if not total:
        return ()
    names = first_few([f"{name} ({n:,})" for name, n in counts.items()], 4)
    text = f"{plural(total, 'event')} of kinds that lab does not read, and no rule looked at: {names}"
    return (doubt("gpu", "X", text, n=total, of=total),)


def _lack(place: Place, n: int, total: int, runs: int) -> Lack:
    position = {
        "head": "before the first one here",
        "hole": f"between operators, at {plural(runs, 'place')}",
        "tail": "at the end, or where no GPU row's operator is missing",
    }[place]
    text = f"{n:,} of {plural(total, 'event')} of torch.profiler ({n / total:.1%}) were taken out {position}"
    return Lack("ops", place, "C", 0, n, total, n / total, text)


def _numbers(events: Sequence[Any]) -> np.ndarray:
    try:
        return np.fromiter(map(_INDEX, events), np.int64, len(events))
    except (OverflowError, ValueError, TypeError):
        usable = [i if isinstance(i, int) and 0 <= i < 2**62 else -1 for i in map(_INDEX, events)]
        return np.array(usable, dtype=np.int64)
