"""A removed command is answered with what to type instead, for one release."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.cli.registry import removed

REMOVED = removed()


def resolve(words: list[str]) -> tuple[list[str], click.Command]:
    """-> the names of the commands that `lab WORDS` goes through, and the one that it ends at."""
    command: click.Command = cli
    names: list[str] = []
    while isinstance(command, click.Group) and words:
        below = command.get_command(click.Context(command), words[0])
        if below is None:
            break
        command = below
        names.append(words.pop(0))
    return names, command


@pytest.mark.parametrize("path", REMOVED)
def test_a_removed_name_is_a_usage_error_of_one_line(path):
    done = CliRunner().invoke(cli, [*path.split(), "--some-option", "a b"])
    assert done.exit_code == 2
    assert done.output.count("\n") == 1 and f"`lab {path}` was removed; type: " in done.output
    assert "{" not in done.output
    if "{args}" in REMOVED[path]:
        assert done.output.rstrip().split("type: ")[1].count("--some-option 'a b'") == 1


@pytest.mark.parametrize("path", REMOVED)
def test_a_removed_name_is_not_a_command(path):
    names, _ = resolve(path.split())
    assert names != path.split()


@pytest.mark.parametrize("path", [path for path in REMOVED if REMOVED[path].startswith("lab ")])
def test_what_to_type_instead_is_a_command(path):
    words = [word for word in REMOVED[path].split()[1:] if not word.startswith("{")]
    names, command = resolve(words)
    assert names and command is not cli


def test_the_arguments_are_quoted_as_a_shell_needs_them():
    done = CliRunner().invoke(cli, ["sweep", "-c", "28", "-o", "my run", "-f", "{out}"])
    assert done.output.endswith("type: lab run sweep -c 28 -o 'my run' -f '{out}'\n")


def test_no_help_lists_a_removed_command():
    listed = CliRunner().invoke(cli, ["--help"]).output.split("Commands:")[1]
    names = {line.split()[0] for line in listed.splitlines() if line[2:3].strip()}
    assert "run" in names and not names & {path for path in REMOVED if " " not in path}
