"""`lab diff A B` and `lab check BASE HEAD`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.options import as_json, option, out

if TYPE_CHECKING:
    from lab.compare.diff.comparison import Difference

PATH = click.Path(path_type=Path)


@click.command("diff")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.argument("further", metavar="[C...]", type=PATH, nargs=-1)
@click.option("--repeat-a", "repeats_a", type=PATH, multiple=True, help="A further process of A; repeatable.")
@click.option("--repeat-b", "repeats_b", type=PATH, multiple=True, help="A further process of B; repeatable.")
@click.option(
    "--by",
    type=click.Choice(["phase", "module", "op", "kernel"]),
    multiple=True,
    help="Also the change of kernel time by these; each adds up to the whole. Repeatable.",
)
@click.option(
    "--replay",
    is_flag=True,
    help="Run the changed kernels again on this GPU: is the kernel slower, or its neighbourhood? Needs -o.",
)
@click.option("--execution-trace-a", type=PATH, help="With --replay: A's execution trace, for its memory.")
@click.option("--execution-trace-b", type=PATH, help="With --replay: that of B.")
@click.option("--image", metavar="NAME", help="With --replay: run the replays in this image.")
@option("--top", type=click.IntRange(min=1), default=12, help="Findings on the terminal.")
@out("Folder for diff.html, tables/*.csv and findings.json; with C a folder in it for each pair.")
@as_json("The comparison; with C a list of them")
def diff(
    a: Path,
    b: Path,
    further: tuple[Path, ...],
    as_json: bool,
    top: int,
    by: tuple[str, ...],
    out: Path | None,
    replay: bool,
    repeats_a: tuple[Path, ...],
    repeats_b: tuple[Path, ...],
    **replay_flags: Any,
) -> None:
    """What changed from A to B: recordings of any format, or folders with one per rank (runs, sweeps).

    The change of a step is split by op, shapes and kernel, and the parts add up. One pair of processes
    suggests; repeats (--repeat-a, --repeat-b) prove. Further recordings (C...) are each compared with A.
    Exit code 1 where two are not comparable, or GPU work is missing from one of them; 7 where --replay finds
    no GPU.
    """
    from lab.errors import UsageError, needs

    if further and (repeats_b or replay or replay_flags["execution_trace_b"]):
        raise UsageError(
            "--repeat-b and --replay go with A and B alone", fix="compare C in a call of its own"
        )
    if replay and out is None:
        raise UsageError("--replay keeps what it ran", fix="-o FOLDER")
    with needs("analysis"):
        from lab.compare.diff.comparison import compare_sides
        from lab.compare.diff.groups import KINDS
        from lab.compare.diff.text import text

        if out is not None:  # pandas and what draws are not needed on the terminal
            from lab.compare.diff.page import write
    if replay:
        from lab.compare.diff.replay import need_gpu, replay_findings

        need_gpu()
    differences = []
    for number, head in enumerate((b, *further), start=1):
        compared = compare_sides(
            a,
            head,
            repeats_a=repeats_a,
            repeats_b=repeats_b,
            by=KINDS if out else by,
            evidence=as_json or out is not None,
        )
        differences.append(compared.difference)
        if replay and out:
            replay_findings(compared, (a, b), out / "replay", **replay_flags)
        written = write(compared, out / f"{number}_{head.name}" if further else out) if out else []
        if not as_json:
            click.echo("\n".join([text(compared.difference, top, by), *map(str, written)]))
    if as_json:
        import msgspec

        printed = [_as_json(difference) for difference in differences]
        click.echo(msgspec.json.encode(printed if len(printed) > 1 else printed[0]))
    for difference in differences:  # all pairs are compared before the first that is not complete ends it
        _raise_for(difference)


def _as_json(difference: Difference) -> dict[str, Any]:
    """The shown rank's comparison with the ranks and what is around them."""
    import msgspec

    fields = msgspec.to_builtins(difference)
    if fields["replayed"] is None:
        del fields["replayed"], fields["replay_notes"]
    else:
        fields["replay"] = fields.pop("replayed")
    fields |= {"a_path": fields.pop("a"), "b_path": fields.pop("b")}
    return {**msgspec.to_builtins(difference.shown), **fields}


def _raise_for(difference: Difference) -> None:
    """Raises StepFailed where the comparison is known to be incomplete."""
    from lab.core.words import first_few, listed
    from lab.errors import StepFailed

    location = f"{difference.a} and {difference.b}"
    if apart := [rank for rank in difference.ranks if not rank.comparable]:
        share = f" ({len(apart)} of {len(difference.ranks)} ranks)" if len(difference.ranks) > 1 else ""
        raise StepFailed(f"not comparable{share}: {apart[0].reason}", location=location)
    if difference.torn or difference.blurred:
        raise StepFailed(
            listed("the recordings are incomplete", [*difference.torn, *difference.blurred]),
            location=location,
            fix="figures are bounds where GPU work is missing, rows by op where launches or operators are; "
            "record again for exact ones",
        )
    if difference.missing or difference.problems:
        reasons = first_few([*difference.missing, *difference.problems], 3, between="; ")
        raise StepFailed("some ranks are not compared", location=location, fix=reasons)


class Share(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """`2%` or `0.02`, finite and not negative."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{text!r} is not a share such as 2% or 0.02", param, ctx)
        if not (math.isfinite(share) and share >= 0):
            self.fail(f"{text!r} is not a share of 0 or more", param, ctx)
        if share >= 1 and "%" not in text:  # who writes 2 means 2 %, and 200 % would pass anything
            self.fail(f"{text!r} would be {share:.0%}: write {text}% or {share:.0%}", param, ctx)
        return share


@click.command("check")
@click.argument("base")
@click.argument("head")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@option("--max-slowdown", type=Share(), default="2%", help="The largest slowdown that passes.")
@out("With COMMAND: an empty folder for the recordings of every process.")
@as_json("The decision of each total")
@click.pass_context
def check(
    ctx: click.Context,
    base: str,
    head: str,
    command: tuple[str, ...],
    max_slowdown: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Whether HEAD is slower than BASE: two folders with one recording per process.

    With `-- COMMAND` the processes are run first: BASE and HEAD are git revisions (worktrees), folders to run
    in, or images (image:NAME), and {out} in COMMAND is the trace, or {"step_ms": [...]}, that a process
    writes. Fresh processes, interleaved, the first of each side dropped, until decided or at most 12 per
    side; a slowdown that they prove has to show in a second set.

    Exit code 0: a slowdown beyond --max-slowdown is excluded, of the mean, the median and the tail of the
    steps and of each kernel's signature. 1: proven of one. 3: undecided, and how many more processes would
    decide. 4: a process failed, or left no recording. Processes are the samples; at least three per side.
    """
    import msgspec

    from lab.compare.check import judge_folders, sentences
    from lab.core.words import printable
    from lab.errors import UsageError, needs

    with needs("analysis"):
        if command:
            from lab.compare.check.repeat import repeat, sides

            if out is None:
                raise UsageError("a command needs a folder for its recordings", fix="-o FOLDER")
            with sides(base, head) as pair:
                verdict = repeat(pair, command, out, max_slowdown, lambda text: click.echo(text, err=True))
        else:
            verdict = judge_folders(Path(base), Path(head), max_slowdown)
    click.echo(msgspec.json.encode(verdict) if as_json else printable("\n".join(sentences(verdict))))
    ctx.exit({"excluded": 0, "regression": 1, "undecided": 3}[verdict.outcome])
