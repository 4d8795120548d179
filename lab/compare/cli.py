"""`lab diff A B` and `lab check BASE HEAD`."""

from __future__ import annotations

import math
from pathlib import Path

import click

from lab.terminal.options import as_json, option, out

PATH = click.Path(path_type=Path)


@click.command("diff")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--repeat-a", "repeats_a", type=PATH, multiple=True, help="A further process of A; repeatable.")
@click.option("--repeat-b", "repeats_b", type=PATH, multiple=True, help="A further process of B; repeatable.")
@option("--top", type=click.IntRange(min=1), default=12, help="Findings on the terminal.")
@out("Folder for diff.html, tables/*.csv and findings.json.")
@as_json("The comparison")
def diff(
    a: Path,
    b: Path,
    repeats_a: tuple[Path, ...],
    repeats_b: tuple[Path, ...],
    top: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """What changed from A to B: recordings of any format, or folders with one per rank.

    The change of a step is split by op, shapes and kernel, and the parts add up. One pair of processes
    suggests; repeats (--repeat-a, --repeat-b) prove. Exit code 1 where the two are not comparable, or GPU
    work is missing from one of them.
    """
    import msgspec

    from lab.errors import StepFailed, needs

    with needs("analysis"):
        from lab.compare.diff import compare
        from lab.compare.text import text

        found = compare(a, b, repeats_a=repeats_a, repeats_b=repeats_b)
    shown = found.shown
    if out:
        from lab.compare.page import write

        written = write(found, out)
    if as_json:
        whole = {**msgspec.to_builtins(shown), "ranks": msgspec.to_builtins(found.ranks), "a_path": found.a}
        whole |= {"b_path": found.b, "missing": found.missing, "problems": found.problems, "torn": found.torn}
        click.echo(msgspec.json.encode(whole))
    else:
        click.echo(text(found, top))
        if out:
            click.echo("\n".join(map(str, written)))
    if not shown.comparable:
        raise StepFailed(f"not comparable: {shown.reason}", where=f"{a} and {b}")
    if found.torn:
        raise StepFailed(
            "the recordings are incomplete:\n" + "\n".join(f"  {one}" for one in found.torn[:20]),
            where=f"{a} and {b}",
            fix="figures are bounds where GPU work is missing; record again for exact ones",
        )
    if found.missing or found.problems:
        raise StepFailed(
            "some ranks are not compared", where=f"{a} and {b}", fix="; ".join(found.missing[:3])
        )


class Share(click.ParamType[float]):
    """`2%` or `0.02`, finite and not negative."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{text!r} is not a share such as 2% or 0.02", param, ctx)
        if not (math.isfinite(found) and 0 <= found < 1):
            self.fail(f"{text!r} is not a share between 0 and 1", param, ctx)
        return found


@click.command("check")
@click.argument("base")
@click.argument("head")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@option("--max-slowdown", type=Share(), default="2%", help="The largest slowdown that passes.")
@out("With COMMAND: an empty folder for the recordings of every process.")
@as_json("The decision of each metric")
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

    With `-- COMMAND` the processes are run first: BASE and HEAD are git revisions (worktrees) or folders to
    run in, and {out} in COMMAND is the trace that a process writes. Fresh processes, interleaved, the first
    of each side dropped, until decided or at most 12 a side.

    Exit code 0: a slowdown beyond --max-slowdown is excluded. 1: proven. 3: undecided, and how many more
    processes would decide. Processes are the samples; at least three a side.
    """
    import msgspec

    from lab.compare.gate import judge, processes, sentences
    from lab.errors import UsageError, needs

    with needs("analysis"):
        if command:
            from lab.compare.repeat import repeat, sides

            if out is None:
                raise UsageError("a command needs a folder for its recordings", fix="-o FOLDER")
            with sides(base, head) as both:
                found = repeat(both, command, out, max_slowdown, lambda text: click.echo(text, err=True))
        else:
            found = judge(processes(Path(base)), processes(Path(head)), max_slowdown)
    click.echo(msgspec.json.encode(found) if as_json else "\n".join(sentences(found)))
    ctx.exit({"excluded": 0, "regression": 1, "undecided": 3}[found.outcome])
