"""When a step has to end, and what its end is called."""

from __future__ import annotations

import time

import pytest

from lab.core.step import Status, Step
from lab.core.stop import Stop
from lab.engines.output import LogWriter
from lab.engines.verdict import Ending, judge


def verdict(code: int, tail: str = "", **more):
    outcome = judge(Ending(exit_code=code, seconds=1, started_utc="", tail=tail.splitlines(), **more))
    return outcome.status, outcome.reason


@pytest.mark.parametrize(
    "code, tail, more, status, words",
    [
        (0, "", {}, Status.ok, ""),
        (0, "", {"oom_kills": 1}, Status.ok, "out-of-memory killer struck"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", {}, Status.oom, "GPU ran out"),
        (137, "", {"oom_kills": 2}, Status.oom, "kernel killed"),
        (1, "ValueError: real\nelastic.ChildFailedError: ", {}, Status.failed, "ValueError: real"),
        (130, "", {"stopped_by": "user"}, Status.interrupted, "user"),
        (-9, "", {"stopped_by": "timeout", "limit_s": 5}, Status.timeout, "5 s"),
        (0, "", {"stopped_by": "stall", "limit_s": 7}, Status.timeout, "printed nothing for 7 s"),
    ],
)
def test_an_end_is_told_in_status_and_words(code, tail, more, status, words):
    got, reason = verdict(code, tail, **more)
    assert got is status
    assert words in reason


def test_the_outcome_carries_what_the_engine_measured():
    ending = Ending(
        exit_code=3,
        seconds=1.23456,
        started_utc="2026-01-01T00:00:00+00:00",
        tail=["one", "two"],
        peak_mem_bytes=4096,
    )
    outcome = judge(ending)
    assert outcome.exit_code == 3 and outcome.seconds == 1.235
    assert outcome.started_utc == "2026-01-01T00:00:00+00:00"
    assert outcome.tail == ("one", "two") and outcome.peak_mem_bytes == 4096


@pytest.mark.parametrize(
    "code, words",
    [
        (-1, "ended by SIGHUP"),
        (1, "exit code 1"),
        (127, "exit code 127"),
        (128, "exit code 128"),
        (129, "ended by SIGHUP"),
        (130, "ended by SIGINT"),
        (255, "exit code 255"),
        (-100, "exit code -100"),
    ],
)
def test_only_exit_codes_that_stand_for_a_signal_are_named_after_it(code, words):
    assert verdict(code) == (Status.failed, words)


@pytest.mark.parametrize("code", [-9, 137])
def test_a_killed_process_counts_as_out_of_memory_only_with_a_sign_of_it(code):
    assert verdict(code, oom_kills=1)[0] is Status.oom
    assert verdict(code, limit_hit=True)[0] is Status.oom
    assert verdict(code)[0] is Status.failed
    assert verdict(code, limit_hit=False)[0] is Status.failed


def test_a_kill_at_a_limit_of_which_the_engine_says_nothing_may_be_that_or_the_hosts():
    status, reason = verdict(137, oom_kills=1, limit_hit=False)
    assert status is Status.oom and "memory limit" in reason and "the host ran out of memory" in reason


def test_a_kill_elsewhere_on_the_host_explains_no_other_failure():
    assert verdict(1, "ValueError: bad", oom_kills=1) == (Status.failed, "exit code 1: ValueError: bad")
    assert verdict(-15, oom_kills=1) == (Status.failed, "ended by SIGTERM")


def test_an_unexplained_kill_names_the_suspects_that_are_left():
    unlimited, limited = verdict(-9)[1], verdict(-9, limit_hit=False)[1]
    assert "the host ran out of memory; see dmesg" in unlimited and "memory limit" not in unlimited
    assert "memory limit was hit without the engine's reporting it" in limited and "dmesg" in limited
    assert "killed from outside" in limited


@pytest.mark.parametrize("limit_hit", [None, False])
def test_a_kill_without_a_kill_for_memory_came_from_outside(limit_hit):
    reason = verdict(137, oom_kills=0, limit_hit=limit_hit)[1]
    assert "from outside, as the out-of-memory killer took no process" in reason and "dmesg" not in reason


def test_a_containers_memory_limit_is_named_before_what_the_process_printed():
    status, reason = verdict(1, "CUDA out of memory", limit_hit=True)
    assert status is Status.oom and "memory limit" in reason and "GPU" not in reason


def test_the_gpus_memory_is_named_before_the_hosts():
    status, reason = verdict(1, "CUDA out of memory\nMemoryError", oom_kills=1)
    assert status is Status.oom and reason.startswith("the GPU")


def test_exit_code_zero_is_ok_even_if_a_child_hit_the_memory_limit_unless_files_are_missing():
    status, reason = verdict(0, limit_hit=True, oom_kills=1)
    assert status is Status.ok and "child process hit the container's memory limit" in reason
    status, reason = verdict(0, limit_hit=True, missing=["a.json", "b.csv"])
    assert status is Status.failed and "no a.json, b.csv; a child process" in reason
    assert verdict(0, missing=["a.json"]) == (Status.failed, "exited with 0 but left no a.json")
    assert verdict(0, limit_hit=False) == (Status.ok, "")


@pytest.mark.parametrize(
    "tail, line",
    [
        ("noise", ""),
        ("KeyError: 'first'\nValueError: last\nnoise", ": ValueError: last"),
        ("  RuntimeError: indented  ", ": RuntimeError: indented"),
        ("[rank0]: RuntimeError: of rank 0", ": [rank0]: RuntimeError: of rank 0"),
        (
            "elastic.ChildFailedError: first\nelastic.ChildFailedError: second",
            ": elastic.ChildFailedError: second",
        ),
        ("ValueError: " + "x" * 288, ": ValueError: " + "x" * 288),
        ("ValueError: " + "x" * 289, ": ValueError: " + "x" * 288),
    ],
)
def test_the_last_exception_is_quoted_in_at_most_300_characters(tail, line):
    assert verdict(3, tail) == (Status.failed, f"exit code 3{line}")


@pytest.mark.parametrize(
    "words",
    ["HIP out of memory", "torch.OutOfMemoryError: full", "hipErrorOutOfMemory", "CUDA_ERROR_OUT_OF_MEMORY"],
)
def test_each_vendors_words_for_a_full_gpu_are_known(words):
    assert verdict(1, words)[0] is Status.oom


@pytest.mark.parametrize(
    "words",
    ["MemoryError", "DefaultCPUAllocator: can't allocate memory", "Cannot allocate memory", "oom-kill"],
)
def test_each_way_to_say_that_the_host_is_full_is_known(words):
    status, reason = verdict(1, f"something\n{words}")
    assert status is Status.oom and reason.startswith("the host ran out of memory")


@pytest.mark.parametrize("words", ["exitcode  : -9 (pid: 7)", "Signal 9 (SIGKILL) received by PID 7"])
def test_each_way_to_say_that_a_worker_was_killed_is_known(words):
    assert "killed by SIGKILL" in verdict(1, words)[1] and verdict(1, words, oom_kills=1)[0] is Status.oom
    assert "SIGKILL" not in verdict(1, "exitcode  : -97 (pid: 7)")[1]


@pytest.mark.parametrize("name", ["OSError", "a.b.SomeException", "KeyboardInterrupt", "BuildFailure"])
def test_an_exception_is_known_by_the_end_of_its_name(name):
    assert verdict(1, f"{name}: why\n{name}s are noise")[1] == f"exit code 1: {name}: why"


def test_a_step_that_lab_stopped_is_not_blamed_on_memory_or_files():
    status, reason = verdict(-9, "MemoryError", stopped_by="user", limit_hit=True)
    assert status is Status.interrupted and "memory" not in reason


STEP = Step(name="s", argv=("x",), timeout_s=10.0, stall_timeout_s=40.0)
FREE = Step(name="s", argv=("x",))


def reason(tmp_path, step: Step, ran_s: float, silent_s: float, disk_full: bool, stop: Stop | None = None):
    log = LogWriter(tmp_path / "run_output.log", lambda _: None)
    log.last_line = time.monotonic() - silent_s
    log.error = OSError(28, "full") if disk_full else None
    return log.reason_to_stop(step, stop or Stop(), ran_s)


@pytest.mark.parametrize(
    "ran_s, silent_s, disk_full, expected",
    [
        (10.0, 0.0, False, None),
        (10.01, 0.0, False, "timeout"),
        (0.0, 40.01, False, "stall"),
        (0.0, 0.0, True, "disk"),
        (10.01, 40.01, True, "timeout"),
        (0.0, 40.01, True, "stall"),
    ],
)
def test_a_step_ends_past_its_limit_and_not_at_it(tmp_path, ran_s, silent_s, disk_full, expected):
    assert reason(tmp_path, STEP, ran_s, silent_s, disk_full) == expected


def test_a_step_without_limits_may_run_and_be_silent_for_ever(tmp_path):
    assert reason(tmp_path, FREE, 1e9, 1e9, False) is None


def test_the_user_comes_before_every_limit(tmp_path):
    stop = Stop()
    stop.set()
    assert reason(tmp_path, STEP, 99.0, 99.0, True, stop) == "user"
