"""Cases, their mass, shrinking, and what is saved of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.errors import BadDataError  # noqa: E402
from lab.rooms.semicrf.workload.cases import (  # noqa: E402
    Case,
    difference,
    mass_error,
    random_case,
    same_bits,
    save_reproducer,
    shrunk,
    solve,
)

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def case(seed=0, shape=(3, 14, 4, 3), dtype=torch.float32):
    return random_case(seed, shape, dtype=dtype)


def test_mass_that_is_missing_or_beyond_certainty_is_seen():
    problem = case(dtype=torch.float64)
    solution = solve(problem, "torch")
    assert mass_error(problem, solution) < 1e-12
    assert mass_error(problem, replace(solution, score_BTC=solution.score_BTC * 1.01)) > 1e-3
    moved = solution.score_BTC.clone()
    moved[0, 2] += torch.tensor([2.0, -2.0, 0.0])
    assert mass_error(problem, replace(solution, score_BTC=moved)) > 0.3


@pytest.mark.parametrize(
    "name, change",
    {
        "duration index": lambda c: replace(c, duration_KC=c.duration_KC.roll(1, 0)),
        "longest duration lost": lambda c: replace(c, duration_KC=c.duration_KC[:-1]),
        "end score lost": lambda c: replace(c, end_C=torch.zeros_like(c.end_C)),
        "transitions turned": lambda c: replace(c, transition_CC=c.transition_CC.T.contiguous()),
        "first label's score lost": lambda c: replace(
            c, score_BTC=c.score_BTC * torch.tensor([0.0, 1.0, 1.0])
        ),
    }.items(),
)
def test_the_float64_replay_sees_a_backend_of_another_model(name, change):
    given = case()
    given = replace(given, duration_KC=given.duration_KC + torch.tensor([0.0, 0.0, 0.0, 2.0])[:, None])
    assert difference(given, solve(given, "torch")) is None
    text = difference(given, solve(change(given), "torch"))
    assert text and ("differ" in text), name


def test_a_case_survives_being_saved(tmp_path):
    given = case()
    given.save(tmp_path / "case.npz")
    assert same_bits(solve(given, "torch"), solve(Case.load(tmp_path / "case.npz"), "torch"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"x" * 100])
def test_a_file_that_is_no_case_is_an_error(tmp_path, content):
    (tmp_path / "case.npz").write_bytes(content)
    with pytest.raises(BadDataError, match="not a semi-CRF case"):
        Case.load(tmp_path / "case.npz")


def test_a_case_with_pickled_objects_is_refused(tmp_path):
    np.savez(tmp_path / "case.npz", score_BTC=np.array([{"run": "me"}], dtype=object))
    with pytest.raises(BadDataError, match="not a semi-CRF case"):
        Case.load(tmp_path / "case.npz")


def test_a_failing_case_shrinks_to_one_sequence_and_few_frames():
    given = case(shape=(4, 32, 4, 3))
    score = given.score_BTC.clone()
    score[2, 9, 1] = 99.0
    given = replace(given, score_BTC=score, lengths_B=torch.full((4,), 32))
    small = shrunk(given, lambda c: bool((c.score_BTC == 99).any()))
    assert small.score_BTC.shape[:2] == (1, 1)


def test_the_saved_reproducer_shows_the_fault_to_anyone(tmp_path):
    given = case()
    given.score_BTC[1, 0, 0] = float("nan")
    save_reproducer(given, tmp_path, backend="torch", padding=2)
    done = subprocess.run(
        [sys.executable, "reproduce.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "run 1: score is nan" in done.stderr, done.stderr
