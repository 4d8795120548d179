"""Who ran when: one row for compute, communication and copies of every stream, on a picture and on a page.

A picture is drawn by pixels, each as strong as it is busy, so 65,000 launches become some thousand bars and idle time stays
visible; the page draws from arrays on a canvas and keeps every launch, so a zoom shows each.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.recordings.names import short_name
from lab.rooms.kernels.catalogue.classes import class_of, class_of_op
from lab.rooms.kernels.catalogue.launches import KINDS, RankData
from lab.stats.intervals import intersect, spans, total, union

COMPUTE, COMM, COPY = 0, 1, 2
GROUPS = ("compute", "communication", "copies")
# Families of classes, each with a colour role of the page's palette.
FAMILIES = (
    ("matrix products", "computation", ("gemm", "gemv", "splitk_reduce", "conv", "quant")),
    ("attention", "ok", ("attention", "rope")),
    ("norm, softmax, sums", "warn", ("norm", "softmax", "reduce", "optimizer")),
    ("elementwise and other", "unknown", ("elementwise", "mask", "rng", "triton", "other", "copy", "index")),
    ("communication", "communication", ("comm",)),
    ("copies and fills", "memcpy", ("memcpy", "memset")),
)
FAMILY_OF = {kind: at for at, (_, _, kinds) in enumerate(FAMILIES) for kind in kinds}
GROUP_OF_FAMILY = np.array([COMPUTE, COMPUTE, COMPUTE, COMPUTE, COMM, COPY], dtype=np.int8)
PIXELS = 1500  # across a picture; bars closer than one of them are drawn as one


@dataclass(frozen=True)
class Span:
    """A forward (or step) as the device saw it: from the first start to the last end of what it launched, us."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Bars:
    """Bars (n,) by row, then start; row indexes `rows`, name `names`, family FAMILIES. overlap_us is per lane."""

    rows: list[str]
    lane: list[tuple[int, int]]  # (rank, device) of each row: what can overlap
    row: np.ndarray
    start_us: np.ndarray
    dur_us: np.ndarray
    family: np.ndarray
    name: np.ndarray
    names: list[str]
    device: np.ndarray
    stream: np.ndarray
    marks: list[Span]
    overlap: dict[tuple[int, int], np.ndarray]  # (rank, device) -> union of spans (m, 2), us

    @property
    def end_us(self) -> float:
        return float((self.start_us + self.dur_us).max()) if len(self.row) else 0.0


def bars_of(ranks: Sequence[RankData]) -> Bars:
    """All launches of all ranks on a common zero."""
    frame: pd.DataFrame = pd.concat([_frame(rank) for rank in ranks], ignore_index=True)
    zero_ns = int(frame["start_ns"].min()) if len(frame) else 0
    frame["start_us"] = (frame["start_ns"] - zero_ns) / 1000
    frame["group"] = GROUP_OF_FAMILY[frame["family"].to_numpy()]
    keys = ["rank", "device", "stream", "group"]
    several = frame["rank"].nunique() > 1
    lanes = sorted(set(map(tuple, frame[keys].drop_duplicates().to_numpy().tolist())))
    place = {lane: at for at, lane in enumerate(lanes)}
    frame["row"] = [place[lane] for lane in map(tuple, frame[keys].to_numpy().tolist())]
    frame = frame.sort_values(["row", "start_us"], kind="stable")
    codes, names = pd.factorize(frame["name"])
    return Bars(
        rows=[_row_label(lane, several) for lane in lanes],
        lane=[lane[:2] for lane in lanes],
        row=frame["row"].to_numpy(),
        start_us=frame["start_us"].to_numpy(),
        dur_us=frame["dur_us"].to_numpy(),
        family=frame["family"].to_numpy(),
        name=codes,
        names=[str(name) for name in names],
        device=frame["device"].to_numpy(),
        stream=frame["stream"].to_numpy(),
        marks=_marks(ranks, zero_ns),
        overlap=_overlaps(frame),
    )


def _frame(rank: RankData) -> pd.DataFrame:
    table = rank.trace.kernels if rank.on_gpu else rank.trace.ops
    table = table.take(rank.rows)
    names = rank.trace.text(table.name_id)
    ops = np.full(len(table), "", dtype=object)
    known = rank.owner >= 0
    ops[known] = rank.trace.text(rank.trace.ops.name_id[rank.owner[known]])
    kinds = [KINDS[kind] for kind in table.kind.tolist()] if rank.on_gpu else ["cpu_op"] * len(table)
    comm = set(rank.trace.collectives.kernel.tolist()) if rank.on_gpu else set()
    family = {}
    found = np.empty(len(table), dtype=np.int8)
    for at, key in enumerate(zip(names.tolist(), ops.tolist(), kinds, strict=True)):
        if key not in family:
            family[key] = FAMILY_OF[_class(*key)]
        found[at] = FAMILY_OF["comm"] if at in comm else family[key]
    bars: pd.DataFrame = pd.DataFrame(
        {
            "rank": rank.rank,
            "device": table.device if rank.on_gpu else -1,
            "stream": table.stream if rank.on_gpu else table.tid,
            "start_ns": table.ts_ns,
            "dur_us": table.dur_ns / 1000,
            "family": found,
            "name": names,
        }
    )
    return bars


def _class(name: str, op: str, kind: str) -> str:
    return class_of_op(op) if kind == "cpu_op" else kind if kind != "kernel" else class_of(name, op)


def _row_label(lane: tuple[int, ...], several: bool) -> str:
    rank, device, stream, group = lane
    where = f"stream {stream}" if device >= 0 else f"thread {stream}"
    return " ".join(
        filter(
            None,
            [
                f"rank {rank}" if several else "",
                f"GPU {device}" if device >= 0 else "CPU",
                where,
                GROUPS[group],
            ],
        )
    )


def _marks(ranks: Sequence[RankData], zero_ns: int) -> list[Span]:
    """The forwards of the first rank that has any, by what they launched."""
    for rank in ranks:
        start = rank.start_ns()
        table = rank.trace.kernels if rank.on_gpu else rank.trace.ops
        end = start + table.dur_ns[rank.rows]
        found = []
        for at, name in enumerate(rank.marks.names):
            mine = rank.mark == at
            if mine.any():
                found.append(
                    Span(
                        name,
                        (int(start[mine].min()) - zero_ns) / 1000,
                        (int(end[mine].max()) - zero_ns) / 1000,
                    )
                )
        if found:
            return found
    return []


def _overlaps(frame: pd.DataFrame) -> dict[tuple[int, int], np.ndarray]:
    """Where compute runs beside communication or copies of the same rank and device, us."""
    found = {}
    for _, rows in frame.groupby(["rank", "device"]):
        every = np.stack([rows["start_us"], rows["start_us"] + rows["dur_us"]], axis=1)
        every = np.rint(every * 1000).astype(np.int64)
        compute = (rows["group"] == COMPUTE).to_numpy()
        found[int(rows["rank"].iloc[0]), int(rows["device"].iloc[0])] = (
            intersect(every[compute], every[~compute]) / 1000
        )
    return found


def window(bars: Bars, step: str | None) -> tuple[float, float]:
    """The time shown, us: everything, or the forward named `step` with a little before and after."""
    from lab.errors import MissingError

    if step is None:
        return 0.0, bars.end_us
    for mark in bars.marks:
        if step in (mark.name, mark.name.rpartition("#")[2]):
            edge = 0.02 * (mark.end_us - mark.start_us)
            return mark.start_us - edge, mark.end_us + edge
    known = ", ".join(mark.name for mark in bars.marks[:8])
    raise MissingError(
        f"no forward or step {step!r} in the trace",
        fix=f"one of: {known}" if known else "the trace has no marks: leave --step out",
    )


def merged(bars: Bars, low_us: float, high_us: float, pixels: int = PIXELS) -> pd.DataFrame:
    """Bars inside the window, in a picture's resolution: columns row, family, start_us, dur_us, busy.

    A pixel that several families share belongs to the one with most time in it; busy is the share of it that anything
    runs, in quarters rounded up. Neighbours that are alike are joined.
    """
    pixel = max((high_us - low_us) / pixels, 1e-3)
    edges = low_us + pixel * np.arange(pixels + 1)
    end_us = bars.start_us + bars.dur_us
    inside = (bars.start_us < high_us) & (end_us > low_us)
    parts = []
    for row in range(len(bars.rows)):
        mine = inside & (bars.row == row)
        covered = np.stack(
            [
                _covered(bars.start_us[mine & (bars.family == at)], end_us[mine & (bars.family == at)], edges)
                for at in range(len(FAMILIES))
            ]
        )
        winner = np.where(covered.max(axis=0) > 0, covered.argmax(axis=0), -1)
        quarters = np.ceil(np.minimum(covered.sum(axis=0) / (pixel * 1000), 1.0) * 4 - 1e-6).astype(np.int64)
        alike = winner * 8 + quarters
        first = np.flatnonzero(np.diff(alike, prepend=alike[:1] - 1) != 0)
        last = np.append(first[1:], len(winner))
        some = winner[first] >= 0
        parts.append(
            pd.DataFrame(
                {
                    "row": row,
                    "family": winner[first][some],
                    "start_us": edges[first][some],
                    "dur_us": (edges[last] - edges[first])[some],
                    "busy": quarters[first][some] / 4,
                }
            )
        )
    shown: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return shown


def _covered(start_us: np.ndarray, end_us: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Time (p,) that bars (n,) cover between each two `edges` (p + 1,), each instant once."""
    ticks = np.rint(np.stack([start_us, np.maximum(end_us, start_us + 1e-3)], axis=1) * 1000).astype(np.int64)
    once = union(ticks)
    if not len(once):
        return np.zeros(len(edges) - 1)
    lengths = np.cumsum(once[:, 1] - once[:, 0])
    before = np.stack([np.append(0, lengths[:-1]), lengths], axis=1).ravel()
    found: np.ndarray = np.diff(np.interp(edges * 1000, once.ravel(), before))
    return found


def draw(bars: Bars, *, step: str | None = None) -> Any:
    """The picture: a row a stream and group, families by colour, forwards as bands, overlap shaded. A matplotlib Figure."""
    from lab.report.figures import timeline

    low_us, high_us = window(bars, step)
    shown = merged(bars, low_us, high_us)
    bands = [
        (mark.name, mark.start_us / 1000, mark.end_us / 1000)
        for mark in bars.marks
        if mark.end_us > low_us and mark.start_us < high_us
    ]
    shades = [
        (at, piece[0] / 1000, piece[1] / 1000)
        for at, lane in enumerate(bars.lane)
        for piece in _joined(bars.overlap[lane], low_us, high_us)
    ]
    parts = {
        (name, role): shown[shown["family"] == at][["row", "start_us", "dur_us", "busy"]].to_numpy(
            dtype=float
        )
        / [1, 1000, 1000, 1]
        for at, (name, role, _) in enumerate(FAMILIES)
        if (shown["family"] == at).any()
    }
    return timeline(
        bars.rows,
        parts,
        span=(low_us / 1000, high_us / 1000),
        bands=bands,
        shades=shades,
        axis="ms since the first launch",
    )


def _joined(pieces_us: np.ndarray, low_us: float, high_us: float) -> np.ndarray:
    """Overlap inside the window, pieces closer than a pixel joined."""
    pixel = max((high_us - low_us) / PIXELS, 1e-3)
    pieces = pieces_us[(pieces_us[:, 1] > low_us) & (pieces_us[:, 0] < high_us)]
    ticks = np.stack([np.floor(pieces[:, 0] / pixel), np.ceil(pieces[:, 1] / pixel)], axis=1).astype(np.int64)
    joined: np.ndarray = union(ticks) * pixel
    return joined


def table(bars: Bars) -> pd.DataFrame:
    """A row a bar: name, start_ms, dur_ms, device, stream, category, as the original's CSV; and the row it is drawn in."""
    names = np.array(bars.names, dtype=object)
    families = np.array([name for name, _, _ in FAMILIES], dtype=object)
    rows = np.array(bars.rows, dtype=object)
    found: pd.DataFrame = pd.DataFrame(
        {
            "name": names[bars.name] if len(bars.name) else [],
            "start_ms": bars.start_us / 1000,
            "dur_ms": bars.dur_us / 1000,
            "device": bars.device,
            "stream": bars.stream,
            "category": families[bars.family],
            "row": rows[bars.row],
        }
    )
    return found


def packed(bars: Bars) -> dict[str, Any]:
    """The bars for the page's canvas: typed arrays in base64, little endian, times in ticks that fit 32 bits."""
    tick_us = max(0.001, bars.end_us / 2**31)
    return {
        "tickUs": tick_us,
        "count": len(bars.row),
        "rows": bars.rows,
        "names": [short_name(name) for name in bars.names],
        "families": [{"name": name, "role": role} for name, role, _ in FAMILIES],
        "start": _base64(np.rint(bars.start_us / tick_us), "<u4"),
        "dur": _base64(np.rint(bars.dur_us / tick_us), "<u4"),
        "row": _base64(bars.row, "<u2"),
        "family": _base64(bars.family, "<u1"),
        "name": _base64(bars.name, "<u4"),
        "marks": [[mark.name, mark.start_us, mark.end_us] for mark in bars.marks],
        "shades": [
            [at, *map(float, piece)]
            for at, lane in enumerate(bars.lane)
            for piece in _joined(bars.overlap[lane], 0.0, bars.end_us * 1.001)
        ],
    }


def head(bars: Bars, most: int) -> Bars:
    """The first `most` bars by time, rows as they are."""
    kept = np.zeros(len(bars.row), dtype=bool)
    kept[np.argsort(bars.start_us, kind="stable")[:most]] = True
    columns = {
        name: getattr(bars, name)[kept]
        for name in ("row", "start_us", "dur_us", "family", "name", "device", "stream")
    }
    return replace(bars, **columns)


def _base64(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values.astype(kind)).tobytes()).decode()


def busy(bars: Bars) -> pd.DataFrame:
    """Per rank and device: time with something running, compute, exposed communication and copies, idle, ms."""
    rows = []
    for lane in sorted(set(bars.lane)):
        mine = np.isin(bars.row, [at for at, one in enumerate(bars.lane) if one == lane])
        every = spans(
            np.rint(bars.start_us[mine] * 1000).astype(np.int64),
            np.rint(bars.dur_us[mine] * 1000).astype(np.int64),
        )
        group = GROUP_OF_FAMILY[bars.family[mine]]
        merged_ns = union(every)
        whole = int(merged_ns[-1, 1] - merged_ns[0, 0]) if len(merged_ns) else 0
        parts = {f"{name}_ms": total(every[group == at]) / 1e6 for at, name in enumerate(GROUPS)}
        overlap = bars.overlap[lane]
        rows.append(
            {
                "rank": lane[0],
                "device": lane[1],
                "launches": int(mine.sum()),
                "span_ms": whole / 1e6,
                "busy_ms": total(every) / 1e6,
                "idle_ms": (whole - total(every)) / 1e6,
                **parts,
                "overlap_ms": float((overlap[:, 1] - overlap[:, 0]).sum()) / 1000,
            }
        )
    found: pd.DataFrame = pd.DataFrame(rows)
    return found


def write_gantt(bars: Bars, out: Path, *, step: str | None = None) -> list[Path]:
    """gantt.csv and gantt.png in `out`; the page is the report's."""
    from lab.report.figures import save_png
    from lab.report.tables import write_csv
    from lab.rooms.kernels.schema import TABLES

    return [
        write_csv(table(bars), out / TABLES / "gantt.csv"),
        save_png(draw(bars, step=step), out / "figures" / "gantt.png", dpi=150),
    ]
