"""Bars: every launch with its place on the chart, and the texts that a reader can search and colour by."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lab.recordings.integrity.words import busy_and_idle
from lab.recordings.lacks import Lack
from lab.recordings.names import short_name
from lab.stats.columns import distinct_rows
from lab.stats.intervals import intersect, spans, total, union

PIXELS = 1500  # across a picture; pieces closer than one of them are drawn as one


def packed(bars: Bars) -> dict[str, Any]:
    """Arrays in base64 of deflate, little endian; times in ticks that fit 32 bits.

    A bar is its row, start (as the distance from the bar before), duration and kind; `kinds` holds name,
    family and labels of each distinct kind as columns of indices into `texts`.
    """
    # A browser's typed arrays have 32 bits: ns while that holds 2.1 s, coarser ticks beyond.
    tick_us = max(0.001, bars.end_us / (2**31 - 1))
    start = np.rint(bars.start_us / tick_us).astype(np.int64)
    kind_of_bar, kinds, texts = kinds_of(bars)
    return {
        "tickUs": tick_us,
        "count": len(bars.row),
        "rows": bars.rows,
        "families": [{"name": name, "role": role} for name, role, _ in FAMILIES],
        "texts": texts,
        "short": [short_name(name) for name in bars.names],
        "kinds": kinds,
        "start": _packed(np.diff(start, prepend=0), "<i4"),
        "dur": _packed(np.rint(bars.dur_us / tick_us), "<u4"),
        "row": _packed(bars.row, "<u4"),
        "kind": _packed(kind_of_bar, "<u4"),
        "marks": [[mark.name, mark.start_us, mark.end_us] for mark in bars.marks],
        "shades": [
            [row, *map(float, piece)]
            for row, lane in enumerate(bars.lane)
            for piece in joined(bars.overlap[lane], 0.0, bars.end_us * 1.001)
        ],
    }


def kinds_of(bars: Bars) -> tuple[np.ndarray, dict[str, list[int]], list[str]]:
    """The kind (n,) of each bar, the columns of the kinds, and their texts: names first, then labels."""
    shift = len(bars.names)
    columns = {"name": bars.name, "family": bars.family}
    for name in LABELS:
        if name in bars.labels:
            columns[name] = np.where(bars.labels[name] >= 0, bars.labels[name] + shift, -1)
    distinct, key = distinct_rows(np.stack([*columns.values()], axis=1).astype(np.int64))
    kinds: dict[str, list[int]] = dict(zip(columns, distinct.T.tolist(), strict=True))
    return key, kinds, [*bars.names, *bars.texts]


def _packed(values: np.ndarray, kind: str) -> str:
    raw = np.ascontiguousarray(values.astype(kind)).tobytes()
    return base64.b64encode(zlib.compress(raw, 6)).decode()


def joined(pieces_us: np.ndarray, low_us: float, high_us: float) -> np.ndarray:
    """Overlap inside the window, pieces closer than a pixel joined."""
    pixel = max((high_us - low_us) / PIXELS, 1e-3)
    pieces = pieces_us[(pieces_us[:, 1] > low_us) & (pieces_us[:, 0] < high_us)]
    ticks = np.stack([np.floor(pieces[:, 0] / pixel), np.ceil(pieces[:, 1] / pixel)], axis=1).astype(np.int64)
    merged: np.ndarray = union(ticks) * pixel
    return merged


COMPUTE, COMM, COPY = 0, 1, 2
CPU, UNKNOWN_DEVICE = -1, -2  # in place of a GPU's number
GROUPS = ("compute", "communication", "copies")
# Families of classes, each with a colour role of the page's palette.
FAMILIES = (
    ("matrix products", "computation", ("gemm", "gemv", "splitk_reduce", "conv", "quant")),
    ("attention", "ok", ("attention", "rope", "scan")),
    ("norm, softmax, sums", "warn", ("norm", "softmax", "reduce", "optimizer")),
    ("elementwise and other", "unknown", ("elementwise", "mask", "rng", "triton", "other", "copy", "index")),
    ("communication", "communication", ("comm",)),
    ("copies and fills", "memcpy", ("memcpy", "memset")),
)
FAMILY_OF = {kind: index for index, (_, _, kinds) in enumerate(FAMILIES) for kind in kinds}
GROUP_OF_FAMILY = np.array([COMPUTE, COMPUTE, COMPUTE, COMPUTE, COMM, COPY], dtype=np.int8)
LABELS = ("op", "module", "phase", "shapes", "source", "change")  # what a bar may say beside its name


@dataclass(frozen=True)
class Span:
    """A forward or step on the device: from the first start to the last end of what it launched, us."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Bars:
    """Bars (n,) by row, then start. row is an index into `rows`, name into `names`, family into FAMILIES.

    labels: of LABELS those that are known, each as indices (n,) into `texts`, -1 where a bar has none.
    """

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
    labels: dict[str, np.ndarray]
    texts: list[str]
    order: np.ndarray  # of each bar: the row of the frame that it was made of

    @property
    def end_us(self) -> float:
        return float((self.start_us + self.dur_us).max()) if len(self.row) else 0.0


def assemble(frame: pd.DataFrame, marks: Sequence[Span], ranks: dict[int, str] | None = None) -> Bars:
    """Bars of launches: columns rank, device, stream, start_us, dur_us, family, name, and any of LABELS.

    device is CPU for a CPU's threads. ranks names the ranks on the rows where there are several.
    """
    frame = frame.assign(group=GROUP_OF_FAMILY[frame["family"].to_numpy()])
    keys = ["rank", "device", "stream", "group"]
    names = ranks or {}
    if not names and frame["rank"].nunique() > 1:
        names = {rank: f"rank {rank}" for rank in frame["rank"].unique().tolist()}
    grouped = frame.groupby(keys, sort=True)
    frame = frame.assign(row=grouped.ngroup(), order=np.arange(len(frame)))
    frame = frame.sort_values(["row", "start_us"], kind="stable")
    lanes = frame[keys].drop_duplicates().to_numpy().tolist()
    codes, kernel_names = pd.factorize(frame["name"])
    labels, texts = _labels(frame)
    return Bars(
        rows=[_row_label(lane, names) for lane in lanes],
        lane=[(lane[0], lane[1]) for lane in lanes],
        row=frame["row"].to_numpy(),
        start_us=frame["start_us"].to_numpy(),
        dur_us=frame["dur_us"].to_numpy(),
        family=frame["family"].to_numpy(),
        name=codes,
        names=[str(name) for name in kernel_names],
        device=frame["device"].to_numpy(),
        stream=frame["stream"].to_numpy(),
        marks=list(marks),
        overlap=_overlaps(frame),
        labels=labels,
        texts=texts,
        order=frame["order"].to_numpy(),
    )


def _labels(frame: pd.DataFrame) -> tuple[dict[str, np.ndarray], list[str]]:
    """The labels that any bar has, and their texts."""
    labels: dict[str, np.ndarray] = {}
    texts: list[str] = []
    for name in LABELS:
        if name not in frame:
            continue
        codes, texts_of_label = pd.factorize(frame[name].where(frame[name] != "", None))
        if len(texts_of_label):
            labels[name] = np.where(codes >= 0, codes + len(texts), -1)
            texts += [str(text) for text in texts_of_label]
    return labels, texts


def _row_label(lane: Sequence[int], names: dict[int, str]) -> str:
    rank, device, stream, group = lane
    gpu = "GPU of unknown number" if device == UNKNOWN_DEVICE else f"GPU {device}"
    stream_name = f"stream {stream}" if stream >= 0 else "unknown stream"
    lane_name = f"CPU thread {stream}" if device == CPU else f"{gpu} {stream_name}"
    return f"{names.get(rank, '')} {lane_name} {GROUPS[group]}".strip()


def _overlaps(frame: pd.DataFrame) -> dict[tuple[int, int], np.ndarray]:
    """Where compute runs beside communication or copies of the same rank and device, us."""
    overlaps = {}
    for _, rows in frame.groupby(["rank", "device"]):
        slices = np.stack([rows["start_us"], rows["start_us"] + rows["dur_us"]], axis=1)
        slices = np.rint(slices * 1000).astype(np.int64)
        compute = (rows["group"] == COMPUTE).to_numpy()
        lane = int(rows["rank"].iloc[0]), int(rows["device"].iloc[0])
        overlaps[lane] = intersect(slices[compute], slices[~compute]) / 1000
    return overlaps


def head(bars: Bars, limit: int) -> Bars:
    """The first `limit` bars by time, rows as they are."""
    chosen = np.zeros(len(bars.row), dtype=bool)
    chosen[np.argsort(bars.start_us, kind="stable")[:limit]] = True
    columns = ("row", "start_us", "dur_us", "family", "name", "device", "stream", "order")
    labels = {name: ids[chosen] for name, ids in bars.labels.items()}
    return replace(bars, labels=labels, **{name: getattr(bars, name)[chosen] for name in columns})


def folded(bars: Bars, limit: int) -> Bars:
    """At most `limit` rows: those with least time are one, the last, which counts them."""
    if len(bars.rows) <= limit:
        return bars
    time_us = np.bincount(bars.row, weights=bars.dur_us, minlength=len(bars.rows))
    shown = np.sort(np.argsort(-time_us, kind="stable")[: limit - 1])
    place = np.full(len(bars.rows), len(shown))
    place[shown] = np.arange(len(shown))
    hidden = len(bars.rows) - len(shown)
    share = 1 - float(time_us[shown].sum()) / max(float(time_us.sum()), 1e-9)
    # Rows of several GPUs in one have no overlap of their own: a lane that no GPU has.
    nowhere = (min(rank for rank, _ in bars.lane) - 1, UNKNOWN_DEVICE)
    return replace(
        bars,
        rows=[*(bars.rows[row] for row in shown.tolist()), f"{hidden:,} more rows, {share:.1%} of the time"],
        lane=[*(bars.lane[row] for row in shown.tolist()), nowhere],
        row=place[bars.row],
        overlap={**bars.overlap, nowhere: np.empty((0, 2))},
    )


def busy_table(bars: Bars, lacks: Sequence[Lack] = ()) -> pd.DataFrame:
    """One row per rank and device: ms busy, idle, of each group, and of compute beside the others.

    bound says `busy at least, idle at most` where `lacks` names lost GPU rows.
    """
    bounds = busy_and_idle(lacks)
    rows = []
    for lane in sorted(set(bars.lane)):
        of_lane = np.isin(bars.row, [row for row, one in enumerate(bars.lane) if one == lane])
        slices = spans(
            np.rint(bars.start_us[of_lane] * 1000).astype(np.int64),
            np.rint(bars.dur_us[of_lane] * 1000).astype(np.int64),
        )
        group = GROUP_OF_FAMILY[bars.family[of_lane]]
        merged_ns = union(slices)
        span_ns = int(merged_ns[-1, 1] - merged_ns[0, 0]) if len(merged_ns) else 0
        parts = {f"{name}_ms": total(slices[group == index]) / 1e6 for index, name in enumerate(GROUPS)}
        overlap = bars.overlap[lane]
        rows.append(
            {
                "rank": lane[0],
                "device": lane[1],
                "launches": int(of_lane.sum()),
                "span_ms": span_ns / 1e6,
                "busy_ms": total(slices) / 1e6,
                "idle_ms": (span_ns - total(slices)) / 1e6,
                **parts,
                "overlap_ms": float((overlap[:, 1] - overlap[:, 0]).sum()) / 1000,
                "bound": bounds,
            }
        )
    table: pd.DataFrame = pd.DataFrame(rows)
    return table
