"""The registry is the one list of rooms: folders, commands, README and docs agree with it."""

from __future__ import annotations

import importlib

import click

from lab import rooms
from lab.cli.registry import ROOMS, commands, run_commands, smoke_runs
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
