"""Analysis of a run or a recording: here in this process, or in the torch-free cpu image."""

from __future__ import annotations

import importlib
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import make_folder
from lab.core.findings import note_lacking
from lab.core.manifest import ImageRecord
from lab.core.options import Options
from lab.core.plan import Findings
from lab.core.provenance import lab_with_content
from lab.core.run import Run
from lab.core.run_folder import home_of
from lab.core.step import Outcome, Step
from lab.core.stop import on_signals
from lab.core.words import first_few, plural
from lab.driver.report import busy_sentences
from lab.engines.base import Engine
from lab.errors import (
    BadDataError,
    EngineError,
    Interrupted,
    LabError,
    MissingError,
    StepFailed,
    UsageError,
    writing,
)
from lab.rooms import room, room_of
from lab.terminal.console import Console

NOT_HERE = (BadDataError, MissingError, StepFailed, UsageError)
SEVERITY = ("ok", "warn", "fail")
STAGING = ".analysis"
LIMIT_S = 3600.0  # traces come from outside: an analysis that never ends is an error, not a wait


@dataclass(frozen=True)
class Sections:
    """Some sections of an analysis, each in a folder of its own, instead of what a room does with the whole.

    modules maps the name of each wanted section to the room that has its analyse_NAME().
    """

    modules: Mapping[str, str]

    def analyse(self, folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
        """Join the findings of all sections; one that the input cannot have is in `lacking`.

        Raises the first section's error where no section can be had.
        """
        findings: dict[str, Findings] = {}
        errors: dict[str, LabError] = {}
        for name, module in self.modules.items():
            analyse_section = getattr(importlib.import_module(module), f"analyse_{name}")
            try:
                findings[name] = analyse_section(folder, out, run, progress)
            except NOT_HERE as error:
                errors[name] = error
        if not findings:
            raise next(iter(errors.values()))
        parts = list(findings.values())
        return Findings(
            [sentence for part in parts for sentence in part.verdict],
            max((part.status for part in parts), key=SEVERITY.index),
            [path for part in parts for path in part.files],
            "\n\n".join(part.terminal.rstrip("\n") for part in parts),
            lacking=[
                *(f"{name}: {text}" for name, part in findings.items() for text in part.lacking),
                *(f"{name}: {error.problem}" for name, error in errors.items()),
            ],
            incomplete=list(dict.fromkeys(text for part in parts for text in part.incomplete)),
        )


def analyse(folder: Path, out: Path | None, console: Console, sections: Sections | None = None) -> Findings:
    """Write tables, figures and page of a run or of any recording; or only its `sections`."""
    run = Run.open(folder) if Run.is_run(folder) else None
    house = sections or (room(run.manifest.room) if run else room_of(folder))
    target = out or home_of(folder)
    if folder.is_dir():  # of a file, only once it could be read
        make_folder(target)
    findings = house.analyse(folder, target, run, console.detail)
    if run and (changed := run.changed()):
        changes = f"{plural(len(changed), 'file')} not as recorded ({first_few(changed)})"
        gap = f"{changes}: the figures are of what lies here now, not of what the manifest names"
        findings = msgspec.structs.replace(findings, lacking=[*findings.lacking, gap])
    if run and (busy := busy_sentences(run.manifest)):
        status = findings.status if findings.status == "fail" else "warn"
        findings = msgspec.structs.replace(findings, verdict=[*findings.verdict, *busy], status=status)
    if sections is None:  # findings.json is about the whole
        note_lacking(target, findings.lacking)
    return findings


def analyse_run(run: Run, engine: Engine, options: Options, console: Console) -> Findings | None:
    """Analyse in the engine's analysis image where it has one, else here; --analysis none skips it."""
    if options.analysis == "none":
        return None
    image = engine.analysis_image() if options.analysis == "auto" else None
    if image is not None:
        return analyse_in_image(run, engine, image, console)
    return analyse(run.root, None, console)


SHARED = ("run", *Findings.__struct_fields__)  # keys of every room's JSON; others are the room's answer


def analyse_in_image(run: Run, engine: Engine, image: ImageRecord, console: Console) -> Findings:
    """`lab analyze` in a container with the run read-only, no network and no GPU; results move into the run.

    Raises EngineError when the container prints no findings: nothing falls back to this host silently.
    """
    staging = run.root / STAGING / "out"
    shutil.rmtree(run.root / STAGING, ignore_errors=True)
    make_folder(staging)
    step = Step(name="analysis", argv=("lab",), folder=STAGING, timeout_s=LIMIT_S)
    lines: list[str] = []
    console.detail(f"analysis in {image.ref}")
    run.manifest.analysis_image = image
    run.save()
    with on_signals(console.say) as stop:
        outcome = engine.run_analysis(run, step, lab_with_content(), on_line=lines.append, stop=stop)
    if stop.is_set():
        problem = "the analysis was interrupted; the run is complete"
        raise Interrupted(problem, location=run.root, fix=_again(run))
    summary = _summary(lines, outcome, run, image)
    _move_in(staging, run.root)
    shutil.rmtree(run.root / STAGING)
    return summary


def _again(run: Run) -> str:
    return f"lab analyze {shlex.quote(str(run.root))}"


def _summary(lines: list[str], outcome: Outcome, run: Run, image: ImageRecord) -> Findings:
    """The findings among the container's lines, with its paths made those of the host."""
    answer = next((line for line in reversed(lines) if line.startswith("{")), "")
    try:
        document = msgspec.json.decode(answer, type=dict[str, Any])
        summary = msgspec.convert(document, Findings, dec_hook=lambda kind, text: kind(text))
    except msgspec.DecodeError as error:
        tail = "\n".join(f"  | {line}" for line in outcome.tail[-15:])
        end = f"{outcome.status.value}: {outcome.reason}\n{tail}"
        raise EngineError(
            f"no findings from the analysis in {image.ref}, {end}",
            location=run.root,
            fix=f"{_again(run)} analyses here; --analysis host asks for that at once",
        ) from error
    return msgspec.structs.replace(
        summary,
        answer={key: value for key, value in document.items() if key not in SHARED},
        files=[Path(str(path).replace("/out", str(run.root), 1)) for path in summary.files],
        terminal=summary.terminal.replace("/out/", f"{run.root}/"),
    )


def _move_in(staging: Path, root: Path) -> None:
    """Put new results in the place of old ones, each by a rename."""
    for new in sorted(staging.iterdir()):
        old, aside = root / new.name, root / STAGING / f"old_{new.name}"
        with writing(old):
            if old.is_dir():
                old.rename(aside)
            new.rename(old)
