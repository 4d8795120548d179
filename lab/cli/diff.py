"""`lab diff`: nixnan logs, or folders of one, are compared by the nan room; recordings by lab.compare."""

from __future__ import annotations

import importlib
from typing import Any

import click

from lab.cli.registry import DIFF_OF_LOGS
from lab.compare.cli import diff as diff_recordings
from lab.errors import UsageError

OF_LOGS = ("a", "b", "repeats_a", "as_json")
HELP_OF_LOGS = (
    "Two nixnan logs, or folders of one: which sites (function, SASS, operand) appeared or vanished, judged "
    "against --repeat-a."
)


@click.pass_context
def _diff(ctx: click.Context, /, **values: Any) -> None:
    nixnan = importlib.import_module(DIFF_OF_LOGS)
    a, b, repeats = values["a"], values["b"], values["repeats_a"]
    if not any(nixnan.recognises(path) for path in (a, b, *values["further"])):
        ctx.invoke(diff_recordings, **values)
        return
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name not in OF_LOGS and source is click.core.ParameterSource.COMMANDLINE:
            _refuse(param.opts[0] if isinstance(param, click.Option) else param.make_metavar(ctx))
    if len(repeats) > 1:
        _refuse("--repeat-a more than once")
    nixnan.diff(a, b, repeat_a=repeats[0] if repeats else None, as_json=values["as_json"])


def _refuse(parameter: str) -> None:
    raise UsageError(
        f"{parameter} does not go with these inputs",
        fix=f"give A, B, one --repeat-a, --json. {HELP_OF_LOGS}",
    )


diff = click.Command(
    "diff",
    params=diff_recordings.params,
    callback=_diff,
    help=f"{diff_recordings.help}\n\n{HELP_OF_LOGS}",
)
