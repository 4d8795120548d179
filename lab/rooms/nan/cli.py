"""`lab run nan`, `lab run nixnan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lab.cli import options_of

KNOBS = (
    click.argument("experiment", nargs=-1, required=True),
    click.option(
        "--model", default="tiny", show_default=True, help="Hub id, path, or tiny (offline, random weights)."
    ),
    click.option("--prompt", default="dizzy", show_default=True),
    click.option("--max-new-tokens", type=click.IntRange(min=1), default=50, show_default=True),
    click.option("--seed", type=int, default=0, show_default=True),
)


def _with_knobs(function: Callable[..., Any]) -> Callable[..., Any]:
    for knob in reversed(KNOBS):
        function = knob(function)
    return function


@click.command("nan")
@_with_knobs
@click.pass_context
def nan(ctx: click.Context, /, experiment: tuple[str, ...], **knobs: Any) -> None:
    """Watch every module's outputs: baseline, bfloat16, ..., priority or all. (Plan only: --dry-run.)"""
    _drive(ctx, experiment, sass=False, **knobs)


@click.command("nixnan")
@_with_knobs
@click.pass_context
def nixnan(ctx: click.Context, /, experiment: tuple[str, ...], **knobs: Any) -> None:
    """The same experiments under nixnan.so, instruction by instruction. (Plan only: --dry-run.)"""
    _drive(ctx, experiment, sass=True, **knobs)


def _drive(ctx: click.Context, experiment: tuple[str, ...], **knobs: Any) -> None:
    from lab.drive import drive
    from lab.rooms import Plan, Site
    from lab.rooms.nan import _absent
    from lab.rooms.nan.config import NanConfig
    from lab.rooms.nan.plan import experiments, plan

    options = options_of(ctx)
    config = NanConfig(experiments=experiments(experiment), **knobs)
    if not options.dry_run:
        raise _absent()

    def make_plan(site: Site, root: Path) -> Plan:
        return plan(config, site)

    drive("nan", make_plan, options)
