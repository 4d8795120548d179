"""One picture per step: ranks by time, with arrows from who waits to who is waited for."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Drawing

from lab.recordings.ranks.account import PARTS, Account
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.explained import Explained
from lab.recordings.ranks.labels import (
    COMPUTE,
    COPYING,
    LAUNCH_GAP,
    LAUNCH_LATE,
    TAIL,
    TRANSFER,
    UNEXPLAINED,
    UNPAIRED,
    WAIT,
)
from lab.report.figures import stacked_panels, timeline

ROLES = {
    COMPUTE: ("compute", "computation"),
    TRANSFER: ("transfer", "communication"),
    WAIT: ("wait for a rank", "idle"),
    UNPAIRED: ("unpaired", "warn"),
    COPYING: ("copy", "memcpy"),
    LAUNCH_LATE: ("launched late", "fail"),
    LAUNCH_GAP: ("launch gap", "muted"),
    TAIL: ("tail", "rule"),
    UNEXPLAINED: ("unexplained", "unknown"),
}
PART_ROLES = dict(
    zip(
        PARTS,
        ("computation", "ok", "communication", "idle", "warn", "memcpy", "fail", "muted", "rule", "unknown"),
        strict=True,
    )
)
PART_WORDS = {role: name.removesuffix("_ns").replace("_", " ") for name, role in PART_ROLES.items()}
MOST_ARROWS = 24
# Bars of one label are one where less than this many inches are between them: a fifth of a pixel.
CLOSEST_IN = 1 / 750


def step_picture(explained: Explained, step: int, width_in: float) -> Drawing:
    """Every rank's labels over one step on the common clock, in ms since the first begin."""
    account = explained.account
    edges = [_edges(account, index, step) for index in _with(account, step)]
    origin = min(begin for begin, _ in edges)
    closest_ms = CLOSEST_IN / width_in * (max(end for _, end in edges) - origin) / 1e6
    parts: dict[tuple[str, str], list[np.ndarray]] = {}
    arrows: list[tuple[float, float, int, int]] = []
    last_ms = 0.0
    for row, index in enumerate(_with(account, step)):
        segments = account.segments[index]
        window = account.together.windows[index][:, 0]
        in_step = np.flatnonzero(window[segments.window] == step)
        begin = (account.together.common(index, segments.begin[in_step]) - origin) / 1e6
        length = segments.length[in_step] / 1e6
        last_ms = max(last_ms, float((begin + length).max(initial=0)))
        for label, role in ROLES.items():
            chosen = segments.label[in_step] == label
            if chosen.any():
                bars = _merged(begin[chosen], length[chosen], closest_ms)
                parts.setdefault(role, []).append(
                    np.column_stack([np.full(len(bars), row), bars, np.ones(len(bars))])
                )
        arrows += _waits(account, index, row, in_step, begin, length, step)
    arrows.sort(reverse=True)
    order = [role for role in ROLES.values() if role in parts]
    return timeline(
        [f"rank {account.ranks[index]}" for index in _with(account, step)],
        {role: np.concatenate(parts[role]) for role in order},
        span=(0.0, max(last_ms, 1e-3)),
        bands=(),
        shades=(),
        axis="ms since the first rank began the step",
        arrows=[(at, row, target) for _, at, row, target in arrows[:MOST_ARROWS]],
        width_in=width_in,
    )


def account_picture(explained: Explained, width_in: float) -> Drawing:
    """The parts of every rank and step as stacked bars, ms."""
    titles, labels, parts = [], [], []
    account = explained.account
    for step in account.together.steps[:12]:
        rows = [row for row in account.rows if row.step == step]
        titles.append(f"step {step}" if step >= 0 else "whole recording")
        labels.append([f"r{row.rank}" for row in rows])
        parts.append(
            {role: np.array([row.parts[name] / 1e6 for row in rows]) for name, role in PART_ROLES.items()}
        )
    return stacked_panels(titles, labels, parts, axis="ms", words=PART_WORDS, width_in=width_in)


def _with(account: Account, step: int) -> list[int]:
    return [i for i in range(len(account.ranks)) if account.together.window(i, step) is not None]


def _edges(account: Account, index: int, step: int) -> tuple[int, int]:
    begin, end = account.together.common(index, np.array(account.together.window(index, step) or (0, 0)))
    return int(begin), int(end)


def _merged(begin: np.ndarray, length: np.ndarray, closest: float = 1e-9) -> np.ndarray:
    """Bars (m, 2) of start and length, where neighbours that touch, or nearly, are one."""
    end = begin + length
    opens = np.append(True, begin[1:] > end[:-1] + closest)
    run_starts = np.flatnonzero(opens)
    ends = np.append(end[run_starts[1:] - 1], end[-1])
    return np.column_stack([begin[run_starts], ends - begin[run_starts]])


def _waits(
    account: Account,
    index: int,
    row: int,
    in_step: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    step: int,
) -> list[tuple[float, float, int, int]]:
    """(ms waited, time of the end of the wait, row, row of who is waited for)."""
    places = {one: index for index, one in enumerate(_with(account, step))}
    awaited = account.segments[index].awaited[in_step]
    chosen = np.flatnonzero(awaited != UNKNOWN)
    waits: list[tuple[float, float, int, int]] = []
    for awaited_index in np.unique(awaited[chosen]).tolist():
        if awaited_index in places:
            of_awaited = chosen[awaited[chosen] == awaited_index]
            bars = _merged(begin[of_awaited], length[of_awaited])
            waits += [(ms, at + ms, row, places[awaited_index]) for at, ms in bars.tolist()]
    return waits
