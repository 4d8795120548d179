"""Groups of commands: full sentences in lists, suggestions for typos, commands imported when called."""

from __future__ import annotations

import importlib
from typing import Any

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
        with formatter.section("Commands"):
            formatter.write_dl(self.help_lines())

    def help_lines(self) -> list[tuple[str, str]]:
        """Each command with its line in --help."""
        return [(name, c.get_short_help_str(limit=1000)) for name, c in sorted(self.commands.items())]


class LazyGroup(Group):
    """A group that imports a command when it is called.

    lazy: command -> (module:attribute, help line).
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return None
        module, _, attribute = self._lazy[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def help_lines(self) -> list[tuple[str, str]]:
        return [(name, text) for name, (_, text) in self._lazy.items()]
