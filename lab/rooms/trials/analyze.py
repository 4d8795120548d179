"""The trials of a run, one row each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.manifest import StepRecord
from lab.core.run import LOG, MANIFEST, Run
from lab.core.step import Status
from lab.core.words import plural
from lab.errors import BadDataError, LabError
from lab.recordings.gpu_state import REASONS, read_state
from lab.rooms.trials.config import DECIDED, LEFT, NOT_RUN, Trial, TrialsConfig, read_trial, row_of
from lab.rooms.trials.failure import HIDDEN

UNREADABLE = "its row cannot be used"
NODE_DOWN = "NODE_FAIL"  # Slurm's state of a job whose node went down under it
LOST = (Status.failed, Status.oom, Status.timeout)
DOUBTS = {  # what a pass may hide, and what to do
    HIDDEN: "a pipe's exit code is that of its last command: `set -o pipefail`, or --fail '/Error/'",
    LEFT: "how they would have ended was not seen: let the command wait for them",
}


@dataclass(frozen=True)
class Gathered:
    """Every trial once, and the settings; sentences on what is missing, and on passes that may be none."""

    trials: list[Trial]
    config: TrialsConfig
    missing: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [cell.name for cell in self.config.cells]


def gather(run: Run) -> Gathered:
    """The rows of a run: what the manifest says of a step counts, not what lies in its folder.

    Raises BadDataError for a manifest without a step, or with the settings of another room.
    """
    try:
        config = msgspec.convert(run.manifest.config, TrialsConfig)
    except msgspec.ValidationError as error:
        raise BadDataError(f"the manifest has no settings of trials: {error}", location=run.root) from error
    if not run.manifest.steps:
        raise BadDataError(
            "the manifest lists no trial",
            location=run.root / MANIFEST,
            fix="start the run again: lab run trials",
        )
    trials = [_row(run, record) for record in run.manifest.steps]
    lost = [t for t in trials if t.verdict == NOT_RUN and t.reason != DECIDED]
    missing = [f"{len(lost)} of {len(trials)} trials did not run"] if lost else []
    missing += [f"{trial.step}: {trial.reason}" for trial in trials if trial.reason.startswith(UNREADABLE)]
    doubts = []
    for sign, cure in DOUBTS.items():
        if doubtful := [t for t in trials if t.verdict == "pass" and sign in t.reason]:
            example = f"{doubtful[0].step}: {doubtful[0].reason}"
            doubts.append(
                f"{plural(len(doubtful), 'pass', 'passes')} may be none (the first, {example}): {cure}"
            )
    return Gathered(trials, config, [*missing, *doubts], doubts)


def _row(run: Run, record: StepRecord) -> Trial:
    step, outcome = record.step, record.outcome
    unreadable = ""
    if outcome is not None and outcome.status is Status.ok:
        try:
            row = read_trial(run.folder(step))
        except LabError as error:
            row, unreadable = None, f"{UNREADABLE}: {error.problem}"
        # The folder may hold the row of an earlier plan.
        if row is not None and (row.cell, row.trial) == (step.labels["cell"], step.labels["trial"]):
            return msgspec.structs.replace(row, **sensors(run.folder(step)))
        unreadable = unreadable or f"{UNREADABLE}: there is none, or another trial's"
    lost = outcome is not None and (outcome.status in LOST or outcome.status is Status.ok)
    verdict = "error" if lost else NOT_RUN
    # A command that takes its node down has failed, though only the scheduler can report it.
    if outcome is not None and NODE_DOWN in outcome.reason:
        verdict = "fail"
    return msgspec.structs.replace(
        row_of(step, verdict),
        reason=unreadable or (outcome.reason or outcome.status.value if outcome else "did not run"),
        attempts=record.attempts,
        log=f"{step.folder}/{LOG}",
    )


def sensors(folder: Path) -> dict[str, Any]:
    """The highest temperature, the median clock, and whether heat or power slowed a GPU of a step.

    By what the driver sampled beside it; nothing where it did not, or the board does not report it.
    """
    state = read_state(folder)
    if state is None:
        return {}
    clocks, heat, bits = (
        state.values[name][~np.isnan(state.values[name])]
        for name in ("sm_clock_mhz", "temperature_c", "throttle_bits")
    )
    return {
        "temperature_c": float(heat.max()) if len(heat) else None,
        "sm_clock_mhz": float(np.median(clocks)) if len(clocks) else None,
        "throttled": any(int(value) & bit for value in bits for bit in REASONS) if len(bits) else None,
    }
