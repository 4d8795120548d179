"""`lab same A B`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.terminal.options import PATH, as_json, option

EXITS = {"same bits": 0, "within noise": 0, "differs": 1, "not comparable": 1, "undecided": 3}


@click.command("same")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
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
    b: Path,
    floors: tuple[Path, ...],
    reference: Path | None,
    level: str | None,
    top: int,
    as_json: bool,
) -> None:
    """Whether two recorded forwards and backwards computed the same, and from which op on they did not.

    A, B: recordings of `lab.same.record`. Exit code 0: bit-equal, or within the measured noise. 1: an output
    or an op is beyond it, or the two are not comparable. 3: undecided, and why.
    """
    import msgspec

    from lab.errors import needs

    with needs("analysis"):
        from lab.compare.same.judge import judge
        from lab.compare.same.recording import read
        from lab.compare.same.text import text

        first, second = read(a), read(b)
        noise, exact = [read(one) for one in floors], read(reference) if reference else None
        found = judge(first, second, noise, exact, level=level or "op")
    click.echo(msgspec.json.encode(found) if as_json else text(found, first, second, top))
    ctx.exit(EXITS[found.outcome])
