"""Bars of a capture, whatever tool recorded it: launches, with rows for compute, communication and copies."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.perfmodel.classes import CLASSES
from lab.recordings.capture import GRAPH, MODULE, OP, Capture
from lab.recordings.compiled import is_inductor, read_inductor
from lab.recordings.gantt.bars import FAMILY_OF, UNKNOWN_DEVICE, Bars, Span, assemble
from lab.recordings.graphs.frames import read_frames
from lab.recordings.projection import Projection
from lab.recordings.views import row_classes
from lab.stats.columns import objects


def sources_of(capture: Capture, operator: np.ndarray) -> np.ndarray:
    """Texts (n,) for operators that are rows of `capture.ranges` (n,), -1 for none; "" where none is known.

    The innermost line outside the framework that was running when the operator began, recorded with
    with_stack; else Inductor's generated file. Only torch.profiler records either.
    """
    if capture.collector != "kineto" or not (operator >= 0).any():
        return np.full(len(operator), "", dtype=object)
    used, position = np.unique(operator, return_inverse=True)
    ranges = capture.ranges.take(np.maximum(used, 0))
    sources = [""] * len(used)
    if capture.meta.stacks:
        frames = read_frames(capture.source)
        sources = frames.lines(ranges.pid, ranges.tid, ranges.start_ns, generated=False)
    if any(map(is_inductor, capture.strings)):
        kernels = read_inductor(capture.source)
        files = {number: f"{kernel.hash}.py" for number, kernel in kernels.items()}
        numbers = ranges.external_id.tolist()
        sources = [line or files.get(number, "") for line, number in zip(sources, numbers, strict=True)]
    texts = objects(sources)
    texts[used < 0] = ""
    of_operators: np.ndarray = texts[position.reshape(-1)]
    return of_operators


def bars_of_capture(projection: Projection) -> Bars:
    """Every operation on its GPU, one rank per process; phases, modules and operators from the projection."""
    capture = projection.capture
    ops = capture.ops
    # Unix times in us do not fit the 32-bit ticks of a page, so bars count from the first one.
    zero_ns = int(ops.start_ns.min()) if len(ops) else 0
    ranges = capture.ranges
    operator = projection.nearest(ranges.kind == OP)
    module = projection.nearest(capture.by_text(lambda text: text.startswith(MODULE), ranges.name_id))
    frame = pd.DataFrame(
        {
            "rank": ops.process,
            "device": np.where(ops.device < 0, UNKNOWN_DEVICE, ops.device),
            "stream": ops.stream,
            "start_us": (ops.start_ns - zero_ns) / 1000,
            "dur_us": (ops.end_ns - ops.start_ns) / 1000,
            "family": _families(capture),
            "name": capture.text(ops.name_id),
            "op": _texts(capture, ranges.name_id, operator),
            "module": _texts(capture, ranges.name_id, module),
            "phase": _phases(projection),
            "shapes": _texts(capture, ranges.dims_id, operator),
            "source": sources_of(capture, operator),
        }
    )
    return assemble(frame, _marks(projection, zero_ns), process_names(capture))


def _families(capture: Capture) -> np.ndarray:
    """The family (n,) of each operation, by the class that every table gives it."""
    families: np.ndarray = np.array([FAMILY_OF[kind] for kind in CLASSES], dtype=np.int8)[
        row_classes(capture)
    ]
    families[capture.ops.kind == GRAPH] = FAMILY_OF["other"]
    return families


def _texts(capture: Capture, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The text (n,) of the range in `rows`, "" where there is none."""
    texts: np.ndarray = capture.text(np.append(ids, -1)[rows])
    return texts


def _phases(projection: Projection) -> np.ndarray:
    """The path (n,) of the program's own ranges around each operation, without steps' numbers."""
    capture, tree = projection.capture, projection.tree
    steps = set(projection.capture.ranges.name_id[projection.steps].tolist())
    named_by_program = np.zeros(len(capture.strings) + 1, dtype=bool)
    named_by_program[capture.ranges.name_id[capture.ranges.kind != OP]] = True
    named_by_program &= np.array(
        [*("#" not in text and not text.startswith(MODULE) for text in capture.strings), False]
    )
    paths = [""]
    for node in range(1, len(tree)):
        above, name = paths[tree.parent[node]], int(tree.name_id[node])
        paths.append(
            f"{above}/{capture.name(name)}".strip("/")
            if named_by_program[name] and name not in steps
            else above
        )
    texts: np.ndarray = np.array(paths, dtype=object)[projection.ops.path]
    return texts


def _marks(projection: Projection, zero_ns: int) -> list[Span]:
    """The steps, by what they launched."""
    capture, steps = projection.capture, projection.steps
    begins, ends = projection.instances.first_ns[steps], projection.instances.last_ns[steps]
    names = capture.text(capture.ranges.name_id[steps]).tolist()
    return [
        Span(name, (start - zero_ns) / 1000, (end - zero_ns) / 1000)
        for name, start, end in zip(names, begins.tolist(), ends.tolist(), strict=True)
        if start >= 0
    ]


def process_names(capture: Capture) -> dict[int, str]:
    """Words for each process, where there are several."""
    if len(capture.processes) < 2:
        return {}
    return {
        index: f"rank {process.rank}"
        if process.rank is not None
        else f"process {index if process.pid is None else process.pid}"
        for index, process in enumerate(capture.processes)
    }
