"""`lab nsys answers`: questions a to e from a run, a folder of captures, or one capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.integrity import REQUIRE, raise_for_lacks
from lab.terminal.options import as_json, option

if TYPE_CHECKING:
    from lab.core.run import Run
    from lab.recordings.lacks import Lack
    from lab.rooms.nsys.answers.answer import Answer
    from lab.rooms.nsys.report.results import Results


@click.command("answers")
@click.argument("target", type=click.Path(path_type=Path))
@option("-p", "--part", "parts", default="all", metavar="a,b,...", help="Questions to answer.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write tables, figures and the page here.")
@as_json("Answers, numbers and checks")
@click.option("--model-size", help="Of one capture: for the checks of launches and FLOPs. [default: unknown]")
@REQUIRE
@option("--context-length", type=click.IntRange(min=2), default=512, help="Of one capture.")
@option("--batch-size", type=click.IntRange(min=1), default=4, help="Of one capture.")
@click.option("--fused-qkv", is_flag=True, help="Of one capture: one GEMM for query, key and value.")
def answers(
    target: Path,
    parts: str,
    out: Path | None,
    as_json: bool,
    model_size: str | None,
    context_length: int,
    batch_size: int,
    fused_qkv: bool,
    require: str | None,
) -> None:
    """Answer questions a to e from TARGET, a run, a folder of captures or one capture. It is only read."""
    from lab.errors import StepFailed, needs
    from lab.rooms.nsys.config import parse_parts

    wanted = parse_parts(parts)
    with needs("analysis"):
        if target.is_dir():
            results = of_folder(target)
        else:
            results = of_file(target, model_size, context_length, batch_size, fused_qkv=fused_qkv)
        if out is not None:
            write_page_of(results, target, out)
    given = [answer for answer in results.answers if answer.part in wanted]
    lacks = {cell.label: cell.recording.lacks for cell in results.data if cell.recording is not None}
    click.echo(as_text(given, lacks, as_json=as_json))
    if not any(answer.given for answer in given):
        reasons = [f"{row.cell}: {row.outcome} {row.reason}".strip() for row in results.cells.itertuples()]
        raise StepFailed("no question could be answered:\n  " + "\n  ".join(reasons), where=target)
    raise_for_lacks([lack for some in lacks.values() for lack in some], target, require=require)


def of_folder(folder: Path) -> Results:
    """Every cell of a run or of a folder of captures. Raises MissingError where there is none."""
    from lab.errors import MissingError
    from lab.rooms.nsys.findings import merged, outcomes, planned, results_of
    from lab.rooms.nsys.layout import find_cells

    run = _run_of(folder)
    found = merged(find_cells(folder), planned(run))
    if not found:
        raise MissingError(
            "no captures of the nsys room in this folder",
            where=folder,
            fix="name a run of `lab run nsys`, or one file",
        )
    return results_of(found, outcomes(run), folder, lambda _: None)


def of_file(path: Path, size: str | None, context: int, batch: int, *, fused_qkv: bool) -> Results:
    """One capture as one cell; its phases determine the profile type. Raises what the reader raises."""
    from lab.rooms.nsys.config import parse_sizes, spec_of
    from lab.rooms.nsys.findings import results_of_one
    from lab.rooms.nsys.layout import cell_of_name, stem_of

    named = cell_of_name(stem_of(path))
    name = size or (named.size if named else None)
    spec = spec_of(parse_sizes(name)[0], fused_qkv=fused_qkv) if name else None
    return results_of_one(path, spec, named.context if named and not size else context, batch)


def write_page_of(results: Results, path: Path, out: Path) -> None:
    """Tables, figures and page; the run's own analysis (`lab analyze`) adds the summary and nsys' reports."""
    from lab.report.provenance import provenance
    from lab.rooms.nsys.report.page import report

    run = _run_of(path) if path.is_dir() else None
    origin = provenance(path, run.manifest if run else None)
    kind = run.manifest.kind.value if run else "measured"
    report(results, out=out, title=f"Nsys {path.resolve().name}", provenance=origin, kind=kind)


def as_text(given: list[Answer], lacks: Mapping[str, Sequence[Lack]], *, as_json: bool) -> str:
    """The answers as JSON, or as one sentence each with its checks below; each cell's recording first.

    lacks: what the recording of each cell is missing, by the cell's label.
    """
    from lab.recordings.integrity.words import integrity_lines

    if as_json:
        import msgspec

        return msgspec.json.encode(
            [_as_json(answer, lacks.get(answer.cell, ())) for answer in given], enc_hook=float
        ).decode()
    lines = [
        f"{cell}: {line}" if number == 0 else line
        for cell, some in lacks.items()
        if some
        for number, line in enumerate(integrity_lines(some))
    ]
    for answer in given:
        lines.append(f"({answer.part}) {answer.cell}: {answer.sentence}")
        lines += [f"    [{c.state}] {c.name}: expected {c.expected}, found {c.found}" for c in answer.checks]
    return "\n".join(lines)


def _as_json(answer: Answer, lacks: Sequence[Lack]) -> dict[str, object]:
    from lab.recordings.integrity.words import as_json, bound

    return {
        "part": answer.part,
        "cell": answer.cell,
        "state": answer.state,
        "answer": answer.sentence,
        "values": answer.values,
        "checks": answer.checks,
        "integrity": as_json(lacks),
        "bound": bound(lacks),
    }


def _run_of(folder: Path) -> Run | None:
    from lab.core.run import Run

    return Run.open(folder) if Run.is_run(folder) else None
