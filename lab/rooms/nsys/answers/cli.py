"""`lab nsys answers`: questions a to e from a run, a folder of captures, or one capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.findings import REQUIRE, raise_for_lacks
from lab.terminal.options import as_json, option, out
from lab.terminal.part import PHASE, phase_names

if TYPE_CHECKING:
    from lab.core.run import Run
    from lab.recordings.projection import PhaseNames
    from lab.rooms.nsys.answers.answer import Answer
    from lab.rooms.nsys.measured import Recording
    from lab.rooms.nsys.report.results import Results


@click.command("answers")
@click.argument("target", type=click.Path(path_type=Path))
@option("-p", "--part", "parts", default="all", metavar="a,b,...", help="Questions to answer.")
@out("Also write tables, figures and the page here.")
@as_json("Answers, numbers and checks")
@click.option(
    "--model-size",
    help="[one capture] Size of the model, for the checks of launches and FLOPs. [default: unknown]",
)
@REQUIRE
@option(
    "--context-length", type=click.IntRange(min=2), default=512, help="[one capture] Tokens per sequence."
)
@option("--batch-size", type=click.IntRange(min=1), default=4, help="[one capture] Sequences per pass.")
@click.option("--fused-qkv", is_flag=True, help="[one capture] One GEMM for query, key and value.")
@PHASE
def answers(
    target: Path,
    parts: str,
    out: Path | None,
    as_json: bool,
    model_size: str | None,
    context_length: int,
    batch_size: int,
    fused_qkv: bool,
    phases: tuple[str, ...],
    require: str | None,
) -> None:
    """Answer questions a to e from TARGET, a run, a folder of captures or one capture. It is only read.

    Exit code 1 where a question named by --part has no answer, a check of one failed, or a recording has
    holes.
    """
    from lab.errors import StepFailed, UsageError, needs
    from lab.rooms.nsys.config import parse_parts

    wanted = parse_parts(parts)
    if phases and target.is_dir():
        raise UsageError("--phase is for one capture", fix="name the file")
    with needs("analysis"):
        if target.is_dir():
            results = of_folder(target)
        else:
            names = phase_names(phases, named=True)
            results = of_file(
                target, model_size, context_length, batch_size, fused_qkv=fused_qkv, names=names
            )
        if out is not None:
            write_page_of(results, target, out)
    selected = [answer for answer in results.answers if answer.part in wanted]
    recordings = {cell.label: cell.recording for cell in results.data if cell.recording is not None}
    if text := as_text(selected, recordings, as_json=as_json):
        click.echo(text)
    if not any(answer.given for answer in selected):
        rows = results.cells[["cell", "outcome", "reason"]].astype(str).to_numpy()
        reasons = [f"{cell}: {', '.join(filter(None, (outcome, why)))}" for cell, outcome, why in rows]
        raise StepFailed("no question could be answered:\n  " + "\n  ".join(reasons), location=target)
    lacks = [lack for one in recordings.values() for lack in one.lacks]
    raise_for_lacks(list(dict.fromkeys(lacks)), target, require=require)
    problems = _problems(selected, wanted if parts != "all" else ())
    if problems:
        raise StepFailed("not all is answered:\n  " + "\n  ".join(problems), location=target)


def _problems(answers: Sequence[Answer], named: Sequence[str]) -> list[str]:
    """A sentence per named question without any answer, and per check that failed."""
    from lab.rooms.nsys.answers.answer import FAILED

    answered = {answer.part for answer in answers if answer.given}
    return [
        *(f"({part}): no recording here answers it" for part in named if part not in answered),
        *(
            f"({answer.part}) {answer.cell}: {check.name}: expected {check.expected}, found {check.found}"
            for answer in answers
            for check in answer.checks
            if check.state == FAILED
        ),
    ]


def of_folder(folder: Path) -> Results:
    """Every cell of a run or of a folder of captures. Raises MissingError where there is none."""
    from lab.errors import MissingError
    from lab.rooms.nsys.findings import merged, outcomes, planned, results_of
    from lab.rooms.nsys.layout import find_cells

    run = _run_of(folder)
    cells = merged(find_cells(folder), planned(run))
    if not cells:
        raise MissingError(
            "no captures of the nsys room in this folder",
            location=folder,
            fix="name a run of `lab run nsys`, or one file",
        )
    return results_of(cells, outcomes(run), folder, lambda _: None)


def of_file(
    path: Path,
    size: str | None,
    context: int,
    batch: int,
    *,
    fused_qkv: bool,
    names: PhaseNames | None = None,
) -> Results:
    """One capture as one cell; its phases determine the profile type. Raises what the reader raises."""
    from lab.rooms.nsys.config import parse_sizes, spec_of
    from lab.rooms.nsys.findings import results_of_one
    from lab.rooms.nsys.layout import cell_of_name, stem_of

    named = cell_of_name(stem_of(path))
    name = size or (named.size if named else None)
    spec = spec_of(parse_sizes(name)[0], fused_qkv=fused_qkv) if name else None
    return results_of_one(path, spec, named.context if named and not size else context, batch, names)


def write_page_of(results: Results, path: Path, out: Path) -> None:
    """Tables, figures and page; the run's own analysis (`lab analyze`) adds the summary and nsys' reports."""
    from lab.report.provenance import provenance
    from lab.rooms.nsys.report.page import report

    run = _run_of(path) if path.is_dir() else None
    origin = provenance(path, run.manifest if run else None)
    kind = run.manifest.kind.value if run else "measured"
    report(results, out=out, title=f"Nsys {path.resolve().name}", provenance=origin, kind=kind)


def as_text(selected: list[Answer], recordings: Mapping[str, Recording], *, as_json: bool) -> str:
    """The answers as JSON, one entry per question, cell and process; or as one sentence each with its checks
    below, each cell's recording first and what was odd about it last.

    recordings: of each cell, by the cell's label.
    """
    from lab.core.words import plural, printable
    from lab.recordings.integrity.words import integrity_lines

    if as_json:
        import msgspec

        rows = [_as_json(answer, recordings.get(answer.cell)) for answer in selected]
        return msgspec.json.encode(rows, enc_hook=float).decode()
    lines = [
        f"{cell}: {line}" if number == 0 else line
        for cell, one in recordings.items()
        if one.lacks
        for number, line in enumerate(integrity_lines(one.lacks))
    ]
    for answer in selected:
        one = recordings.get(answer.cell)
        counted = f" ({plural(len(one.steps), 'step')})" if one and one.steps else ""
        lines.append(f"({answer.part}) {answer.cell}{counted}: {answer.sentence}")
        lines += [f"    [{c.state}] {c.name}: expected {c.expected}, found {c.found}" for c in answer.checks]
    lines += [f"note: {cell}: {text}" for cell, one in recordings.items() for text in one.problems]
    return "\n".join(printable(line.replace("\n", "\\n")) for line in lines)


def _as_json(answer: Answer, recording: Recording | None) -> dict[str, object]:
    from lab.recordings.integrity.words import as_json, bound

    lacks = recording.lacks if recording else ()
    return {
        "part": answer.part,
        "cell": answer.cell,
        "process": recording.process_index if recording else None,
        "pid": recording.process.pid if recording else None,
        "rank": recording.process.rank if recording else None,
        "state": answer.state,
        "answer": answer.sentence,
        "values": answer.values,
        "checks": answer.checks,
        "steps": len(recording.steps) if recording else 0,
        "notes": recording.problems if recording else (),
        "integrity": as_json(lacks),
        "bound": bound(lacks),
    }


def _run_of(folder: Path) -> Run | None:
    from lab.core.run import Run

    return Run.open(folder) if Run.is_run(folder) else None
