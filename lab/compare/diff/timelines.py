"""One unit of A and one of B as bars on one axis, each segment of the work beginning at the same place.

Operations are paired in their order of launch (`diff.split`). A segment is a run of pairs of one module, as
long as the longer side's; within it times are as recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.compare.diff.groups import Placed
from lab.compare.diff.judge import FLOOR_SHARE
from lab.compare.diff.split import MOST, opcodes
from lab.perfmodel.classes import CLASSES
from lab.recordings.gantt.bars import FAMILY_OF, Bars, Span, assemble
from lab.recordings.tables import GRAPH
from lab.recordings.views import row_classes

SAME, SLOWER, FASTER, OTHER, LONE = (
    f"as long within {FLOOR_SHARE:.0%}",
    f"slower by more than {FLOOR_SHARE:.0%}",
    f"faster by more than {FLOOR_SHARE:.0%}",
    "another kernel for the same op",
    "only on this side",
)
NAMES = {0: "A", 1: "B"}


@dataclass(frozen=True)
class Steps:
    """The bars of both units, aligned and as recorded; `frame` has one row per operation."""

    aligned: Bars
    recorded: Bars
    frame: pd.DataFrame


def timelines(a: Placed, b: Placed) -> Steps | None:
    """None where no unit is marked, or a unit has more operations than are aligned (`split.MOST`)."""
    rows = (a.units.usual, b.units.usual)
    if not min(map(len, rows)) or max(map(len, rows)) > MOST:
        return None
    # Positions in both sequences that are the same op and shapes, rising.
    rising = [
        (i1 + offset, j1 + offset)
        for tag, i1, i2, j1, _ in opcodes(a.units.sequence, b.units.sequence)
        for offset in range(i2 - i1 if tag == "equal" else 0)
    ]
    pairs = np.array(rising, dtype=np.int64).reshape(-1, 2)
    frames = [_frame(side, number) for number, side in enumerate((a, b))]
    _compare(frames, pairs)
    moves = _aligned(frames, pairs)
    recorded: pd.DataFrame = pd.concat(frames, ignore_index=True)
    aligned = recorded.assign(start_us=recorded["start_us"] + np.concatenate(moves))
    return Steps(
        assemble(aligned, _marks(aligned), NAMES),
        assemble(recorded, [], NAMES),
        recorded.assign(aligned_us=aligned["start_us"]),
    )


def _frame(side: Placed, number: int) -> pd.DataFrame:
    """The operations of the usual unit in order of launch."""
    work, rows, keys = side.units.work, side.units.usual, side.units.sequence
    ops = work.ops.take(rows)
    families = np.array([FAMILY_OF[kind] for kind in CLASSES])[row_classes(work.trace)[work.order[rows]]]
    places = [side.places[index] for index in side.place[rows].tolist()]
    frame: pd.DataFrame = pd.DataFrame(
        {
            "rank": number,
            "device": ops.device,
            "stream": ops.stream,
            "start_us": (ops.start_ns - ops.start_ns.min()) / 1000,
            "dur_us": ops.dur_ns / 1000,
            "family": np.where(ops.kind == GRAPH, FAMILY_OF["other"], families),
            "name": [key[3] or "unnamed" for key in keys],
            "op": [key[0] for key in keys],
            "shapes": [key[1] for key in keys],
            "module": [".".join(modules) for _, modules in places],
            "phase": [phase for phase, _ in places],
            "change": LONE,
            "correlation": ops.corr,
        }
    )
    return frame


def _compare(frames: list[pd.DataFrame], pairs: np.ndarray) -> None:
    """What became of each operation that has a partner."""
    a, b = (frames[side].iloc[pairs[:, side]] for side in (0, 1))
    a_us, b_us = a["dur_us"].to_numpy(), b["dur_us"].to_numpy()
    same = a["name"].to_numpy() == b["name"].to_numpy()
    change = np.select(
        [~same, b_us > a_us * (1 + FLOOR_SHARE), b_us < a_us * (1 - FLOOR_SHARE)],
        [OTHER, SLOWER, FASTER],
        SAME,
    )
    for side in (0, 1):
        frames[side].loc[pairs[:, side], "change"] = change


def _aligned(frames: list[pd.DataFrame], pairs: np.ndarray) -> list[np.ndarray]:
    """How far to move each operation of both sides, us, so that segments begin at the same place."""
    anchors = _anchors(frames, pairs)
    starts = [frame["start_us"].to_numpy() for frame in frames]
    begin = [np.maximum.accumulate(starts[side][anchors[:, side]]) for side in (0, 1)]
    lengths = np.maximum(*(np.diff(one, prepend=0.0) for one in begin))
    place = np.cumsum(lengths)
    moves = []
    for side in (0, 1):
        move = np.maximum(place - begin[side], 0.0)
        segment = np.searchsorted(anchors[:, side], np.arange(len(starts[side])), side="right") - 1
        moves.append(np.where(segment >= 0, move[np.maximum(segment, 0)], 0.0))
    return moves


def _anchors(frames: list[pd.DataFrame], pairs: np.ndarray) -> np.ndarray:
    """The pairs at which a segment begins: after operations without a partner, or in another module."""
    if not len(pairs):
        return pairs
    modules = [(frame["phase"] + "|" + frame["module"]).to_numpy() for frame in frames]
    of_pairs = np.stack([modules[side][pairs[:, side]] for side in (0, 1)], axis=1)
    is_new = (np.diff(pairs, axis=0) != 1) | (of_pairs[1:] != of_pairs[:-1])
    anchors: np.ndarray = pairs[np.append(True, is_new.any(axis=1))]
    return anchors


def _marks(frame: pd.DataFrame) -> list[Span]:
    """Phases, by what was launched in them."""
    ends = frame.assign(end_us=frame["start_us"] + frame["dur_us"])
    by_phase = ends[ends["phase"] != ""].groupby("phase", sort=False)
    edges = by_phase.agg({"start_us": "min", "end_us": "max"}).sort_values("start_us", kind="stable")
    return [Span(str(name), float(start_us), float(end_us)) for name, start_us, end_us in edges.itertuples()]
