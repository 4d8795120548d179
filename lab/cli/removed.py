"""Answer the name of a removed command with what to type instead."""

from __future__ import annotations

import shlex

import click

from lab.cli.registry import REMOVED
from lab.terminal.group import LazyGroup

MOST_WORDS = max(len(path.split()) for path in REMOVED)


class RootGroup(LazyGroup):
    """The commands of `lab`, and a usage error for each removed one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for a removed command, with the new command line for its arguments."""
        for length in range(MOST_WORDS, 0, -1):
            path = " ".join(args[:length])
            if path in REMOVED and not ctx.resilient_parsing:
                # By hand, not by str.format: an argument may hold braces, such as {out}.
                command_line = REMOVED[path].replace("{args}", shlex.join(args[length:])).rstrip()
                # Without a context, so that click prints this line without the usage of `lab` above it.
                raise click.UsageError(f"`lab {path}` was removed; type: {command_line}")
        return super().resolve_command(ctx, args)
