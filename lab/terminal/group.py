"""A click group with whole sentences in its list of commands, and suggestions for mistyped ones."""

from __future__ import annotations

import click

MAX_SUGGESTIONS = 3


class Group(click.Group):
    """A group that lists each command with its whole first sentence, which click would cut."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for an unknown command, with similar names."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            alike = difflib.get_close_matches(args[0], names, MAX_SUGGESTIONS)
            meant = f"Did you mean {' or '.join(alike)}?" if alike else f"One of: {', '.join(names)}."
            raise click.UsageError(f"No such command {args[0]!r}. {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, c.get_short_help_str(limit=1000)) for name, c in commands if c and not c.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
