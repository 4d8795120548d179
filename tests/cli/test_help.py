"""--help of every command: each option is explained, and no sentence is cut."""

from __future__ import annotations

import click
import pytest

from lab.cli.main import cli


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
