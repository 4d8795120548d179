"""The nan room's analysis from folders to findings: the manifest, results and logs together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lab.core.manifest import Manifest
from lab.core.plan import Findings
from lab.core.run import Run
from lab.errors import MissingError
from lab.report.provenance import provenance as of_manifest
from lab.rooms.nan.analyze import analyze
from lab.rooms.nan.config import TRAIN
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.gather import gather
from lab.rooms.nan.guarded.page import guarded_page
from lab.rooms.nan.guarded.read import has_records, read
from lab.rooms.nan.nixnan.tables import sass_tables
from lab.rooms.nan.report import report


def analyse_nan(
    folders: Sequence[Path],
    out: Path,
    runs: Sequence[Run | None],
    progress: Callable[[str], None],
    *,
    sass: bool = False,
) -> Findings:
    """Tables, figures and report.html of one folder, or of several whose levels are to be joined.

    With `sass` a log of nixnan is required: an experiment without a readable one is listed as missing. Raises
    MissingError if no folder holds an experiment.
    """
    if any(map(has_records, folders)):
        return _guarded(folders, out, runs)
    if any(
        run and any(step.step.labels.get("experiment") == TRAIN for step in run.manifest.steps)
        for run in runs
    ):
        raise MissingError(
            "the training job left no record of a guard: no process of it called a model with weights",
            location=folders[0],
            fix="start it with the Python that has torch; the step's log says what happened",
        )
    evidence = gather(folders, runs, progress)
    if not evidence:
        raise MissingError(
            "no experiment of the nan room in this folder",
            location=folders[0],
            fix="name a run of `lab run nan`, or a folder with claude_*.json and claude_*.nixnan files",
        )
    tables = analyze(evidence)
    manifests = [run.manifest if run else None for run in runs]
    kinds = [manifest.kind.value for manifest in manifests if manifest]
    title = f"NaN {' + '.join(folder.resolve().name for folder in folders)}"
    return report(
        tables,
        sass_tables(evidence),
        out=out,
        title=title,
        provenance=provenance(folders, manifests),
        kind=next((kind for kind in kinds if kind != "measured"), "measured"),
        lacking=missing_parts(evidence, tables.problems, sass),
    )


def _guarded(folders: Sequence[Path], out: Path, runs: Sequence[Run | None]) -> Findings:
    """The page of training jobs under the guard."""
    job = read(folders)
    manifests = [run.manifest if run else None for run in runs]
    title = f"NaN guard {' + '.join(folder.resolve().name for folder in folders)}"
    return guarded_page(job, out, title, provenance(folders, manifests))


def missing_parts(evidence: Sequence[Evidence], problems: Sequence[str], sass: bool) -> list[str]:
    """What was asked for and is missing, in sentences."""
    missing = [
        f"{experiment.label}: {experiment.status}: {experiment.reason}"
        for experiment in evidence
        if experiment.status not in ("ok", "no-effect", "skipped") and not experiment.published
    ]
    missing += [
        f"{experiment.label}: {experiment.reason}"
        for experiment in evidence
        if experiment.published and experiment.status == "broken"
    ]
    missing += [
        f"{experiment.label}: {experiment.log_error}" for experiment in evidence if experiment.log_error
    ]
    if sass:
        without = [
            experiment for experiment in evidence if experiment.log is None and not experiment.log_error
        ]
        missing += [f"{experiment.label}: no log of nixnan" for experiment in without]
    return [*missing, *problems]


def provenance(folders: Sequence[Path], manifests: Sequence[Manifest | None]) -> dict[str, dict[str, str]]:
    """What the page says of where its numbers come from; with several folders, each group names its own."""
    names = [folder.resolve().name for folder in folders]
    groups: dict[str, dict[str, str]] = {}
    for folder, manifest, name in zip(folders, manifests, names, strict=True):
        unique = name if names.count(name) == 1 else str(folder)
        of_which = f" {unique}" if len(folders) > 1 else ""
        shared = of_manifest(folder, manifest)
        groups |= {f"{title}{of_which}": rows for title, rows in shared.items()}
    return groups
