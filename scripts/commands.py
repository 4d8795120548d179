"""The reference of commands, made from click: `python scripts/commands.py > docs/commands.md`.

docs/commands.md names every command with its arguments and one line; `options_page` is the site's page of the
whole help of each. A test holds the committed page against this.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from lab import errors
from lab.cli.main import cli
from lab.cli.registry import removed

HEAD = """# Commands

Every command of `lab`. `lab COMMAND --help` prints its options; the site has all of them on one page.
"""


def leaves(command: click.Command, path: tuple[str, ...] = ("lab",)) -> Iterator[tuple[str, click.Command]]:
    """Every command that runs something, with its full name."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    if command.invoke_without_command and len(path) > 1:
        yield " ".join(path), command
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from leaves(below, (*path, name))


def usage(name: str, command: click.Command) -> str:
    arguments = [
        parameter.make_metavar(click.Context(command))
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    ]
    return " ".join([name, *arguments])


def overview() -> str:
    lines = [HEAD]
    for name, command in leaves(cli):
        lines.append(f"- `{usage(name, command)}`: {command.get_short_help_str(200)}")
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in exit_codes()]
    lines += ["", "## Renamed", "", "Each old name, and what to type now:", ""]
    for before, now in sorted(removed().items()):
        command, _, remark = now.replace("{args}", "...").partition("  # ")
        lines.append(f"- `lab {before}`: `{command}`" + (f" ({remark})" if remark else ""))
    return "\n".join(lines) + "\n"


def exit_codes() -> list[list[str]]:
    """Code and meaning of each class, from the table in lab/errors.py; without 0."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (errors.__doc__ or "").splitlines()]
    return [[code, meaning] for code, _, meaning in filter(None, rows) if code.isdigit()]


def options_page() -> str:
    """The whole help of every command, one section each."""
    parts = ["# Options\n"]
    for name, command in leaves(cli):
        context = click.Context(command, info_name=name, max_content_width=100)
        parts.append(f"## {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(overview(), end="")
