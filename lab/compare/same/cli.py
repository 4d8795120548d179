"""`lab same A B`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.options import PATH, as_json, option

if TYPE_CHECKING:
    from lab.workload.recorder.format import Recording

EXITS = {
    **dict.fromkeys(("same bits", "within noise", "within rounding", "bitwise"), 0),
    "undecided": 3,
}


@click.command("same")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH, required=False)
@click.option(
    "--floor", "floors", type=PATH, multiple=True, help="A again with nudged weights: the noise; repeatable."
)
@click.option("--reference", type=PATH, help="The same model and inputs in float64.")
@click.option(
    "--level",
    type=click.Choice(["ends", "module", "op"]),
    help="Compare no more than this: across versions of torch, whose ops differ, module or ends.",
)
@option("--top", type=click.IntRange(min=1), default=10, help="Rows of each list on the terminal.")
@as_json("The verdict")
@click.pass_context
def same(
    ctx: click.Context,
    a: Path,
    b: Path | None,
    floors: tuple[Path, ...],
    reference: Path | None,
    level: str | None,
    top: int,
    as_json: bool,
) -> None:
    """Whether two recorded runs computed the same, and from which op, module or step on they did not.

    \b
    lab same A B                recordings of lab.same.record: bits, then values against the noise
    lab same TWIN RANKS         RANKS: the folder that several ranks recorded; TWIN: one rank's recording
    lab same REPLAY [REPLAY]    runs of lab run replay: repeats on one machine, or on two

    Exit code 0: bit-equal, or within the measured noise or rounding. 1: an output or an op is beyond it, or
    the two are not comparable. 3: undecided, and why.
    """
    import msgspec

    from lab.errors import UsageError, needs
    from lab.workload.recorder.format import OF_RANKS, files_of

    with needs("analysis"):
        answer: Any
        if a.is_dir() and not files_of(a, OF_RANKS):
            _refuse("runs of lab run replay", floor=floors, reference=reference, level=level)
            outcome, answer, lines = _of_steps([a, *([b] if b else [])])
        elif b is None:
            raise UsageError("one recording alone has nothing to be compared with", fix="lab same A B")
        else:
            from lab.compare.same.judge import judge
            from lab.compare.same.parallel import judge_parallel
            from lab.compare.same.text import parallel_text, text

            noise, exact = [_read(path) for path in floors], _read(reference) if reference else None
            ranks = [_read(path) for path in files_of(b, OF_RANKS)] if b.is_dir() else []
            if b.is_dir() and (not ranks or a.is_dir()):
                raise UsageError(
                    "no recordings of ranks in this folder, or the twin is one too",
                    location=b,
                    fix=f"lab same TWIN RANKS: a file of one rank, and a folder with {OF_RANKS}",
                )
            if ranks:
                _refuse("a folder of ranks", level=level)
            base = _read(a)
            if ranks:
                answer = judge_parallel(base, ranks, noise, exact)
                lines = parallel_text(answer, top)
            else:
                head = _read(b)
                answer = judge(base, head, noise, exact, level=level or "op")
                lines = text(answer, base, head, top)
            outcome = answer.outcome
    click.echo(msgspec.json.encode(answer) if as_json else lines)
    ctx.exit(EXITS.get(outcome, 1))


def _refuse(recorded: str, **values: object) -> None:
    """Raise UsageError for the first option with a value: `recorded` would be compared without it."""
    from lab.errors import UsageError

    for name, value in values.items():
        if value:
            raise UsageError(f"--{name} does not go with {recorded}", fix="leave it out")


def _of_steps(folders: list[Path]) -> tuple[str, dict[str, Any], str]:
    """The outcome of replays, their answer for scripts, and its lines."""
    from lab.compare.same.steps import folders_of, gather, judge_steps
    from lab.compare.same.steps_text import answer, missing, sentences

    names = [f"{folder.name}/" if len(folders) > 1 else "" for folder in folders]
    replays = [gather(folders_of(folder, name)) for folder, name in zip(folders, names, strict=True)]
    verdict = judge_steps([record for records, _ in replays for record in records])
    lacking = [*(problem for _, problems in replays for problem in problems), *missing(verdict)]
    lines = sentences(verdict)
    shown = "\n".join([*lines, *(f"! {problem}" for problem in lacking)])
    outcome = "incomplete" if lacking else verdict.outcome
    return outcome, {**answer(verdict), "verdict": lines, "lacking": lacking}, shown


def _read(path: Path) -> Recording:
    from lab.errors import BadDataError
    from lab.workload.recorder.format import read

    recording = read(path)
    if not recording.rows:
        raise BadDataError(
            "the recording has no rows", location=path, fix="run the model inside lab.same.record"
        )
    return recording
