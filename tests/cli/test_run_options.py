"""Options of `lab run` stand before the experiment's name, and its help fits two screens."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lab.cli.main import cli


@pytest.mark.parametrize(
    "words, said",
    [
        ("sweep -c 28 -o out -n", "-o stands before the experiment: lab run -o ... sweep"),
        ("sweep --image=cpu", "--image stands before the experiment"),
        ("kernels profile tiny-bloom --jobs 2", "lab run --jobs ... kernels"),
        ("sweep --chanels 28", "Did you mean one of: '--channels'"),
    ],
)
def test_an_option_of_lab_run_after_the_experiment_is_answered_with_what_to_type(words, said):
    done = CliRunner().invoke(cli, ["run", *words.split()])
    assert done.exit_code == 2 and said in done.output


def test_the_help_fits_two_screens_with_what_is_typed_most_first_and_slurm_by_its_own():
    text = CliRunner().invoke(cli, ["run", "--help"], terminal_width=100).output
    assert len(text.splitlines()) <= 2 * 45 and "--sbatch" not in text
    words = ("--image", "--gpus", "--stall-timeout", "--env", "--mount", "--help-slurm")
    order = [text.index(word) for word in words]
    assert order == sorted(order)
    slurm = CliRunner().invoke(cli, ["run", "--help-slurm"])
    assert slurm.exit_code == 0 and "--sbatch KEY=VALUE" in slurm.output and "--gpus" not in slurm.output


@pytest.mark.parametrize(
    "words, problem",
    [
        ("--env HF_TOKEN=x", "a secret would stand in the run's record"),
        ("--env MINE_NOT_SET", "it is not set here"),
        ("--env CUDA_VISIBLE_DEVICES=5", "lab sets this variable itself"),
        ("--env LAB_NUM_GPUS=8", "lab sets this variable itself"),
        ("--image cpu --mount :/data", "is not SRC[:DST[:ro]]"),
        ("--env 1X=2", "is not NAME or NAME=VALUE"),
        ("--mount /tmp", "about containers"),
    ],
)
def test_variables_and_mounts_that_cannot_be_are_refused_before_anything_runs(words, problem):
    done = CliRunner().invoke(cli, ["run", *words.split(), "--dry-run", "sweep", "-c", "28", "-t", "256"])
    assert problem in str(done.exception)


def test_a_variable_reaches_every_step_and_none_that_the_experiment_varies(monkeypatch):
    monkeypatch.setenv("MINE", "from here")
    argv = ["--gpus", "none", "--json", "--dry-run", "sweep", "-c", "28", "-t", "256"]
    done = CliRunner().invoke(cli, ["run", "--env", "FOO=bar", "--env", "MINE", *argv])
    (step,) = json.loads(done.stdout)["steps"]
    assert step["env"]["FOO"] == "bar" and step["env"]["MINE"] == "from here"
    done = CliRunner().invoke(cli, ["run", "--env", "OMP_NUM_THREADS=7", *argv])
    assert "sets OMP_NUM_THREADS=1 itself" in str(done.exception)
