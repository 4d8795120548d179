"""Launches as bars: one row each for compute, communication and copies of every stream.

A picture draws by pixels, each as strong as it is busy, so idle time stays visible among 65,000 launches; the
page draws every launch on a canvas, so a zoom shows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lab.rooms.kernels.catalogue.classes import class_of_launch
from lab.rooms.kernels.catalogue.rank import KINDS, RankData
from lab.stats.intervals import intersect

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
FAMILY_OF = {kind: index for index, (_, _, kinds) in enumerate(FAMILIES) for kind in kinds}
GROUP_OF_FAMILY = np.array([COMPUTE, COMPUTE, COMPUTE, COMPUTE, COMM, COPY], dtype=np.int8)


@dataclass(frozen=True)
class Span:
    """A forward or step on the device: from the first start to the last end of what it launched, us."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Bars:
    """Bars (n,) by row, then start. row is an index into `rows`, name into `names`, family into FAMILIES."""

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
    row_of = {lane: row for row, lane in enumerate(lanes)}
    frame["row"] = [row_of[lane] for lane in map(tuple, frame[keys].to_numpy().tolist())]
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
    ops = rank.op_names()
    kinds = [KINDS[kind] for kind in table.kind.tolist()] if rank.on_gpu else ["cpu_op"] * len(table)
    comm = set(rank.trace.collectives.kernel.tolist()) if rank.on_gpu else set()
    family = {}
    found = np.empty(len(table), dtype=np.int8)
    for index, key in enumerate(zip(names.tolist(), ops.tolist(), kinds, strict=True)):
        if key not in family:
            family[key] = FAMILY_OF[class_of_launch(*key)]
        found[index] = FAMILY_OF["comm"] if index in comm else family[key]
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


def _row_label(lane: tuple[int, ...], several: bool) -> str:
    rank, device, stream, group = lane
    where = f"GPU {device} stream {stream}" if device >= 0 else f"CPU thread {stream}"
    return f"{f'rank {rank} ' if several else ''}{where} {GROUPS[group]}"


def _marks(ranks: Sequence[RankData], zero_ns: int) -> list[Span]:
    """The forwards of the first rank that has any, by what they launched."""
    for rank in ranks:
        start = rank.start_ns()
        table = rank.trace.kernels if rank.on_gpu else rank.trace.ops
        end = start + table.dur_ns[rank.rows]
        found = []
        for index, name in enumerate(rank.marks.names):
            mine = rank.mark == index
            if mine.any():
                first_ns, last_ns = int(start[mine].min()), int(end[mine].max())
                found.append(Span(name, (first_ns - zero_ns) / 1000, (last_ns - zero_ns) / 1000))
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
        lane = int(rows["rank"].iloc[0]), int(rows["device"].iloc[0])
        found[lane] = intersect(every[compute], every[~compute]) / 1000
    return found


def head(bars: Bars, most: int) -> Bars:
    """The first `most` bars by time, rows as they are."""
    kept = np.zeros(len(bars.row), dtype=bool)
    kept[np.argsort(bars.start_us, kind="stable")[:most]] = True
    columns = ("row", "start_us", "dur_us", "family", "name", "device", "stream")
    return replace(bars, **{name: getattr(bars, name)[kept] for name in columns})
