"""The trials of a run, or of a trials.csv that lab did not make, one row each."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lab.core.files import sha256_of
from lab.core.manifest import StepRecord
from lab.core.run import MANIFEST, Run
from lab.core.step import Status
from lab.core.words import plural
from lab.errors import BadDataError
from lab.rooms.trials.config import (
    DECIDED,
    LEFT,
    NEVER_RAN,
    NOT_RUN,
    RESULT,
    VERDICTS,
    Trial,
    TrialsConfig,
)
from lab.rooms.trials.no_start import HIDDEN
from lab.rooms.trials.rows import read_trial, settings_of

COLUMNS = {"cell", "trial", "verdict"}
MOST_ROWS = 1_000_000
MOST_COUNT = 10**9  # of a trial's number and its place in the order
UNREADABLE = "its row cannot be used"
NODE_DOWN = "NODE_FAIL"  # Slurm's state of a job whose node went down under it
LOST = (Status.failed, Status.oom, Status.timeout)


@dataclass(frozen=True)
class Gathered:
    """Every trial once, and the settings; `missing` and `doubts` (of passes) in sentences."""

    trials: list[Trial]
    names: list[str]
    baseline: str
    config: TrialsConfig | None
    missing: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def is_table(path: Path) -> bool:
    """Whether this CSV has the columns of trials."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return set(next(csv.reader(file), [])) >= COLUMNS
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def gather(run: Run) -> Gathered:
    """The rows of a run: what the manifest says of a step counts, not what lies in its folder.

    Raises BadDataError for a manifest without a step.
    """
    config = settings_of(run)
    if not run.manifest.steps:
        raise BadDataError(
            "the manifest lists no trial",
            location=run.root / MANIFEST,
            fix="start the run again: lab run trials",
        )
    trials = [_row(run, record) for record in run.manifest.steps]
    lost = [t for t in trials if t.verdict == NOT_RUN and t.reason not in (DECIDED, NEVER_RAN)]
    missing = [_never_ran(name, trials) for name in sorted({t.cell for t in trials if t.reason == NEVER_RAN})]
    missing += [f"{len(lost)} of {len(trials)} trials did not run"] if lost else []
    missing += [f"{trial.step}: {trial.reason}" for trial in trials if trial.reason.startswith(UNREADABLE)]
    passes = [t for t in trials if t.verdict == "pass"]
    doubts = [
        *_hidden([t for t in passes if HIDDEN in t.reason]),
        *_left([t for t in passes if LEFT in t.reason]),
    ]
    names = [cell.name for cell in config.cells]
    return Gathered(trials, names, config.baseline, config, [*missing, *doubts], doubts)


def _never_ran(cell: str, trials: list[Trial]) -> str:
    rows = [t for t in trials if t.cell == cell]
    example = next(t for t in rows if t.reason != NEVER_RAN)
    left = sum(t.reason == NEVER_RAN for t in rows)
    return (
        f"{cell}: {example.reason}; {plural(left, 'further trial')} would end so, too: mend the command and "
        "start a new run (what is your failure counts where --fail names it: exit==127, /No module/)"
    )


def _hidden(passes: list[Trial]) -> list[str]:
    """Passes by an exit code that may be another program's."""
    if not passes:
        return []
    many = plural(len(passes), "pass", "passes")
    verb = "ends" if len(passes) == 1 else "end"
    return [
        f"{many} {verb} in an error, with exit code 0 (the first: {passes[0].step}): a pipe's exit code "
        "is that of its last command; `set -o pipefail`, or name the error in --fail: '/Error/'"
    ]


def _left(passes: list[Trial]) -> list[str]:
    """Passes of a command that went on in the background, as a script that starts its program there."""
    if not passes:
        return []
    return [
        f"{plural(len(passes), 'pass', 'passes')} left processes running, whose end nobody saw (the first: "
        f"{passes[0].step}): let the command wait for them"
    ]


def _row(run: Run, record: StepRecord) -> Trial:
    step, outcome = record.step, record.outcome
    unreadable = ""
    if outcome is not None and outcome.status is Status.ok:
        try:
            row = read_trial(run.folder(step))
        except BadDataError as error:
            row, unreadable = None, f"{UNREADABLE}: {error.problem}"
        if row is not None and (row.cell, row.trial) == (step.labels["cell"], step.labels["trial"]):
            if _is_as_it_was(run, record):
                return row
            unreadable = f"{UNREADABLE}: it was changed after the trial ended"
        unreadable = unreadable or f"{UNREADABLE}: there is none, or another trial's"
    lost = outcome is not None and (outcome.status in LOST or outcome.status is Status.ok)
    verdict = "error" if lost else NOT_RUN
    if outcome is not None and NODE_DOWN in outcome.reason:
        verdict = "fail"
    return Trial(
        cell=str(step.labels["cell"]),
        trial=int(step.labels["trial"]),
        verdict=verdict,
        reason=unreadable or (outcome.reason or outcome.status.value if outcome else "did not run"),
        order=int(step.labels["order"]),
        seed=int(step.labels["seed"]),
        step=step.name,
        attempts=record.attempts,
        log=f"{step.folder}/run_output.log",
    )


def _is_as_it_was(run: Run, record: StepRecord) -> bool:
    """Whether the row is the one that the trial left: another trial, or a person, may have written there."""
    name = f"{record.step.folder}/{RESULT}"
    record_of_file = record.files.get(name)
    return record_of_file is None or record_of_file.sha256 == sha256_of(run.root / name)


def read_table(path: Path) -> Gathered:
    """A trials.csv of cell, trial, verdict, and where it has them order, node, step_ms and others.

    The baseline is the cell `none` or `baseline`, else the first. Raises BadDataError with the row.
    """
    trials: list[Trial] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                if line > MOST_ROWS:
                    raise BadDataError(f"more than {MOST_ROWS:,} trials", location=path)
                trials.append(_of_row(row, path, line))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadDataError(f"not a table of trials: {error}", location=path) from error
    if not trials:
        raise BadDataError("no trials in this table", location=path)
    names_of_trials: set[tuple[str, int]] = set()
    for line, trial in enumerate(trials, start=2):
        if (trial.cell, trial.trial) in names_of_trials:
            raise BadDataError(
                f"trial {trial.trial} of {trial.cell!r} is there twice", location=f"{path}:{line}"
            )
        names_of_trials.add((trial.cell, trial.trial))
    names = list(dict.fromkeys(trial.cell for trial in trials))
    baseline = next((name for name in ("none", "baseline") if name in names), names[0])
    return Gathered(trials, names, baseline, None)


def _float(row: dict[str, Any], name: str) -> float | None:
    value = float(row[name]) if row.get(name) else math.nan
    return value if math.isfinite(value) else None


def _count(row: dict[str, Any], name: str) -> int:
    text = str(row[name]).strip()
    if not text.isascii() or not text.isdecimal() or int(text) > MOST_COUNT:
        raise ValueError(f"{name} {text[:40]!r} is no number from 0 to {MOST_COUNT:,}")
    return int(text)


def _moment(text: str) -> str:
    """A time as UTC, so that two zones compare; "" where it is none."""
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text.strip()))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return zoned.astimezone(timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return ""


def _of_row(row: dict[str, Any], path: Path, line: int) -> Trial:
    try:
        verdict = row["verdict"]
        if verdict not in (*VERDICTS, NOT_RUN):
            raise ValueError(f"verdict {verdict!r} is none of {', '.join(VERDICTS)}")
        if not row["cell"].strip():
            raise ValueError("it has no cell")
        step_time = _float(row, "step_time" if row.get("step_time") else "step_ms")
        return Trial(
            cell=row["cell"],
            trial=_count(row, "trial"),
            verdict=verdict,
            reason=row.get("reason") or "",
            order=_count(row, "order") if row.get("order") else None,
            seed=_count(row, "seed") if row.get("seed") else None,
            step_time=step_time if step_time and step_time > 0 else None,
            host=row.get("host") or row.get("node") or "",
            gpus=row.get("gpus") or "",
            started_utc=_moment(row.get("started_utc") or ""),
            began_s=_float(row, "began_s"),
            boot=row.get("boot") or "",
            temperature_c=_float(row, "temperature_c"),
            sm_clock_mhz=_float(row, "sm_clock_mhz"),
            step=row.get("step") or "",
            log=row.get("log") or "",
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadDataError(f"not a trial: {error}", location=f"{path}:{line}") from error
