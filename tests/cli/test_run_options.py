"""Options of `lab run` stand before or after the experiment's name, and its help fits two screens."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from lab.cli.commands import run
from lab.cli.main import cli


def moved(*words: str) -> list[str]:
    """The arguments as `lab run` parses them: its own options first."""
    return run._run_options_first(click.Context(run), list(words))


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("sweep -c 28 -o out -n", "-o out -n sweep -c 28"),
        ("-q sweep --gpus=0 -t 256 -j2", "-q --gpus=0 -j2 sweep -t 256"),
        (
            "kernels --image cuda profile tiny-bloom --jobs 2",
            "--image cuda --jobs 2 kernels profile tiny-bloom",
        ),
        # The value of an experiment's option may look like an option of lab run.
        ("nan baseline --prompt -n", "nan baseline --prompt -n"),
        # -n is the number of trials there; what stands after -- is the program's.
        ("trials -n 3 -q -- train.py -o x", "-q trials -n 3 -- train.py -o x"),
        ("sweep --help", "sweep --help"),
        ("--resume old --analysis none", "--resume old --analysis none"),
        ("--gpus none", "--gpus none"),
        ("sweeep -o x", "sweeep -o x"),
    ],
)
def test_options_of_lab_run_are_moved_before_the_experiment(typed, parsed):
    assert moved(*typed.split()) == parsed.split()


def test_both_places_make_the_same_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common, room = ["--gpus", "none", "--dry-run", "--json", "-o", "r"], ["sweep", "-c", "28", "--ranks", "2"]
    plans = [
        json.loads(CliRunner().invoke(cli, ["run", *words]).stdout)
        for words in (common + room, room + common)
    ]
    assert plans[0] == plans[1] and plans[0]["run_dir"] == "r"


def test_an_option_without_its_value_or_of_no_command_is_a_usage_error():
    for words in ("sweep -c 28 -o", "trials --gpus -- train.py", "-o"):
        done = CliRunner().invoke(cli, ["run", *words.split()])
        assert done.exit_code == 2 and "requires an argument" in done.output
    for words in ("sweep --nonsense", "kernels --nonsense profile"):
        done = CliRunner().invoke(cli, ["run", *words.split()])
        assert done.exit_code == 2 and "No such option" in done.output


def test_the_help_fits_two_screens_and_leaves_slurm_to_a_page_of_its_own():
    text = CliRunner().invoke(cli, ["run", "--help"], terminal_width=100).output
    assert len(text.splitlines()) <= 2 * 40
    assert text.index("--image") < text.index("--gpus") < text.index("--stall-timeout")
    assert "--partition" not in text
    slurm = CliRunner().invoke(cli, ["run", "--help-slurm"])
    assert slurm.exit_code == 0
    for option in ("--partition", "--time", "--sbatch", "--container", "--detach"):
        assert option in slurm.output
