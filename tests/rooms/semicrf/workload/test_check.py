"""A check of this device: sound kernels pass, and a check that crashes is a failed row."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.semicrf.model import autograd  # noqa: E402
from lab.rooms.semicrf.model import native as choose  # noqa: E402
from lab.rooms.semicrf.model.native import cpu as native  # noqa: E402
from lab.rooms.semicrf.workload import check as workload_check  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_check_of_this_device_finds_nothing(backend):
    subject = workload_check.Subject(backend, CPU, batches=25, seed=1)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(workload_check, "SMALL", workload_check.SMALL[:3])
        patch.setattr(workload_check, "LONG", workload_check.LONG[:1])
        rows = list(workload_check.all_checks(subject))
    failed = [row for row in rows if row["verdict"] != "pass"]
    assert not failed, failed
    assert {"log Z", "posteriors", "viterbi", "hostile batches", "loss of the head"} <= {
        row["check"] for row in rows
    }


def test_a_check_that_crashes_is_a_failed_row_and_the_others_go_on(monkeypatch):
    def broken(*_args, **_more):
        raise RuntimeError("the kernel fell over")

    monkeypatch.setattr(workload_check, "every_check", lambda: (broken, workload_check.head_loss))
    rows = list(workload_check.all_checks(workload_check.Subject("torch", CPU, 2, 1)))
    assert [(row["check"], row["verdict"]) for row in rows] == [
        ("broken", "fail"),
        ("loss of the head", "pass"),
    ]
    assert "fell over" in rows[0]["text"]


def failed_checks(backend="auto"):
    subject = workload_check.Subject(backend, CPU, batches=12, seed=1)
    rows = [row for one in (workload_check.audit, workload_check.hostile) for row in one(subject)]
    return {row["check"] for row in rows if row["verdict"] == "fail"}


def test_a_check_fails_when_one_durations_count_is_dropped(monkeypatch):
    whole = native.backward

    def dropping(state):
        found = whole(state)
        found.duration_BKC[:, 0] = 0.0
        return found

    monkeypatch.setattr(native, "backward", dropping)
    assert "hostile batches" in failed_checks("native")


@pytest.mark.parametrize(("axis", "beyond"), [(0, 256), (3, 48)])
def test_a_check_fails_when_only_large_problems_go_wrong(monkeypatch, axis, beyond):
    """By many sequences, frames, durations or labels."""
    whole = native.forward

    def wrong(problem, keep=True):
        state = whole(problem, keep)
        if problem.shape[axis] > beyond:
            state.log_z_B[-1] += 1e-3
        return state

    monkeypatch.setattr(native, "forward", wrong)
    subject = workload_check.Subject("native", CPU, 1, 1)
    check = workload_check.accuracy if axis == 3 else workload_check.accuracy_long
    monkeypatch.setattr(
        workload_check, "LONG", [shape for shape in workload_check.LONG if shape[axis] > beyond]
    )
    assert "fail" in {row["verdict"] for row in check(subject) if row["check"] == "log Z"}


@pytest.mark.skipif(choose.missing_reason("cpu") is not None, reason="nothing can be compiled here")
def test_a_check_fails_when_a_duration_beyond_a_hundred_frames_is_off(monkeypatch):
    whole = native.forward

    def wrong(problem, keep=True):
        duration_KC = problem.duration_KC.clone()
        duration_KC[300:] += 0.01
        return whole(replace(problem, duration_KC=duration_KC), keep)

    monkeypatch.setattr(native, "forward", wrong)
    monkeypatch.setattr(workload_check, "LONG", workload_check.LONG[2:3])
    rows = workload_check.accuracy_long(workload_check.Subject("native", CPU, 1, 1))
    assert {row["shape"] for row in rows if row["verdict"] == "fail"} == {"1x3000x700x5"}


def test_a_check_fails_when_the_audit_is_gone(monkeypatch):
    monkeypatch.setattr(autograd, "finish", lambda problem, found: False)
    assert {"audit of the counts", "mended posteriors"} <= failed_checks("torch")


def test_a_check_fails_when_the_heads_loss_forgets_the_mask(monkeypatch):
    from lab.rooms.semicrf.model import head

    monkeypatch.setattr(head, "levelled", lambda score_BTC, below: score_BTC)
    (row,) = workload_check.head_loss(workload_check.Subject("auto", CPU, 1, 1))
    assert row["verdict"] == "fail"
