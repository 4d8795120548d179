"""`lab nsys answers`: questions a to e from a run, a folder of captures, or one capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.core.run import Run
from lab.core.words import plural, printable
from lab.errors import StepFailed, UsageError, needs
from lab.terminal.findings import REQUIRE, raise_for_lacks
from lab.terminal.options import as_json, option, out
from lab.terminal.part import PHASE, phase_names

if TYPE_CHECKING:
    from lab.recordings.projection import PhaseNames
    from lab.rooms.nsys.answers.answer import Answer
    from lab.rooms.nsys.recording import Recording
    from lab.rooms.nsys.report.tables import Results


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
    from lab.rooms.nsys.config import parse_parts

    wanted = parse_parts(parts)
    if phases and target.is_dir():
        raise UsageError("--phase is for one capture", fix="name the file")
    with needs("analysis"):
        from lab.rooms.nsys.findings import results_of_folder
        from lab.rooms.nsys.report.page import report

        run = Run.open(target) if Run.is_run(target) else None
        if target.is_dir():
            results = results_of_folder(target, run)
        else:
            names = phase_names(phases, named=True)
            results = _of_file(target, model_size, context_length, batch_size, fused_qkv, names)
        if out is not None:
            report(results, target, out, run)
    selected = [answer for answer in results.answers if answer.part in wanted]
    recordings = {cell.label: cell.recording for cell in results.data if cell.recording is not None}
    if text := _json(selected, recordings) if as_json else _text(selected, recordings):
        click.echo(text)
    if not any(answer.is_answered for answer in selected):
        rows = results.cells[["cell", "outcome", "reason"]].astype(str).to_numpy()
        reasons = [f"{cell}: {', '.join(filter(None, (outcome, reason)))}" for cell, outcome, reason in rows]
        raise StepFailed("no question could be answered:\n  " + "\n  ".join(reasons), location=target)
    lacks = dict.fromkeys(lack for recording in recordings.values() for lack in recording.lacks)
    raise_for_lacks(list(lacks), target, require=require)
    if problems := _problems(selected, wanted if parts != "all" else ()):
        raise StepFailed("not all is answered:\n  " + "\n  ".join(problems), location=target)


def _of_file(
    path: Path, size: str | None, context: int, batch: int, fused_qkv: bool, names: PhaseNames
) -> Results:
    """One capture as one cell; a published name says its size and context."""
    from lab.rooms.nsys.config import PART_TYPES, parse_sizes, spec_of
    from lab.rooms.nsys.findings import results_of_file
    from lab.rooms.nsys.layout import CellData, cell_of_name, stem_of

    if size is None and (cell := cell_of_name(stem_of(path))) is not None:
        size, context = cell.size, cell.context
    spec = spec_of(parse_sizes(size)[0], fused_qkv=fused_qkv) if size else None
    cell = CellData(
        size=spec.name if spec else path.name,
        context=context,
        type="forward",
        parts=tuple(PART_TYPES),
        capture=path,
        spec=spec,
        batch=batch,
    )
    return results_of_file(cell, path, names)


def _problems(answers: Sequence[Answer], required: Sequence[str]) -> list[str]:
    """A sentence per required question without any answer, and per check that failed."""
    from lab.rooms.nsys.answers.answer import FAILED

    answered = {answer.part for answer in answers if answer.is_answered}
    unanswered = [f"({part}): no recording here answers it" for part in required if part not in answered]
    return unanswered + [
        f"({answer.part}) {answer.cell}: {check.line(with_state=False)}"
        for answer in answers
        for check in answer.checks
        if check.state == FAILED
    ]


def _text(answers: Sequence[Answer], recordings: Mapping[str, Recording]) -> str:
    """A sentence per answer with its checks; before them what each recording lacks, behind them its notes."""
    from lab.recordings.integrity.words import integrity_lines

    lines = []
    for cell, recording in recordings.items():
        if recording.lacks:
            head, *findings = integrity_lines(recording.lacks)
            lines += [f"{cell}: {head}", *findings]
    for answer in answers:
        num_steps = len(recordings[answer.cell].steps)
        counted = f" ({plural(num_steps, 'step')})" if num_steps else ""
        lines.append(f"({answer.part}) {answer.cell}{counted}: {answer.sentence}")
        lines += [f"    {check.line()}" for check in answer.checks]
    lines += [
        f"note: {cell}: {text}" for cell, recording in recordings.items() for text in recording.problems
    ]
    return "\n".join(printable(line.replace("\n", "\\n")) for line in lines)


def _json(answers: Sequence[Answer], recordings: Mapping[str, Recording]) -> str:
    """A list with an entry per question, cell and process."""
    import msgspec

    from lab.recordings.integrity.words import as_json, bound

    rows = [
        {
            "part": answer.part,
            "cell": answer.cell,
            "process": recording.process_index,
            "pid": recording.process.pid,
            "rank": recording.process.rank,
            "state": answer.state,
            "answer": answer.sentence,
            "values": answer.values,
            "checks": answer.checks,
            "steps": len(recording.steps),
            "notes": recording.problems,
            "integrity": as_json(recording.lacks),
            "bound": bound(recording.lacks),
        }
        for answer in answers
        for recording in [recordings[answer.cell]]
    ]
    return msgspec.json.encode(rows, enc_hook=float).decode()
