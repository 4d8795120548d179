"""`lab check`: its three outcomes and their exit codes, and what counts exactly."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner

from lab.compare.cli import check
from tests.compare.made import layer, trace


def processes(folder, count, scale=1.0, noise=0.002, seed=0, more=()):
    random.seed(seed)
    for number in range(count):
        own = scale * random.uniform(1 - noise, 1 + noise)
        steps = [layer(own) + layer(own)] * 3
        trace(folder / f"p{number}.json", steps, calls=[(step, name) for step in range(3) for name in more])
    return folder


def run(*words):
    return CliRunner().invoke(check, [str(word) for word in words])


def test_a_slowdown_is_proven_excluded_or_undecided_and_the_exit_code_says_which(tmp_path):
    base = processes(tmp_path / "base", 5)
    slow, same = processes(tmp_path / "slow", 5, 1.1, seed=1), processes(tmp_path / "same", 5, seed=2)
    noisy = processes(tmp_path / "noisy", 3, noise=0.2, seed=3)
    found = run(base, slow)
    assert found.exit_code == 1 and "proven" in found.stdout and "kernel time: +9.9" in found.stdout
    assert run(base, same).exit_code == 0 and "is excluded" in run(base, same).stdout
    unclear = run(base, noisy)
    assert unclear.exit_code == 3 and "would decide" in unclear.stdout and "smallest change" in unclear.stdout
    assert run(base, slow, "--max-slowdown", "20%").exit_code == 0


def test_one_process_a_side_decides_nothing(tmp_path):
    found = run(processes(tmp_path / "a", 1), processes(tmp_path / "b", 1, 3.0))
    assert found.exit_code == 3 and "2 more processes a side at least" in found.stdout


def test_counts_that_changed_in_every_process_are_said_exactly(tmp_path):
    base = processes(tmp_path / "base", 4)
    head = processes(tmp_path / "head", 4, seed=2, more=("cudaDeviceSynchronize",))
    assert json.loads(run(base, head, "--json").stdout)["exact"] == ["cudaDeviceSynchronize: 0 -> 1 per step"]


@pytest.mark.parametrize("word", ["nan", "inf", "-1%", "-0.01", "100%", "two"])
def test_a_limit_that_is_no_share_is_refused(tmp_path, word):
    base = processes(tmp_path / "base", 1)
    assert run(base, base, "--max-slowdown", word).exit_code == 2


def test_a_recording_without_steps_or_an_empty_folder_is_an_error(tmp_path):
    trace(tmp_path / "a" / "p.json", [layer()], prefix="nothing ")
    (tmp_path / "none").mkdir()
    assert "no step is marked" in str(run(tmp_path / "a", tmp_path / "a").exception)
    assert "no recording" in str(run(tmp_path / "none", tmp_path / "a").exception)
