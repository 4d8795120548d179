"""A click group whose list of commands is not cut short, and which says what a mistyped command may mean."""

from __future__ import annotations

import click

MOST_ALIKE = 3


class Group(click.Group):
    """Lists each command with its whole first sentence, over several lines where click would cut it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for no such command, naming those that may be meant."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            alike = difflib.get_close_matches(args[0], known, MOST_ALIKE)
            meant = f"Did you mean {' or '.join(alike)}?" if alike else f"One of: {', '.join(known)}."
            raise click.UsageError(f"No such command {args[0]!r}. {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(limit=1000)) for name, one in known if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
