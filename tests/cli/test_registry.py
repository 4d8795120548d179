"""The registry is the one list of rooms and commands: folders, help, README and docs agree with it."""

from __future__ import annotations

import importlib

import click
import pytest
from click.testing import CliRunner

from lab import rooms
from lab.cli.main import cli
from lab.cli.registry import ROOMS, commands, removed, run_commands, smoke_runs
from lab.terminal.options import Finite
from tests.conftest import ROOT


def test_every_room_folder_is_in_the_registry_and_nothing_else():
    assert sorted(room.name for room in ROOMS) == rooms.names()


def test_every_command_of_the_registry_is_a_click_command_of_its_name():
    for name, (target, _) in [*commands().items(), *run_commands().items()]:
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command) and command.name == name


def test_every_room_has_a_smallest_experiment_that_is_one_of_its_own():
    assert set(smoke_runs()) == {room.name for room in ROOMS}
    for room in ROOMS:
        assert smoke_runs()[room.name][0] in room.run


def test_the_readme_has_a_row_and_a_question_for_every_room():
    text = (ROOT / "README.md").read_text()
    for room in ROOMS:
        assert f"| [{room.name}](docs/{room.name}.md) | {room.question} |" in text


def walk(name: str, command: click.Command, above: click.Context | None = None):
    """-> each command below this one, itself included, with its context."""
    here = click.Context(command, info_name=name, parent=above)
    yield here
    for below in command.list_commands(here) if isinstance(command, click.Group) else ():
        yield from walk(below, command.get_command(here, below), here)


@pytest.fixture(scope="module")
def contexts():
    found = list(walk("lab", cli))
    assert {"lab", "lab gemm variance", "lab run semicrf train"} <= {one.command_path for one in found}
    return found


def test_every_command_and_every_option_is_explained(contexts):
    silent = [one.command_path for one in contexts if not one.command.help]
    silent += [
        f"{one.command_path} {option.opts[-1]}"
        for one in contexts
        for option in one.command.params
        if isinstance(option, click.Option) and not (option.help or "").strip()
    ]
    assert silent == []


def test_no_number_may_be_nan_or_infinite(contexts):
    numbers = [
        (here.command_path, option.name, option.type)
        for here in contexts
        for option in here.command.params
        if isinstance(option.type, click.types.FloatParamType)
    ]
    assert len(numbers) > 10
    assert [number for number in numbers if not isinstance(number[2], Finite)] == []


def test_no_sentence_in_a_list_of_commands_is_cut(contexts):
    groups = [one for one in contexts if isinstance(one.command, click.Group)]
    lines = {one.command_path: one.get_help().split("Commands:")[1].splitlines() for one in groups}
    cut = [(path, line) for path in lines for line in lines[path] if line.endswith("...")]
    assert len(groups) > 10 and cut == []


def test_each_command_of_a_group_is_listed_with_its_whole_first_sentence(contexts):
    (gemm,) = [one for one in contexts if one.command_path == "lab gemm"]
    text = " ".join(gemm.get_help().split())
    assert (
        "compare Two or more sweeps side by side on one page; the first is what the others are compared to"
        in text
    )


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
