"""A command that is not there is one error before the first trial, not one in each."""

from __future__ import annotations

import os
import sys

import msgspec
import pytest

from lab.core.options import Options
from lab.errors import ConfigError, MissingError, UsageError
from lab.rooms.trials.cli import _refuse_missing, run_trials
from lab.rooms.trials.config import Cell, TrialsConfig
from lab.rooms.trials.startable import loses_arguments, refuse_missing, script_of


@pytest.fixture
def place(tmp_path):
    """A folder with a program, a script and a folder, and PATH that leads to one `train`."""
    (tmp_path / "bin").mkdir()
    for name, mode in (("bin/train", 0o755), ("bin/dead", 0o644), ("run.sh", 0o644), ("train.py", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    os.symlink(sys.executable, tmp_path / "bin/python3")
    os.symlink("/bin/sh", tmp_path / "bin/sh")
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
        ("python3", "-u", "-W", "ignore", "-Xdev", "train.py"),
        ("python3", "--", "train.py"),
        ("python3", "bin"),  # a folder may have a __main__.py
        ("python3", "-c", "print()"),
        ("python3", "-um", "nobody.knows"),
        ("python3", "-"),
        ("python3", "--version"),
        ("python3", "train_{seed}.py"),
        ("sh", "run.sh"),
        ("sh", "-ec", "nothing"),
        ("sh", "-o", "pipefail", "run.sh"),
        ("run_{trial}.sh",),
    ],
)
def test_what_may_start_is_let_through(place, words):
    assert refused(place, *words) == ""


@pytest.mark.parametrize(
    "words, says",
    [
        (("tarin",), "no program 'tarin' on PATH"),
        (("dead",), "is not executable"),
        (("./run.sh",), "is not executable (chmod +x)"),
        (("run.sh",), "no program 'run.sh' on PATH"),
        (("./bin",), "is a folder"),
        (("./bin/trian",), "no file './bin/trian'"),
        (("",), "its name is empty"),
        (("python3", "trian.py"), "did you mean"),
        (("python3", "-B", "nothing.py", "train.py"), "nothing.py"),
        (("python3", "-W", "ignore", "--", "nothing.py"), "the script is not there"),
        (("sh", "-o", "pipefail", "nothing.sh"), "nothing.sh"),
    ],
)
def test_what_cannot_start_is_named(place, words, says):
    assert says in refused(place, *words)


def test_only_a_shell_that_looks_on_path_is_let_through_with_a_script_that_is_there(place):
    """dash, which is `sh` on Debian, opens the script in its folder and nowhere else."""
    says = {}
    for name in ("dash", "bash"):
        (place / name).write_bytes(b"\x7fELF")
        (place / name).chmod(0o755)
        (place / "bin" / "sh").unlink()
        os.symlink(place / name, place / "bin" / "sh")
        says[name] = refused(place, "sh", "train")
        assert "the script is not there" in refused(place, "sh", "nowhere")
    assert "the script is not there" in says["dash"] and says["bash"] == ""


def test_a_wrapper_named_python_or_sh_may_change_folder_before_it_runs_the_script(place):
    wrapper = place / "bin" / "python"
    wrapper.write_text('#!/bin/sh\ncd sub && exec python3 "$@"\n')
    wrapper.chmod(0o755)
    assert refused(place, "python", "there.py") == ""
    assert "the script is not there" in refused(place, "python3", "there.py")


@pytest.mark.parametrize(
    "words, lost",
    [
        (("bash", "-c", "python train.py | tee log"), True),
        (("/bin/sh", "-e", "-c", "python train.py"), True),
        (("bash", "-euc", "python train.py $LR"), True),
        (("bash", "-euo", "pipefail", "-c", "python train.py | tee log"), True),
        (("bash", "-o", "pipefail", "-c", 'python train.py "$@" | tee log', "bash"), False),
        (("bash", "-c", 'python train.py "$@"', "bash"), False),
        (("sh", "-c", "exec ${1}"), False),
        (("bash", "run.sh", "-c", "text"), False),
        (("python", "-c", "print()"), False),
        (("bash", "run.sh"), False),
    ],
)
def test_arguments_behind_a_shells_text_that_reads_none_are_lost(words, lost):
    assert loses_arguments(words) == lost


def test_a_cell_whose_arguments_nothing_gets_is_refused_and_a_command_for_a_shell(tmp_path, monkeypatch):
    """It would be a second baseline, and `&& python eval.py` two arguments of the training."""
    monkeypatch.chdir(tmp_path)
    cell = ["--cell", "none", "--cell", "{name: sdpa, args: [--attn, sdpa]}"]
    with pytest.raises(UsageError, match="the arguments of cell 'sdpa' would be lost"):
        run_trials.main([*cell, "--", "bash", "-c", "true"], standalone_mode=False, obj=Options())
    (tmp_path / "m.yaml").write_text("command: python train.py && python eval.py\ntrials: 2\n")
    with pytest.raises(ConfigError, match="no shell runs the command: '&&'"):
        run_trials.main(["m.yaml"], standalone_mode=False, obj=Options())


def test_a_cells_own_path_counts_and_a_folder_that_is_gone_is_said(place):
    with pytest.raises(MissingError, match="of cell 'other' cannot start: no program 'train'"):
        refuse_missing(("train",), {"PATH": "/nowhere"}, place, "other")
    with pytest.raises(MissingError, match="the folder in which the command runs is not there"):
        refuse_missing(("train",), {"PATH": "bin"}, place / "gone")


def test_only_interpreters_have_a_script():
    assert script_of(("torchrun", "train.py")) is None and script_of(("python3.11", "a.py")) == "a.py"
    assert (
        script_of(("/usr/bin/bash", "--rcfile", "b", "a.sh")) == "a.sh"
        and script_of(("sh", "+o", "x")) is None
    )


def test_a_script_per_trial_and_one_per_cell_are_looked_for_as_they_will_be_named(tmp_path):
    """The first trial's script says nothing of the others'; a cell's name is the same in all of them."""
    config = TrialsConfig(
        command=("sh", "{cell}_{seed}.sh"), cells=(Cell(name="a"),), baseline="a", trials=2, fail="exit!=0"
    )
    _refuse_missing(config, Options(), tmp_path)
    (tmp_path / "a.sh").touch()
    _refuse_missing(msgspec.structs.replace(config, command=("sh", "{cell}.sh")), Options(), tmp_path)
    with pytest.raises(MissingError, match="the script is not there"):
        _refuse_missing(msgspec.structs.replace(config, command=("sh", "{cell}2.sh")), Options(), tmp_path)
