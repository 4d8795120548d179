"""A click group whose list of commands is not cut short."""

from __future__ import annotations

import click


class Group(click.Group):
    """Lists each command with its whole first sentence, over several lines where click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(limit=1000)) for name, one in known if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
