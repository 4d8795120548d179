"""From a projected capture of either collector to the operations and ranges of its measured steps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.capture import KERNEL, OP, Capture
from lab.recordings.projection import AMBIGUOUS, RULES, Projection
from lab.rooms.nsys.cpu_ops import cpu_ops_of
from lab.rooms.nsys.measured import (
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
        lacks=capture.lacks,
        coverage=_coverage(inside),
        cpu_ops=cpu_ops_of(capture, steps),
    )


def _gpu(capture: Capture) -> dict[str, object]:
    """The first GPU with the keys of cell.json; nsys records all, Kineto only the name."""
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
    """Rows of the measured steps and their numbers: ranges `step_N`, otherwise the projection's steps."""
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

    Without a range `forward` inside ranges `forward_step_N`, the step is the phase.
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
    number = np.full(len(parent) + 1, -1, dtype=np.int64)
    number[steps] = numbers
    at = np.arange(len(parent))
    padded = np.append(parent, -1)
    while len(todo := np.flatnonzero((at >= 0) & (number[at] < 0))):
        at[todo] = padded[at[todo]]
    found: np.ndarray = np.where(at >= 0, number[at], -1)
    return found


def _coverage(ops: pd.DataFrame) -> dict[str, tuple[int, float]]:
    took = ops["end_ns"] - ops["start_ns"]
    return {str(rule): (len(rows), float(took[rows.index].sum() / 1e6)) for rule, rows in ops.groupby("rule")}
