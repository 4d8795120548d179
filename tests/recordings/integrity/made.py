"""Captures with known losses: rows taken out of a real or a made one."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lab.recordings.capture import API_COLUMNS, OPS_COLUMNS, RANGE_COLUMNS, Capture, Process, Strings, filled
from lab.recordings.integrity import integrity_of
from lab.recordings.lacks import Lack
from lab.recordings.load import load_capture
from lab.recordings.tables import KERNEL


@lru_cache(maxsize=16)
def loaded(path: Path) -> Capture:
    return load_capture(path)


def keep(capture: Capture, ops: np.ndarray | None = None, api: np.ndarray | None = None) -> Capture:
    """The capture with only the rows of these masks, and no finding of its reader."""
    return replace(
        capture,
        ops=capture.ops if ops is None else capture.ops.where(ops),
        api=capture.api if api is None else capture.api.where(api),
        lacks=(),
    )


def judged(capture: Capture) -> dict[tuple[str, str, str], Lack]:
    """The findings by (axis, place, rule)."""
    return {(one.axis, one.place, one.rule): one for one in integrity_of(capture)}


def made(
    calls: list[tuple[str, int]],
    rows: list[tuple[str, int]],
    *,
    collector: str = "kineto",
    processes: int = 1,
    tid: list[int] | None = None,
    process: list[int] | None = None,
) -> Capture:
    """calls and rows are (name, correlation), in order of time; all of `process` 0 unless said."""
    words = Strings()
    api = {
        "start_ns": np.arange(len(calls)) * 10,
        "end_ns": np.arange(len(calls)) * 10 + 5,
        "corr": np.array([corr for _, corr in calls], dtype=np.int64),
        "name_id": np.array([words.id(name) for name, _ in calls], dtype=np.int32),
        "tid": np.array(tid or [1] * len(calls)),
        "pid": np.ones(len(calls)),
        "process": np.array(process or [0] * len(calls)),
    }
    ops = {
        "start_ns": np.arange(len(rows)) * 10 + 1000,
        "end_ns": np.arange(len(rows)) * 10 + 1008,
        "corr": np.array([corr for _, corr in rows], dtype=np.int64),
        "name_id": np.array([words.id(name) for name, _ in rows], dtype=np.int32),
        "kind": np.array([1 if "Memcpy" in name else KERNEL for name, _ in rows]),
        "process": np.zeros(len(rows)),
    }
    return Capture(
        source=Path("made"),
        collector=collector,
        ops=filled(OPS_COLUMNS, ops),
        api=filled(API_COLUMNS, api),
        ranges=filled(RANGE_COLUMNS),
        strings=words.texts,
        processes=(Process(),) * processes,
    )
