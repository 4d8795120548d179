from __future__ import annotations

import pytest

from lab.core.step import Status
from lab.engines.verdict import Ending, judge

TORCHRUN_KILLED = """\
Root Cause (first observed failure):
  exitcode  : -9 (pid: 7362)
  traceback : Signal 9 (SIGKILL) received by PID 7362"""


def verdict(code: int, tail: str = "", **more):
    outcome = judge(Ending(exit_code=code, seconds=1, started_utc="", tail=tail.splitlines(), **more))
    return outcome.status, outcome.reason


@pytest.mark.parametrize(
    "code, tail, more, status, words",
    [
        (0, "", {}, Status.ok, ""),
        (0, "", {"missing": ["rank1/*.json"]}, Status.failed, "left no rank1"),
        (0, "", {"oom_kills": 1}, Status.ok, "out-of-memory killer struck"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", {}, Status.oom, "GPU ran out"),
        (1, "RuntimeError: HIP out of memory", {}, Status.oom, "GPU ran out"),
        (1, "MemoryError", {}, Status.oom, "host ran out"),
        (1, TORCHRUN_KILLED, {"oom_kills": 1}, Status.oom, "kernel killed"),
        (1, TORCHRUN_KILLED, {}, Status.failed, "killed by SIGKILL"),
        (-9, "", {}, Status.failed, "killed by SIGKILL"),
        (137, "", {"oom_kills": 2}, Status.oom, "kernel killed"),
        (-11, "", {}, Status.failed, "SIGSEGV"),
        (139, "", {}, Status.failed, "SIGSEGV"),
        (3, "ValueError: bad shape\nnoise", {}, Status.failed, "exit code 3: ValueError: bad shape"),
        (
            1,
            "ValueError: real\ntorch.distributed.elastic.ChildFailedError: ",
            {},
            Status.failed,
            "ValueError: real",
        ),
        (130, "", {"stopped_by": "user"}, Status.interrupted, "user"),
        (-9, "", {"stopped_by": "timeout", "limit_s": 5}, Status.timeout, "5 s"),
        (0, "", {"stopped_by": "stall", "limit_s": 7}, Status.timeout, "printed nothing for 7 s"),
    ],
)
def test_an_end_is_told_in_status_and_words(code, tail, more, status, words):
    got, reason = verdict(code, tail, **more)
    assert got is status
    assert words in reason
