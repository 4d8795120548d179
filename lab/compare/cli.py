"""`lab diff A B` and `lab check BASE HEAD`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.options import as_json, option, out

if TYPE_CHECKING:
    from lab.compare.diff import Compared
    from lab.compare.replay import Asked

PATH = click.Path(path_type=Path)


@click.command("diff")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
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
@option("--repeats", type=click.IntRange(min=2, max=1000), default=10, help="With --replay: of each call.")
@option("--top", type=click.IntRange(min=1), default=12, help="Findings on the terminal.")
@out("Folder for diff.html, tables/*.csv and findings.json.")
@as_json("The comparison")
def diff(
    a: Path,
    b: Path,
    repeats_a: tuple[Path, ...],
    repeats_b: tuple[Path, ...],
    by: tuple[str, ...],
    replay: bool,
    execution_trace_a: Path | None,
    execution_trace_b: Path | None,
    image: str | None,
    repeats: int,
    top: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """What changed from A to B: recordings of any format, or folders with one per rank.

    The change of a step is split by op, shapes and kernel, and the parts add up. One pair of processes
    suggests; repeats (--repeat-a, --repeat-b) prove. Exit code 1 where the two are not comparable, or GPU
    work is missing from one of them; 7 where --replay finds no GPU.
    """
    import msgspec

    from lab.errors import StepFailed, UsageError, needs

    if replay:
        from lab.compare.replay import Asked, need_gpu

        if out is None:
            raise UsageError("--replay keeps what it ran", fix="-o FOLDER")
        need_gpu()
        asked = Asked((a, b), (execution_trace_a, execution_trace_b), out / "replay", image, repeats)
    with needs("analysis"):
        from lab.compare.diff import compare_sides
        from lab.compare.groups import KINDS
        from lab.compare.text import text

        compared = compare_sides(
            a,
            b,
            repeats_a=repeats_a,
            repeats_b=repeats_b,
            by=KINDS if out else by,
            evidence=bool(out or as_json),
        )
    found, shown = compared.difference, compared.difference.shown
    if replay and shown.unit:
        _replay(compared, asked)
    if out:
        from lab.compare.page import write

        written = write(compared, out)
    if as_json:
        whole = {**msgspec.to_builtins(shown), "ranks": msgspec.to_builtins(found.ranks), "a_path": found.a}
        whole |= {"b_path": found.b, "missing": found.missing, "problems": found.problems, "torn": found.torn}
        whole |= {"blurred": found.blurred, "lacks": msgspec.to_builtins(found.lacks)}
        if found.replayed is not None:
            whole |= {"replay": msgspec.to_builtins(found.replayed), "replay_notes": found.replay_notes}
        whole |= {"around": msgspec.to_builtins(found.around), "files": msgspec.to_builtins(found.files)}
        click.echo(msgspec.json.encode(whole))
    else:
        click.echo(text(found, top, by))
        if out:
            click.echo("\n".join(map(str, written)))
    if not shown.comparable:
        raise StepFailed(f"not comparable: {shown.reason}", where=f"{a} and {b}")
    if found.torn or found.blurred:
        raise StepFailed(
            "the recordings are incomplete:\n"
            + "\n".join(f"  {one}" for one in [*found.torn, *found.blurred][:20]),
            where=f"{a} and {b}",
            fix="figures are bounds where GPU work is missing, rows by op where launches or operators are; "
            "record again for exact ones",
        )
    if found.missing or found.problems:
        raise StepFailed(
            "some ranks are not compared", where=f"{a} and {b}", fix="; ".join(found.missing[:3])
        )


def _replay(compared: Compared, asked: Asked) -> None:
    from lab.compare.replay import replay

    def say(text: str) -> None:
        click.echo(text, err=True)

    found, notes = replay(compared.shown, asked, say)
    compared.difference.replayed, compared.difference.replay_notes = found, notes


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
@click.option("--junit", type=PATH, metavar="FILE", help="Also the verdict as JUnit's XML.")
@as_json("The decision of each metric")
@click.pass_context
def check(
    ctx: click.Context,
    base: str,
    head: str,
    command: tuple[str, ...],
    max_slowdown: float,
    out: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Whether HEAD is slower than BASE: two folders with one recording per process.

    With `-- COMMAND` the processes are run first: BASE and HEAD are git revisions (worktrees), folders to run
    in, or images (image:NAME), and {out} in COMMAND is the trace, or {"step_ms": [...]}, that a process
    writes. Fresh processes, interleaved, the first of each side dropped, until decided or at most 12 a side.

    Exit code 0: a slowdown beyond --max-slowdown is excluded. 1: proven. 3: undecided, and how many more
    processes would decide. Processes are the samples; at least three a side.
    """
    import msgspec

    from lab.compare.gate import judge, processes, sentences
    from lab.core.words import printable
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
    if junit:
        from lab.compare.junit import write_junit

        write_junit(found, junit)
    click.echo(msgspec.json.encode(found) if as_json else printable("\n".join(sentences(found))))
    ctx.exit({"excluded": 0, "regression": 1, "undecided": 3}[found.outcome])
