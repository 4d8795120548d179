"""The measured steps of a capture: operations and ranges, by step, phase and part of attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lab.perfmodel.boards import Board, board_of
from lab.recordings.capture import KERNEL, OP, Process
from lab.recordings.lacks import Lack
from lab.recordings.names import CLASSES
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import BACKWARD, FORWARD, OPTIMIZER, is_step
from lab.recordings.projection import AMBIGUOUS, RULES, PhaseNames, Projection, offers
from lab.recordings.views import row_classes
from lab.rooms.nsys.captures.phases import products, step_figures

PHASES = (FORWARD, BACKWARD, OPTIMIZER)
STEP = "step"

SCORES, MASK, SOFTMAX, FINAL = (
    "computing_attention_scores",
    "applying_mask",
    "computing_softmax",
    "final_matmul",
)

PARTS = (SCORES, MASK, SOFTMAX, FINAL)


@dataclass(frozen=True)
class Recording:
    """The measured steps of one process of a capture.

    figures: those of each phase and of the whole step, per step (`step_figures`);
    ops: one row per device operation launched within a step (`phase`, `part` "" outside all), kernels
    those of them that are kernels; ranges: steps, phases and attention's parts on the host (`own_ns`:
    without other phases inside it). `step` counts the instances of steps from 0, step_names has their names.
    """

    figures: dict[str, dict[str, np.ndarray]]
    ops: pd.DataFrame
    kernels: pd.DataFrame
    ranges: pd.DataFrame
    step_names: tuple[str, ...] = ()
    process: Process = field(default_factory=Process)
    process_index: int = 0
    collector: str = ""
    version: str = ""
    device: str = ""
    board: Board | None = None  # the data sheet of the first GPU
    outside_steps: int = 0
    ambiguous: int = 0
    problems: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()  # what the recording is missing

    @property
    def steps(self) -> list[int]:
        return list(range(len(self.step_names)))

    @property
    def has_kernels(self) -> bool:
        return len(self.kernels) > 0

    def by_step(self, rows: pd.DataFrame, column: str) -> np.ndarray:
        """Sum (steps,) of a column over the rows of each measured step."""
        return rows.groupby("step")[column].sum().reindex(self.steps, fill_value=0).to_numpy()


def normalised(name: str) -> str:
    """A range name in one spelling: the course's handout has blanks where its code has underscores."""
    return re.sub(r"[\s_]+", "_", name.strip()).lower()


def recording_of(projection: Projection, names: PhaseNames | None = None) -> Recording:
    """Operations and ranges of the measured steps; kernels outside every step are only counted.

    projection: of a capture of one process. names: what a phase is called, lab's own list by default.
    """
    names = names or PhaseNames()
    capture = projection.capture
    steps = projection.steps
    named = _rows_by_name(projection, steps, names)
    ops = _ops_frame(projection, steps, named)
    inside = ops[ops["step"] >= 0].reset_index(drop=True)
    step, device = ops["step"].to_numpy(), next(iter(capture.devices), None)
    groups = {phase: np.where(ops["phase"] == phase, step, -1) for phase in PHASES} | {STEP: step}
    offered = (offer.sentence for offer in offers(projection, names.pattern))
    return Recording(
        figures={phase: step_figures(capture, group, len(steps)) for phase, group in groups.items()},
        ops=inside,
        kernels=inside[inside["kernel"]],
        ranges=_ranges_frame(projection, steps, named),
        step_names=tuple(capture.name(int(index)) for index in capture.ranges.name_id[steps]),
        process=capture.processes[0],
        collector=capture.collector,
        version=capture.version or "",
        device=", ".join(dict.fromkeys(device.name for device in capture.devices)),
        board=board_of(device.name, device.num_sms) if device else None,
        outside_steps=int((ops["step"] < 0).sum()),
        ambiguous=int((projection.ops.rule == AMBIGUOUS).sum()),
        problems=(*capture.problems, *projection.problems, *offered),
        lacks=capture.lacks,
    )


def _rows_by_name(projection: Projection, steps: np.ndarray, names: PhaseNames) -> dict[str, np.ndarray]:
    """Rows of the phases' and of attention's parts' ranges, by the name of the phase or part.

    Without a range `forward` inside ranges `forward_step_N`, the step is the phase.
    """
    capture = projection.capture
    ids: dict[str, list[int]] = {name: [] for name in (*PHASES, *PARTS)}
    for index, text in enumerate(capture.strings):
        name = names.phase_of(text) or normalised(text)
        if name in ids and not is_step(text):
            ids[name].append(index)
    nested = (capture.ranges.kind != OP) & (projection.instances.level >= 0)
    rows = {name: np.flatnonzero(np.isin(capture.ranges.name_id, ids[name]) & nested) for name in ids}
    if not len(rows[FORWARD]) and len(steps):
        texts = {normalised(capture.name(int(i))) for i in np.unique(capture.ranges.name_id[steps])}
        if all(text.startswith("forward_step") for text in texts):
            rows[FORWARD] = steps
    return rows


def _ops_frame(projection: Projection, steps: np.ndarray, named: dict[str, np.ndarray]) -> pd.DataFrame:
    capture = projection.capture
    classes = np.array(CLASSES, dtype=object)[row_classes(capture)]
    classes[products(capture) & (classes == "quant")] = "gemm"
    table: pd.DataFrame = pd.DataFrame(
        {
            "step": projection.owners(steps),
            "phase": _owner_names(projection, PHASES, named),
            "part": _owner_names(projection, PARTS, named),
            "name": capture.text(capture.ops.name_id),
            "class": classes,
            "kernel": capture.ops.kind == KERNEL,
            "dur_ns": capture.ops.dur_ns,
            "rule": np.array(RULES, dtype=object)[projection.ops.rule],
        }
    )
    return table


def _owner_names(projection: Projection, names: tuple[str, ...], named: dict[str, np.ndarray]) -> np.ndarray:
    """For each operation the innermost of the ranges with these names around it, "" for none."""
    rows = np.concatenate([named[name] for name in names])
    labels = np.concatenate([np.full(len(named[name]), name, dtype=object) for name in names])
    owners: np.ndarray = np.append(labels, "")[projection.owners(rows)]
    return owners


def _ranges_frame(projection: Projection, steps: np.ndarray, named: dict[str, np.ndarray]) -> pd.DataFrame:
    """Host times of steps, phases and parts that lie in a measured step."""
    ranges = projection.capture.ranges
    index = np.full(len(ranges) + 1, -1, dtype=np.int64)
    index[steps] = np.arange(len(steps))
    # The step around each range, its own for a step; -1 outside of all.
    around = nearest_ancestor(projection.instances.parent, np.arange(len(ranges)), index[:-1] >= 0)
    step_of = index[around]
    phases, own_ns = _phases_alone(projection, {name: named[name] for name in PHASES})
    frames = [
        pd.DataFrame(
            {
                "step": step_of[rows],
                "name": name,
                "start_ns": ranges.start_ns[rows],
                "own_ns": own_ns[rows] if name in phases else ranges.dur_ns[rows],
            }
        )
        for name, rows in [(STEP, steps), *phases.items(), *((name, named[name]) for name in PARTS)]
    ]
    frame = pd.concat(frames, ignore_index=True)
    table: pd.DataFrame = (
        frame[frame["step"] >= 0].sort_values("start_ns", kind="stable").reset_index(drop=True)
    )
    return table


def _phases_alone(
    projection: Projection, named: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of each phase without those inside the same phase; and ns of each range without other phases.

    Frameworks nest them: `DistributedDataParallel.forward` in `forward`, and in Lightning forward and
    backward in `optimizer_step`.
    """
    ranges, parent = projection.capture.ranges, projection.instances.parent
    phase = np.full(len(ranges) + 1, -1)
    for number, rows in enumerate(named.values()):
        phase[rows] = number
    own_ns = ranges.dur_ns.astype(np.int64)
    rows = np.flatnonzero(phase[:-1] >= 0)
    above = nearest_ancestor(parent, parent[rows], phase[:-1] >= 0)
    changes = (above >= 0) & (phase[above] != phase[rows])
    # What a phase inside another one takes is taken from the range of that other phase that counts.
    top = np.arange(len(ranges) + 1)
    for level in np.unique(projection.instances.level[rows]):
        inner = (projection.instances.level[rows] == level) & (above >= 0) & ~changes
        top[rows[inner]] = top[above[inner]]
    np.subtract.at(own_ns, top[above[changes]], ranges.dur_ns[rows[changes]])
    nested = np.zeros(len(ranges), dtype=bool)
    nested[rows] = (above >= 0) & ~changes
    return {name: rows[~nested[rows]] for name, rows in named.items()}, own_ns
