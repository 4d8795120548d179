"""bars"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lab.rooms.kernels.catalogue.classes import class_of, class_of_op
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


FAMILY_OF = {kind: at for at, (_, _, kinds) in enumerate(FAMILIES) for kind in kinds}


GROUP_OF_FAMILY = np.array([COMPUTE, COMPUTE, COMPUTE, COMPUTE, COMM, COPY], dtype=np.int8)


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


def head(bars: Bars, most: int) -> Bars:
    """The first `most` bars by time, rows as they are."""
    kept = np.zeros(len(bars.row), dtype=bool)
    kept[np.argsort(bars.start_us, kind="stable")[:most]] = True
    columns = {
        name: getattr(bars, name)[kept]
        for name in ("row", "start_us", "dur_us", "family", "name", "device", "stream")
    }
    return replace(bars, **columns)
