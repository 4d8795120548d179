"""A capture of either collector -> the measured steps' operations and ranges, in the words of this room."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.capture import KERNEL, OP, Capture
from lab.recordings.projection import AMBIGUOUS, RULES, Projection
from lab.rooms.nsys.analyze import (
    OPS,
    PARTS,
    PHASES,
    RANGES,
    STEP,
    Recording,
    class_of,
    normalised,
    step_number,
)
from lab.stats.intervals import enclosing


def recording_of(projection: Projection) -> Recording:
    """Operations and ranges of the measured steps; kernels outside every step are only counted."""
    capture = projection.capture
    steps, numbers = step_rows(projection)
    named = phase_rows(capture, steps)
    ops = _ops_frame(projection, steps, numbers, named)
    inside = ops[ops["step"] >= 0].reset_index(drop=True)
    return Recording(
        ops=inside,
        ranges=_ranges_frame(projection, steps, numbers, named),
        collector=capture.collector,
        version=capture.version or "",
        device=", ".join(dict.fromkeys(device.name for device in capture.devices)),
        gpu=_gpu(capture),
        outside_steps=int((ops["step"] < 0).sum()),
        ambiguous=int((projection.ops.rule == AMBIGUOUS).sum()),
        problems=(*capture.problems, *projection.problems),
        coverage=_coverage(inside),
        cpu_ops=_cpu_ops(capture, steps),
    )


def _gpu(capture: Capture) -> dict[str, object]:
    """What the capture knows of its first GPU, in the words of cell.json; nsys knows all of it, Kineto the name."""
    if not capture.devices:
        return {}
    first = capture.devices[0]
    known = {
        "name": first.name,
        "capability": ".".join(map(str, first.compute)) if first.compute else None,
        "sm_count": first.num_sms,
        "clock_hz": first.clock_hz,
        "bytes_per_s": first.bandwidth_bytes_per_s,
    }
    return {name: value for name, value in known.items() if value}


def step_rows(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the measured steps and their numbers: `step_N` first, else whatever the projection takes for steps."""
    capture = projection.capture
    by_text = {i: step_number(text) for i, text in enumerate(capture.strings) if step_number(text) >= 0}
    numbers = np.array([*(by_text.get(i, -1) for i in range(len(capture.strings))), -1])
    user = capture.ranges.kind != OP
    rows = np.flatnonzero((numbers[capture.ranges.name_id] >= 0) & user)
    if len(rows):
        return rows, numbers[capture.ranges.name_id[rows]]
    return projection.steps, np.arange(len(projection.steps))


def phase_rows(capture: Capture, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the phases' and attention parts' ranges, by their normalised name.

    A capture of forward passes alone may name no `forward` inside its `forward_step_N`: the step is the phase then.
    """
    wanted: dict[str, list[int]] = {name: [] for name in (*PHASES, *PARTS)}
    for index, text in enumerate(capture.strings):
        name = {"optimizer": "optimizer_step"}.get(normalised(text), normalised(text))
        if name in wanted:
            wanted[name].append(index)
    user = capture.ranges.kind != OP
    rows = {name: np.flatnonzero(np.isin(capture.ranges.name_id, ids) & user) for name, ids in wanted.items()}
    if not len(rows["forward"]) and len(steps):
        texts = {normalised(capture.name(int(i))) for i in np.unique(capture.ranges.name_id[steps])}
        if all(text.startswith("forward_step") for text in texts):
            rows["forward"] = steps
    return rows


def _ops_frame(
    projection: Projection, steps: np.ndarray, numbers: np.ndarray, named: dict[str, np.ndarray]
) -> pd.DataFrame:
    capture = projection.capture
    step = projection.owners(steps)
    texts = capture.text(capture.ops.name_id)
    classes = {name: class_of(name) for name in set(texts)}
    frame: pd.DataFrame = pd.DataFrame(
        {
            "step": np.append(numbers, -1)[step],
            "phase": _owner_names(projection, PHASES, named),
            "part": _owner_names(projection, PARTS, named),
            "name": texts,
            "class": [classes[name] for name in texts],
            "kernel": capture.ops.kind == KERNEL,
            "start_ns": capture.ops.start_ns,
            "end_ns": capture.ops.end_ns,
            "rule": np.array(RULES, dtype=object)[projection.ops.rule],
        },
        columns=OPS,
    )
    return frame


def _owner_names(projection: Projection, names: tuple[str, ...], named: dict[str, np.ndarray]) -> np.ndarray:
    """For each operation the innermost of the ranges with these names around it, "" for none."""
    rows = np.concatenate([named[name] for name in names])
    labels = np.concatenate([np.full(len(named[name]), name, dtype=object) for name in names])
    found: np.ndarray = np.append(labels, "")[projection.owners(rows)]
    return found


def _ranges_frame(
    projection: Projection, steps: np.ndarray, numbers: np.ndarray, named: dict[str, np.ndarray]
) -> pd.DataFrame:
    """Host times of steps, phases and parts that lie in a measured step."""
    ranges = projection.capture.ranges
    step_of = _step_of_ranges(projection, steps, numbers)
    found = [(STEP, steps), *named.items()]
    frames = [
        pd.DataFrame(
            {
                "step": step_of[rows],
                "name": name,
                "start_ns": ranges.start_ns[rows],
                "end_ns": ranges.end_ns[rows],
            },
            columns=RANGES,
        )
        for name, rows in found
    ]
    frame: pd.DataFrame = pd.concat(frames, ignore_index=True)
    frame = frame[frame["step"] >= 0].sort_values("start_ns", kind="stable").reset_index(drop=True)
    return frame


def _step_of_ranges(projection: Projection, steps: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The step number around each range (n,), its own for a step, -1 outside all."""
    parent = projection.instances.parent
    place = np.full(len(parent) + 1, -1, dtype=np.int64)
    place[steps] = numbers
    at = np.arange(len(parent))
    padded = np.append(parent, -1)
    while len(todo := np.flatnonzero((at >= 0) & (place[at] < 0))):
        at[todo] = padded[at[todo]]
    found: np.ndarray = np.where(at >= 0, place[at], -1)
    return found


def _coverage(ops: pd.DataFrame) -> dict[str, tuple[int, float]]:
    took = ops["end_ns"] - ops["start_ns"]
    return {str(rule): (len(rows), float(took[rows.index].sum() / 1e6)) for rule, rows in ops.groupby("rule")}


def _cpu_ops(capture: Capture, steps: np.ndarray) -> pd.DataFrame:
    """The framework's own operators within the steps: calls and self time a step, costliest first; Kineto only."""
    ranges = capture.ranges
    first, last = (ranges.start_ns[steps], ranges.end_ns[steps]) if len(steps) else (np.empty(0), np.empty(0))
    order = np.argsort(first)
    place = np.searchsorted(first[order], ranges.start_ns, side="right") - 1
    inside = (place >= 0) & (ranges.kind == OP)
    inside[inside] &= ranges.start_ns[inside] < last[order][place[inside]]
    rows = np.flatnonzero(inside)
    self_ns = (ranges.end_ns - ranges.start_ns).astype(np.int64)
    parents = _parents(capture)
    child = np.flatnonzero((parents >= 0) & (ranges.kind == OP))
    np.subtract.at(self_ns, parents[child], (ranges.end_ns - ranges.start_ns)[child])
    found = pd.DataFrame({"op": capture.text(ranges.name_id[rows]), "ns": self_ns[rows]})
    grouped = found.groupby("op")["ns"].agg(["size", "sum"]).sort_values("sum", ascending=False)
    num = max(1, len(steps))
    frame: pd.DataFrame = pd.DataFrame(
        {
            "op": grouped.index,
            "calls": grouped["size"].to_numpy() / num,
            "self_ms": grouped["sum"].to_numpy() / num / 1e6,
        }
    )
    return frame


def _parents(capture: Capture) -> np.ndarray:
    """The range around each range on its thread (n,), or -1."""
    ranges = capture.ranges
    parents = np.full(len(ranges), -1, dtype=np.int64)
    order = np.lexsort((-ranges.end_ns, ranges.start_ns, ranges.tid, ranges.pid))
    key = np.stack([ranges.pid[order], ranges.tid[order]], axis=1)
    cuts = np.flatnonzero((key[1:] != key[:-1]).any(axis=1)) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            around = enclosing(np.stack([ranges.start_ns[rows], ranges.end_ns[rows]], axis=1))
            parents[rows] = np.where(around >= 0, rows[around], -1)
    return parents
