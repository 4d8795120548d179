"""Times on one clock: sequences may count from the packet before (incremental clocks of Perfetto's SDK)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.recordings.protobuf import Fields, fields

_OWN = range(64, 128)  # clocks that belong to one sequence
_BOOT = 6  # of the trace itself


class _Clock(NamedTuple):
    """A clock of one sequence: ns of its time 0, ns per unit, and the last time of an incremental one."""

    zero_ns: int
    unit_ns: int
    incremental: bool
    now: int


class Clocks:
    """What the snapshots said so far."""

    def __init__(self) -> None:
        self._clocks: dict[tuple[int, int], _Clock] = {}
        self._default: dict[int, int] = {}
        self._used: set[int] = set()

    @property
    def problems(self) -> list[str]:
        absolute = {clock for clock in self._used if clock not in _OWN}
        if len(absolute) < 2:
            return []
        return [f"times of {len(absolute)} clocks were not brought to one another: {sorted(absolute)}"]

    def on_one(
        self,
        data: np.ndarray,
        top: Fields,
        state: np.ndarray,
        count: int,
        snapshots: int,
        timestamp: int,
        clock_id: int,
        defaults: int,
    ) -> np.ndarray:
        """Times (n,) of packets in ns; `state` is the sequence of each between two clearings."""
        ts = top.column(timestamp, count, 0)
        clock = top.column(clock_id, count, -1)
        snaps, given = top.of(snapshots), top.of(defaults)
        plain = not len(snaps.message) and not len(given.message) and not self._default
        if plain and not np.isin(clock, _OWN).any():
            self._used |= set(np.unique(np.where(clock < 0, _BOOT, clock)).tolist())
            return ts
        said = np.union1d(snaps.message, given.message)
        order = np.argsort(state, kind="stable")
        used, first = np.unique(state[order], return_index=True)
        for one, rows in zip(used.tolist(), np.split(order, first[1:]), strict=True):
            cuts = np.searchsorted(rows, said[np.isin(said, rows)])
            for part in np.split(rows, cuts):
                if len(part):
                    self._learn(data, snaps, given, int(part[0]), one)
                    ts[part] = self._converted(ts[part], clock[part], one)
        return ts

    def _learn(self, data: np.ndarray, snaps: Fields, given: Fields, packet: int, state: int) -> None:
        """The snapshot and defaults in one packet, if it has any."""
        for row in np.flatnonzero(given.message == packet).tolist():
            own = fields(data, given.value[row : row + 1], given.end[row : row + 1])
            clock = int(own.column(58, 1)[0])
            if clock >= 0:
                self._default[state] = clock
        for row in np.flatnonzero(snaps.message == packet).tolist():
            own = fields(data, snaps.value[row : row + 1], snaps.end[row : row + 1]).of(1)
            if not len(own.message):
                continue
            inside = fields(data, own.value, own.end)
            columns = [inside.column(number, len(own.message), 0).tolist() for number in (1, 2, 3, 4)]
            known = list(zip(*columns, strict=True))
            boot = next((ts for clock, ts, _, _ in known if clock == _BOOT), None)
            for clock, ts, incremental, unit in known:
                if clock in _OWN:
                    unit = unit if 0 < unit < 1 << 40 else 1
                    zero = (boot if boot is not None else ts * unit) - ts * unit
                    self._clocks[state, clock] = _Clock(zero, unit, bool(incremental), ts)

    def _converted(self, ts: np.ndarray, clock: np.ndarray, state: int) -> np.ndarray:
        clock = np.where(clock < 0, self._default.get(state, _BOOT), clock)
        found: np.ndarray = ts.copy()
        for one in np.unique(clock).tolist():
            mine = clock == one
            known = self._clocks.get((state, one))
            if known is None:
                self._used.add(_BOOT if one in _OWN else one)
                continue
            values = ts[mine]
            if known.incremental:
                values = known.now + np.cumsum(values)
                self._clocks[state, one] = known._replace(now=int(values[-1]))
            found[mine] = values * known.unit_ns + known.zero_ns
        return found
