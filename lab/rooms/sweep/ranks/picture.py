"""One picture per step: ranks by time, with arrows from who waits to who is waited for."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Drawing

from lab.recordings.ranks.account import LABELS, PARTS
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.explained import Explained
from lab.report.figures import stacked_panels, timeline

# Colours of the labels, in their order.
COLOURS = ("computation", "communication", "idle", "warn", "memcpy", "fail", "muted", "rule", "unknown")
ROLES = [(label.replace("_", " "), role) for label, role in zip(LABELS, COLOURS, strict=True)]
PART_ROLES = dict(zip(PARTS, (COLOURS[0], "ok", *COLOURS[1:]), strict=True))  # contention is the second
PART_WORDS = {role: name.removesuffix("_ns").replace("_", " ") for name, role in PART_ROLES.items()}
MOST_ARROWS = 24
# Bars of one label are one where less than this many inches are between them: a fifth of a pixel.
CLOSEST_IN = 1 / 750


def step_picture(explained: Explained, step: int, width_in: float) -> Drawing:
    """Every rank's labels over one step on the common clock, in ms since the first begin."""
    account = explained.account
    together = account.together
    windows = {i: w for i in range(len(account.ranks)) if (w := together.window(i, step)) is not None}
    row_of = {index: row for row, index in enumerate(windows)}
    edges = [together.common(index, np.array(window)) for index, window in windows.items()]
    origin = min(int(begin) for begin, _ in edges)
    length_ms = max(int(end) - origin for _, end in edges) / 1e6
    closest_ms = CLOSEST_IN / width_in * length_ms
    parts: dict[tuple[str, str], list[np.ndarray]] = {}
    arrows: list[tuple[float, float, int, int]] = []  # ms waited, end of the wait, who waits, and for whom
    last_ms = 0.0
    for index, row in row_of.items():
        segments = account.segments[index]
        in_step = np.flatnonzero(together.windows[index][segments.window, 0] == step)
        begin = (together.common(index, segments.begin[in_step]) - origin) / 1e6
        length = segments.length[in_step] / 1e6
        last_ms = max(last_ms, float((begin + length).max(initial=0)))
        for label, role in enumerate(ROLES):
            chosen = segments.label[in_step] == label
            if chosen.any():
                bars = _merged(begin[chosen], length[chosen], closest_ms)
                boxes = np.column_stack([np.full(len(bars), row), bars, np.ones(len(bars))])
                parts.setdefault(role, []).append(boxes)
        awaited = segments.awaited[in_step]
        for peer in np.unique(awaited[awaited != UNKNOWN]).tolist():
            if peer in row_of:
                bars = _merged(begin[awaited == peer], length[awaited == peer])
                arrows += [(ms, at + ms, row, row_of[peer]) for at, ms in bars.tolist()]
    arrows.sort(reverse=True)
    return timeline(
        [f"rank {account.ranks[index]}" for index in windows],
        {role: np.concatenate(parts[role]) for role in ROLES if role in parts},
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


def _merged(begin: np.ndarray, length: np.ndarray, closest: float = 1e-9) -> np.ndarray:
    """Bars (m, 2) of start and length, where neighbours that touch, or nearly, are one."""
    end = begin + length
    opens = np.append(True, begin[1:] > end[:-1] + closest)
    run_starts = np.flatnonzero(opens)
    ends = np.append(end[run_starts[1:] - 1], end[-1])
    return np.column_stack([begin[run_starts], ends - begin[run_starts]])
