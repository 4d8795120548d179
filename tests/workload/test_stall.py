"""A rank that makes no progress leaves its flight record and its stacks before it ends (gloo, on the CPU)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed here")

from lab.recordings.flight import read_dumps, verdict_of
from lab.workload.stall import limit_s, stacks
from tests.conftest import free_port

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


def play(case: str, out: Path, limit: float) -> list[subprocess.CompletedProcess[str]]:
    """Both ranks of tests/workload/hang_job.py; each ends by itself."""
    port, ranks = str(free_port()), []
    for rank in ("0", "1"):
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        here = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env = {**os.environ, **of_rank, **meeting, **here}
        command = [sys.executable, "-m", "tests.workload.hang_job", case, str(out), str(limit)]
        ranks.append(
            subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    return [subprocess.CompletedProcess(p.args, p.wait(timeout=900), *p.communicate()) for p in ranks]


@pytest.mark.parametrize(("case", "ranks"), [("not_joined", (1,)), ("mismatched", (0, 1))])
def test_a_hang_is_dumped_and_named_before_the_ranks_end(tmp_path, case, ranks):
    """A step that is tried again has the same folder: an old dump would count as a rank that is there."""
    (tmp_path / "hang").mkdir()
    old = [tmp_path / "hang.txt", *(tmp_path / "hang" / f"rank2.{ending}" for ending in ("pkl", "stack.txt"))]
    for path in old:
        path.write_bytes(b"of before")
        os.utime(path, (1e9, 1e9))
    done = play(case, tmp_path, 4.0)
    assert [one.returncode for one in done] == [1, 1], [one.stderr[-500:] for one in done]
    dumps = read_dumps(tmp_path / "hang")
    verdict = verdict_of(dumps)
    assert (verdict.kind, verdict.ranks) == (case, ranks)
    assert sorted(dumps) == [0, 1] and verdict.missing == ()
    assert "hang_job.py" in verdict.frame
    said = f"rank 0 stalled: no step finished within 4 s: {case.replace('_', ' ')}"
    assert said in done[0].stdout and said in (tmp_path / "hang.txt").read_text()
    if case == "not_joined":
        assert "stuck_elsewhere" in dumps[1].stack and "its host is at" in verdict.text
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_job_that_progresses_is_left_alone(tmp_path):
    done = play("healthy", tmp_path, 60.0)
    assert [one.returncode for one in done] == [0, 0], [one.stderr[-500:] for one in done]
    assert "is through" in done[0].stdout and not (tmp_path / "hang").exists()


def test_the_limit_comes_from_the_driver_and_lies_below_the_engines():
    assert limit_s({}) == 0 and limit_s({"LAB_STALL_TIMEOUT_S": "soon"}) == 0
    assert 0 < limit_s({"LAB_STALL_TIMEOUT_S": "100"}) < 100


def test_stacks_begin_with_the_main_thread_and_its_innermost_frame():
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(stacks()))
    thread.start()
    thread.join()
    lines = found[0].splitlines()
    assert lines[0] == "Thread MainThread (most recent call first):"
    own = next(number for number, line in enumerate(lines) if "test_stall.py" in line)
    assert all("threading.py" in line for line in lines[1:own])
