"""Many jobs side by side: order, errors in their place, a worker that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from lab.errors import BadDataError, LabError
from lab.recordings.pool import map_traces


def square_or_fail(job: int) -> int:
    if job == 3:
        raise BadDataError("broken", location="t.json", fix="mend it")
    if job == 4:
        raise ValueError("a bug")
    if job == 5:
        raise MemoryError
    return job * job


@pytest.mark.parametrize("workers", [1, 2])
def test_results_stand_in_the_order_of_the_jobs_and_errors_in_their_place(workers):
    seen: list[tuple[int, int]] = []
    found = map_traces(
        square_or_fail, range(7), workers=workers, progress=lambda a, b, _: seen.append((a, b))
    )
    assert [found[i] for i in (0, 1, 2, 6)] == [0, 1, 4, 36]
    broken, bug, memory = found[3:6]
    assert isinstance(broken, BadDataError) and (broken.problem, broken.fix) == ("broken", "mend it")
    assert isinstance(bug, LabError) and "ValueError: a bug" in bug.problem and bug.location == "4"
    assert isinstance(memory, BadDataError) and "memory" in memory.problem
    assert seen == [(done, 7) for done in range(1, 8)]


def test_no_jobs_make_no_pool():
    assert map_traces(square_or_fail, [], workers=8) == []


def test_one_worker_runs_in_this_process():
    assert map_traces(lambda _: os.getpid(), [Path("a"), Path("b")], workers=1) == [os.getpid()] * 2


def test_ctrl_c_ends_all_and_is_not_swallowed():
    def interrupt(done: int, total: int, job: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_traces(square_or_fail, range(4), workers=2, progress=interrupt)
    assert multiprocessing.active_children() == []


def variable(name: str) -> str | None:
    return os.environ.get(name)


def unsendable(job: int) -> object:
    return (lambda: job) if job == 1 else job


def fall(job: int) -> int:
    if job % 2:
        os.kill(os.getpid(), signal.SIGSEGV if job > 1 else signal.SIGKILL)
    return job


def test_a_process_that_dies_costs_only_its_own_job_and_says_how_it_ended():
    found = map_traces(fall, range(8), workers=2)
    assert found[::2] == [0, 2, 4, 6]
    assert isinstance(found[1], BadDataError) and "killed, probably for lack of memory" in found[1].problem
    assert all(f"signal {signal.SIGSEGV:d}" in error.problem for error in found[3::2])


def test_a_result_that_cannot_be_sent_is_an_error_of_its_job():
    found = map_traces(unsendable, range(4), workers=2)
    assert [found[0], *found[2:]] == [0, 2, 3]
    assert isinstance(found[1], LabError) and "pickle" in found[1].problem


def test_processes_are_gone_with_the_last_job():
    map_traces(square_or_fail, range(9), workers=2)
    assert multiprocessing.active_children() == []


def test_workers_have_the_environment_of_the_moment(monkeypatch):
    """The server that they are forked from has an older one."""
    for value in ("first", "second"):
        monkeypatch.setenv("LAB_TEST_POOL", value)
        assert map_traces(variable, ["LAB_TEST_POOL"] * 2, workers=2) == [value] * 2
    monkeypatch.delenv("LAB_TEST_POOL")
    assert map_traces(variable, ["LAB_TEST_POOL"] * 2, workers=2) == [None] * 2
    assert (
        map_traces(variable, ["OPENBLAS_NUM_THREADS"] * 2, workers=2)
        == [os.environ.get("OPENBLAS_NUM_THREADS", "1")] * 2
    )
