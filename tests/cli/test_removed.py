"""A removed command is answered with what to type instead, for one release."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.cli.registry import REMOVED


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


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("sweep", "lab run sweep"),
        ("sweep -c 28 -o x -n --gpus=0 -t 256", "lab run -o x -n --gpus=0 sweep -c 28 -t 256"),
        ("semicrf train --epochs 3 -j 2", "lab run -j 2 semicrf train --epochs 3"),
        # -n is the number of trials there, and what stands after -- is the program's.
        ("trials -n 3 -q -- python -c pass -o x", "lab run -q trials -n 3 -- python -c pass -o x"),
    ],
)
def test_options_of_lab_run_go_before_the_experiment(typed, instead):
    done = CliRunner().invoke(cli, typed.split())
    assert done.exit_code == 2 and done.output.endswith(f"type: {instead}\n")


def test_no_help_lists_a_removed_command():
    listed = CliRunner().invoke(cli, ["--help"]).output.split("Commands:")[1]
    names = {line.split()[0] for line in listed.splitlines() if line[2:3].strip()}
    assert "run" in names and not names & {path for path in REMOVED if " " not in path}
