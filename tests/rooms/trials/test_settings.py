"""A command that is not there is one error before the first trial, not one in each."""

from __future__ import annotations

import msgspec
import pytest

from lab.core.options import Options
from lab.errors import MissingError
from lab.rooms.trials.config import Cell, TrialsConfig
from lab.rooms.trials.settings import refuse_commands_that_cannot_start, refuse_missing


@pytest.fixture
def place(tmp_path):
    """A folder with a program, a script and a folder, and PATH that leads to one `train`."""
    (tmp_path / "bin").mkdir()
    for name, mode in (("bin/train", 0o755), ("bin/python3", 0o755), ("run.sh", 0o644), ("train.py", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    return tmp_path


def refused(place, *words, path="bin"):
    try:
        refuse_missing(words, {"PATH": path}, place)
    except MissingError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "words",
    [
        ("train",),
        ("./bin/train", "--lr", "1"),
        ("python3", "train.py"),
        ("python3", "-u", "nothing.py"),
        ("python3", "bin"),  # a folder may have a __main__.py
        ("python3",),
        ("python3", "train_{seed}.py"),
        ("run_{trial}.sh",),
    ],
)
def test_what_may_start_is_let_through(place, words):
    assert refused(place, *words) == ""


@pytest.mark.parametrize(
    "words, says",
    [
        (("tarin",), "no program 'tarin'"),
        (("./run.sh",), "no program './run.sh' that may be executed"),
        (("./bin",), "no program './bin'"),
        (("",), "no program ''"),
        (("python3", "trian.py"), "did you mean"),
    ],
)
def test_what_cannot_start_is_named(place, words, says):
    assert says in refused(place, *words)


def test_a_cells_own_path_counts_and_a_folder_that_is_gone_is_said(place):
    with pytest.raises(MissingError, match="of cell 'other' cannot start: no program 'train'"):
        refuse_missing(("train",), {"PATH": "/nowhere"}, place, "other")
    with pytest.raises(MissingError, match="the folder in which the command runs is not there"):
        refuse_missing(("train",), {"PATH": "bin"}, place / "gone")


def test_a_script_per_trial_and_one_per_cell_are_looked_for_as_they_will_be_named(tmp_path):
    """The first trial's script says nothing of the others'; a cell's name is the same in all of them."""
    config = TrialsConfig(
        command=("python3", "{cell}_{seed}.py"),
        cells=(Cell(name="a"),),
        baseline="a",
        trials=2,
        fail="exit!=0",
    )
    refuse_commands_that_cannot_start(config, Options(), tmp_path)
    (tmp_path / "a.py").touch()
    refuse_commands_that_cannot_start(
        msgspec.structs.replace(config, command=("python3", "{cell}.py")), Options(), tmp_path
    )
    with pytest.raises(MissingError, match="the script is not there"):
        refuse_commands_that_cannot_start(
            msgspec.structs.replace(config, command=("python3", "{cell}2.py")), Options(), tmp_path
        )
