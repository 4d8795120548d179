"""Options of `lab run` stand before the experiment's name, and its help fits two screens."""

from __future__ import annotations

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


def test_the_help_fits_two_screens_and_leaves_slurm_to_a_page_of_its_own():
    text = CliRunner().invoke(cli, ["run", "--help"], terminal_width=100).output
    assert len(text.splitlines()) <= 2 * 40
    assert text.index("--image") < text.index("--gpus") < text.index("--stall-timeout")
    assert "--sbatch" not in text
    slurm = CliRunner().invoke(cli, ["run", "--help-slurm"])
    assert slurm.exit_code == 0
    for option in ("--sbatch", "--time", "--container", "--vendor", "--detach"):
        assert option in slurm.output
