"""One row per collective from the rows of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.recordings.pairing.kinds import bus_factor
from lab.recordings.pairing.rows import CallRows, running_count
from lab.recordings.tables import Table
from lab.stats.columns import objects


class CallSummary:
    """One row per call from the rows that belong to it."""

    def __init__(self, rows: CallRows, call: np.ndarray, start: np.ndarray) -> None:
        self._rows, self._call = rows, call
        order = np.lexsort((rows.rank, start, call))
        self._index = order[call[order] >= 0]
        call_of_row = call[self._index]
        self._num = int(call_of_row[-1]) + 1 if len(call_of_row) else 0
        self._offset = np.searchsorted(call_of_row, np.arange(self._num))
        self._size = np.diff(np.append(self._offset, len(call_of_row)))
        self._start = start
        self._ends = start + rows.dur
        self.last_start = start[self._last_rows()]

    def all_in(self) -> np.ndarray:
        """When the last that each row (n,) waits for had come; its own start where that is unknown."""
        last_start_ns = np.append(self.last_start, np.iinfo(np.int64).min)[self._call]
        waits = (self._call >= 0) & ~self._rows.buffered
        return np.where(waits, np.maximum(last_start_ns, self._start), self._start)

    def collectives(self, confidence: Sequence[str]) -> Table:
        rows, lead = self._rows, self._index[self._offset]
        kinds = [rows.kinds[i] for i in lead.tolist()]
        columns: dict[str, Any] = {"collective_id": np.arange(self._num)}
        for name in ("pg_name", "pg_desc", "pg_ranks", "collective"):
            columns[name] = rows.column(name)[lead]
        columns["kind"] = objects(kinds)
        columns["blocks"] = rows.blocking[lead]
        columns["dtype"] = rows.column("dtype")[lead]
        for name in ("in_nelems", "out_nelems", "msg_bytes"):
            columns[name] = self._reduce(np.maximum, rows.column(name))
        columns |= self._membership(lead) | self._times()
        size = np.where(columns["group_size"] > 0, columns["group_size"], self._size)
        columns |= self._bandwidth(columns["msg_bytes"], columns["latency_us"], kinds, size)
        for name in ("stream", "step"):
            columns[name] = rows.column(name)[lead]
        return Table({**columns, "confidence": objects(confidence)})

    def _membership(self, lead: np.ndarray) -> dict[str, np.ndarray]:
        rows = self._rows
        num_ranks = len(rows.ranks)
        is_member = np.zeros((self._num, num_ranks), dtype=bool)
        is_member[np.repeat(np.arange(self._num), self._size), rows.rank_index[self._index]] = True
        expected = [rows.members_of(group) for group in range(rows.num_groups)]
        group = rows.group[lead]
        texts: dict[tuple[int, bytes], str] = {}
        missing = []
        for g, mask in zip(group.tolist(), is_member, strict=True):
            key = (g, mask.tobytes())
            if key not in texts:
                members = {rank for rank, is_there in zip(rows.ranks, mask.tolist(), strict=True) if is_there}
                texts[key] = ", ".join(str(rank) for rank in expected[g] if rank not in members)
            missing.append(texts[key])
        is_p2p = np.array([bool(route) for route in rows.routes], dtype=bool)[group]
        size = np.where(is_p2p, 2, self._reduce(np.maximum, rows.column("group_size")))
        expected_size = np.array([len(expected[g]) for g in group.tolist()], dtype=np.int64)
        nothing_missing = np.array([text == "" for text in missing], dtype=bool)
        complete = nothing_missing & (self._size >= np.maximum(size, 1))
        return {
            "group_size": np.where(size > 0, size, expected_size),
            "index_in_group": running_count(group),
            "num_ranks": self._size,
            "complete": complete,
            "missing_ranks": objects(missing),
        }

    def _times(self) -> dict[str, np.ndarray]:
        alone = self._size < 2
        first_row, last_row = self._index[self._offset], self._last_rows()
        end_first, end_last = self._reduce(np.minimum, self._ends), self._reduce(np.maximum, self._ends)
        return {
            "ts_ns": self._start[first_row],
            "latency_us": self._reduce(np.minimum, self._rows.dur) / 1e3,
            "start_skew_us": np.where(alone, np.nan, (self.last_start - self._start[first_row]) / 1e3),
            "end_skew_us": np.where(alone, np.nan, (end_last - end_first) / 1e3),
            "straggler_rank": np.where(alone, -1, self._rows.rank[last_row]),
            "first_rank": np.where(alone, -1, self._rows.rank[first_row]),
        }

    def _bandwidth(
        self, num_bytes: np.ndarray, latency_us: np.ndarray, kinds: Sequence[str], sizes: np.ndarray
    ) -> dict[str, np.ndarray]:
        measurable = (num_bytes >= 0) & (latency_us > 0)
        algbw = np.full(self._num, np.nan)
        algbw[measurable] = num_bytes[measurable] / latency_us[measurable] / 1e3
        factor = np.array(
            [bus_factor(*pair) for pair in zip(kinds, sizes.tolist(), strict=True)], dtype=float
        )
        return {"algbw_gb_s": algbw, "busbw_gb_s": algbw * factor}

    def _last_rows(self) -> np.ndarray:
        """The row that started last in each call; the lowest rank among equals."""
        starts = self._start[self._index]
        end = self._offset + self._size - 1
        # Even keys lie before the latest start of a call, odd ones from it on: one search finds all first
        # rows.
        latest = np.searchsorted(
            np.repeat(np.arange(self._num), self._size) * 2 + (starts >= np.repeat(starts[end], self._size)),
            np.arange(self._num) * 2 + 1,
        )
        return self._index[latest]

    def _reduce(self, operation: Any, values: np.ndarray) -> np.ndarray:
        if not self._num:
            return values[:0]
        reduced: np.ndarray = operation.reduceat(values[self._index], self._offset)
        return reduced
