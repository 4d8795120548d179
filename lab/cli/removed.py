"""Answer the name of a removed command with what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from lab.cli.registry import REMOVED
from lab.terminal.lazy import LazyGroup


class RootGroup(LazyGroup):
    """The commands of `lab`, and a usage error for each removed one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for a removed command, with the new command line for its arguments."""
        for length in range(min(len(args), 3), 0, -1):
            path = " ".join(args[:length])
            if path in REMOVED and not ctx.resilient_parsing:
                # Without a context, so that click prints this line and no usage of `lab` above it.
                raise click.UsageError(f"`lab {path}` was removed; type: {replacement(path, args[length:])}")
        return super().resolve_command(ctx, args)


def replacement(path: str, args: Sequence[str]) -> str:
    """What to type instead of `lab PATH ARGS`."""
    template = REMOVED[path]
    run_args: Sequence[str] = ()
    if "{run}" in template:
        run_args, args = split_run_options(args, path.split()[0])
    # By hand and not by str.format: arguments and templates may hold braces, such as {out}.
    words = [
        {"{run}": shlex.join(run_args), "{args}": shlex.join(args)}.get(w, w) for w in template.split(" ")
    ]
    return " ".join(filter(None, words))


def split_run_options(args: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """-> the options of `lab run` among a command's arguments with their values, and all else.

    An option that the command has itself stays with the command.
    """
    from lab.cli.commands import run

    command = run.get_command(click.Context(run), name)
    rest = list(args)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    options = {flag: option for option in run.params for flag in (*option.opts, *option.secondary_opts)}
    for param in command.params if command else ():
        for flag in (*param.opts, *param.secondary_opts):
            options.pop(flag, None)
    run_args: list[str] = []
    command_args = list(args[: len(args) - len(rest)])
    while rest and rest[0] != "--":
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        option = options.get(flag)
        if option is None:
            command_args.append(word)
            continue
        run_args.append(word)
        if isinstance(option, click.Option) and not option.is_flag and not equals:
            run_args += rest[: option.nargs]
            del rest[: option.nargs]
    return run_args, command_args + rest
