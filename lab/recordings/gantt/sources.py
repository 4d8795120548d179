"""Where the program launched an operation: a line of the model, or the generated file of its kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.compiled import is_inductor, read_inductor
from lab.recordings.graphs.frames import Frames, read_frames
from lab.recordings.tables import Table


def sources_of(capture: Capture, operator: np.ndarray) -> np.ndarray:
    """Texts (n,) for operators that are rows of `capture.ranges` (n,), -1 for none; "" where none is known.

    The innermost line outside the framework that was running when the operator began, recorded with
    with_stack; else Inductor's generated file. Only torch.profiler records either.
    """
    blank = np.full(len(operator), "", dtype=object)
    if capture.collector != "kineto" or not (operator >= 0).any():
        return blank
    used, position = np.unique(operator, return_inverse=True)
    ranges = capture.ranges.take(np.maximum(used, 0))
    sources = np.full(len(used), "", dtype=object)
    if capture.meta.stacks:
        sources = lines_of(read_frames(capture.source), ranges)
    if any(map(is_inductor, capture.strings)):
        sources = np.where(sources == "", generated_files(capture.source, ranges.external_id), sources)
    sources[used < 0] = ""
    texts: np.ndarray = sources[position.reshape(-1)]
    return texts


def lines_of(frames: Frames, ranges: Table) -> np.ndarray:
    """`model.py:12 forward` (n,) of what ran when each range (pid, tid, start_ns) began, "" for none."""
    lines: np.ndarray = np.array(
        [*frames.lines(ranges.pid, ranges.tid, ranges.start_ns, generated=False), ""], dtype=object
    )[:-1]
    return lines


def generated_files(path: Path, external_id: np.ndarray) -> np.ndarray:
    """`cabc...xyz.py` (n,) of the Inductor kernels of operators with these External ids, "" for others."""
    kernels = read_inductor(path)
    return np.array(
        [f"{kernels[one].hash}.py" if one in kernels else "" for one in external_id.tolist()] + [""],
        dtype=object,
    )[:-1]
