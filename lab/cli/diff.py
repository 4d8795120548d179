"""`lab diff`: a room that recognises the inputs compares them; else they are recordings."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from lab.cli.registry import differs
from lab.compare.cli import diff as diff_recordings
from lab.errors import UsageError

OF_ROOMS = ("a", "b", "repeats_a", "as_json")  # parameters that a room's comparison takes


@click.pass_context
def _diff(ctx: click.Context, /, a: Path, b: Path, more: tuple[Path, ...], **options: Any) -> None:
    for name in differs():
        module = importlib.import_module(name)
        if any(module.recognises(path) for path in (a, b, *more)):
            _refuse_others(ctx, name)
            repeats = options["repeats_a"]
            module.diff(a, b, repeat_a=repeats[0] if repeats else None, as_json=options["as_json"])
            return
    ctx.invoke(diff_recordings, a=a, b=b, more=more, **options)


def _refuse_others(ctx: click.Context, module: str) -> None:
    """Raises UsageError for a parameter that a room's comparison does not take."""
    typed = [
        param
        for param in ctx.command.params
        if ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    for param in typed:
        many = param.name == "repeats_a" and len(ctx.params["repeats_a"]) > 1
        if param.name not in OF_ROOMS or many:
            name = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(ctx)
            raise UsageError(
                f"{name} {'more than once ' if many else ''}does not go with these inputs",
                fix=f"give A, B, one --repeat-a, --json. {differs()[module]}",
            )


diff = click.Command(
    "diff",
    params=diff_recordings.params,
    callback=_diff,
    help="\n\n".join([diff_recordings.help or "", *differs().values()]),
)
