"""Evidence of every experiment in some folders; both levels of one experiment are joined by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import BadDataError
from lab.rooms.nan.config import AGAIN, EXPERIMENTS, RESULT
from lab.rooms.nan.evidence import Evidence, Progress, read_json, read_log
from lab.rooms.nan.published import of_published

QUANTIZED = {"baseline": "4-bit", "8bit": "8-bit", AGAIN: "4-bit"}


def gather(folders: Sequence[Path], runs: Sequence[Run | None], progress: Progress) -> list[Evidence]:
    """Evidence of every experiment in the folders; two levels of one experiment become one row."""
    evidence: list[Evidence] = []
    for folder, run in zip(folders, runs, strict=True):
        evidence += of_run(folder, run, progress) if run else of_published(folder, progress)
    joined: dict[str, Evidence] = {}
    for experiment in evidence:
        joined_before = joined.get(experiment.label)
        joined[experiment.label] = _both(joined_before, experiment) if joined_before else experiment
    order = [*EXPERIMENTS, AGAIN]
    return sorted(
        joined.values(), key=lambda experiment: (order.index(experiment.experiment), experiment.label)
    )


def _both(a: Evidence, b: Evidence) -> Evidence:
    """One experiment seen at two levels, in two runs.

    What one run watched is not what the other logged, so the worse status holds for both.
    """
    python, sass = (a, b) if a.watch or not b.watch else (b, a)
    worse = next((one for one in (python, sass) if not one.compared), python)
    return Evidence(
        python.experiment,
        python.label,
        worse.status,
        worse.reason,
        python.result or sass.result,
        python.result_file or sass.result_file,
        sass.log or python.log,
        sass.log_files or python.log_files,
        sass.log_error or python.log_error,
        python.folder,
        python.published,
    )


def of_run(folder: Path, run: Run, progress: Progress) -> list[Evidence]:
    """One experiment per step of the run, in any case."""
    evidence = []
    for record in run.manifest.steps:
        name, label = str(record.step.labels["experiment"]), str(record.step.labels["label"])
        experiment = Evidence(name, label, folder=folder / record.step.folder)
        experiment.status, experiment.reason = _status_of(record.outcome)
        path = folder / record.step.folder / RESULT
        if path.exists():
            _read_result(experiment, path, path.relative_to(folder))
        elif experiment.status == "ok":
            experiment.status, experiment.reason = "missing", f"no {RESULT}"
        if "nixnan" in record.step.tools:
            _read_log(experiment, folder, progress)
        evidence += [experiment, *_skipped_quant(experiment)]
    return evidence


def _skipped_quant(experiment: Evidence) -> list[Evidence]:
    """The quantized experiment that could not run here, beside its unquantized twin that did.

    The baseline's twin is what the others are compared with; the twin of 8bit repeats the baseline and is not
    ranked.
    """
    skip_reason = (experiment.result or {}).get("skipped_quant")
    if not skip_reason or not experiment.compared or experiment.experiment not in QUANTIZED:
        return []
    reason = f"{skip_reason}; its unquantized twin ran"
    if experiment.experiment == "8bit":
        experiment.status, experiment.reason = "skipped", reason
        return []
    label = f"{experiment.label} ({QUANTIZED[experiment.experiment]})"
    return [Evidence(experiment.experiment, label, "skipped", reason, folder=experiment.folder)]


def _status_of(outcome: Outcome | None) -> tuple[str, str]:
    if outcome is None:
        return "missing", "did not run"
    return ("ok", "") if outcome.status is Status.ok else (outcome.status.value, outcome.reason)


def _read_result(experiment: Evidence, path: Path, shown: Path) -> None:
    """Read the result; a change that took no effect lowers the status that the process left."""
    try:
        experiment.result = read_json(path)
        applied = experiment.result.get("applied")
    except BadDataError as error:
        experiment.status, experiment.reason, experiment.result = "broken", error.problem, None
        return
    experiment.result_file = str(shown)
    if experiment.status == "ok" and applied and applied["status"] != "applied":
        experiment.status = applied["status"]
        experiment.reason = applied["reason"] or _why_not_applied(applied)


def _why_not_applied(applied: dict[str, Any]) -> str:
    if applied["status"] == "no-effect":
        return "the first logits are identical to the last bit without the change"
    return f"{applied['what']}: {applied['count']} of {applied['expected']} took the change"


def _read_log(experiment: Evidence, root: Path, progress: Progress) -> None:
    folder = experiment.folder or root
    record, log = folder / "nixnan.json", folder / "nixnan.log"
    try:
        if record.exists():
            flags = read_json(record).get("flags")
            flags = flags if isinstance(flags, dict) else {}
            experiment.inventory = bool(flags.get("inventory"))
            experiment.only_kernels, experiment.not_kernels = (
                tuple(map(str, flags.get(name) or ())) for name in ("only_kernels", "not_kernels")
            )
    except BadDataError as error:
        experiment.log_error = error.problem
    if log.exists():
        read_log(experiment, log, root, progress)
    else:
        experiment.log_error = experiment.log_error or "nixnan left no log"
