"""A check of this device: sound kernels pass, and a check that crashes is a failed row."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.semicrf.workload import check as workload_check  # noqa: E402
from lab.rooms.semicrf.workload.checks import decoding  # noqa: E402
from lab.rooms.semicrf.workload.checks import subject as subjects  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def test_a_check_of_this_device_finds_nothing(tmp_path):
    subject = subjects.Subject("torch", CPU, interpreted=False, batches=25, seed=1)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(subjects, "SMALL", subjects.SMALL[:3])
        rows = list(workload_check.all_checks(subject))
    failed = [row for row in rows if row["verdict"] != "pass"]
    assert not failed, failed
    assert {"log Z", "posteriors", "viterbi", "hostile batches", "entropy", "samples"} <= {
        row["check"] for row in rows
    }


def test_a_check_that_crashes_is_a_failed_row_and_the_others_go_on(monkeypatch):
    def broken(*_args, **_more):
        raise RuntimeError("the kernel fell over")

    monkeypatch.setattr(workload_check, "every_check", lambda: (broken, decoding.sampling))
    rows = list(workload_check.all_checks(subjects.Subject("torch", CPU, False, 2, 1)))
    assert [(row["check"], row["verdict"]) for row in rows] == [("broken", "fail"), ("samples", "pass")]
    assert "fell over" in rows[0]["text"]
