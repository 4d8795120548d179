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
from lab.rooms.semicrf.workload.checks import hostile, values  # noqa: E402
from lab.rooms.semicrf.workload.checks import values as subjects  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_check_of_this_device_finds_nothing(backend):
    subject = subjects.Subject(backend, CPU, batches=25, seed=1)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(values, "SMALL", subjects.SMALL[:3])
        patch.setattr(hostile, "SMALL", subjects.SMALL[:3])
        patch.setattr(values, "LONG", subjects.LONG[:1])
        rows = list(workload_check.all_checks(subject))
    failed = [row for row in rows if row["verdict"] != "pass"]
    assert not failed, failed
    assert {"log Z", "posteriors", "viterbi", "hostile batches", "loss of the head"} <= {
        row["check"] for row in rows
    }


def test_a_check_that_crashes_is_a_failed_row_and_the_others_go_on(monkeypatch):
    def broken(*_args, **_more):
        raise RuntimeError("the kernel fell over")

    monkeypatch.setattr(workload_check, "every_check", lambda: (broken, values.head_loss))
    rows = list(workload_check.all_checks(subjects.Subject("torch", CPU, 2, 1)))
    assert [(row["check"], row["verdict"]) for row in rows] == [
        ("broken", "fail"),
        ("loss of the head", "pass"),
    ]
    assert "fell over" in rows[0]["text"]


def failed_checks(backend="auto"):
    subject = subjects.Subject(backend, CPU, batches=12, seed=1)
    rows = [row for one in (values.audit, hostile.hostile) for row in one(subject)]
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
    subject = subjects.Subject("native", CPU, 1, 1)
    check = values.accuracy if axis == 3 else values.accuracy_long
    monkeypatch.setattr(values, "LONG", [shape for shape in subjects.LONG if shape[axis] > beyond])
    assert "fail" in {row["verdict"] for row in check(subject) if row["check"] == "log Z"}


@pytest.mark.skipif(choose.missing_reason("cpu") is not None, reason="nothing can be compiled here")
def test_a_check_fails_when_a_duration_beyond_a_hundred_frames_is_off(monkeypatch):
    whole = native.forward

    def wrong(problem, keep=True):
        duration_KC = problem.duration_KC.clone()
        duration_KC[300:] += 0.01
        return whole(replace(problem, duration_KC=duration_KC), keep)

    monkeypatch.setattr(native, "forward", wrong)
    monkeypatch.setattr(values, "LONG", subjects.LONG[2:3])
    rows = values.accuracy_long(subjects.Subject("native", CPU, 1, 1))
    assert {row["shape"] for row in rows if row["verdict"] == "fail"} == {"1x3000x700x5"}


def test_a_check_fails_when_the_audit_is_gone(monkeypatch):
    monkeypatch.setattr(autograd, "finish", lambda problem, found: False)
    assert {"audit of the counts", "mended posteriors"} <= failed_checks("torch")


def test_a_check_fails_when_the_heads_loss_forgets_the_mask(monkeypatch):
    from lab.rooms.semicrf.model import head

    monkeypatch.setattr(head, "levelled", lambda score_BTC, below: score_BTC)
    (row,) = values.head_loss(subjects.Subject("auto", CPU, 1, 1))
    assert row["verdict"] == "fail"
