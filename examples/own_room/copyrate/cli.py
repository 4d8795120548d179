import click

from lab.core.plan import Experiment
from lab.terminal.options import options_of


@click.command("copyrate")
@click.option("--mib", type=click.IntRange(min=1), default=64, show_default=True, help="Size of a copy, MiB.")
@click.pass_context
def run_copyrate(ctx, mib):
    """Copy memory, and say how fast."""
    from lab.rooms.copyrate.plan import plan

    return Experiment("copyrate", lambda site, root: plan(mib), options_of(ctx))
