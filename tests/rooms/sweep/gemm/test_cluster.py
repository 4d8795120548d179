"""`lab gemm spread` on a real Slurm: one task per configuration, put together by a last job."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lab.engines.slurm import queue
from tests.rooms.sweep.gemm.recorded import write_sweep


def until(true, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


@pytest.mark.slurm
@pytest.mark.usefixtures("cluster_alone")
def test_an_analysis_is_spread_over_tasks_and_put_together(tmp_path):
    sweep = write_sweep(tmp_path / "recorded", ranks=2)
    out = tmp_path / "out"
    words = ["gemm", "spread", str(sweep), "--out", str(out), "--cpus-per-task", "1", "-j", "2"]
    done = subprocess.run([sys.executable, "-m", "lab", *words], capture_output=True, text=True, check=True)
    assert "2 tasks as" in done.stdout
    until(lambda: (out / "plots").is_dir() and not _jobs_left(out), 600)
    assert sorted(path.name for path in (out / "merged_traces").iterdir()) == [
        "256thread_28ch_merged.json.gz",
        "512thread_28ch_merged.json.gz",
    ]
    assert (
        len((out / "timeline.csv").read_text().splitlines()) == 1 + 2 * 2
    )  # two configurations of two ranks
    assert not (sweep / "tracelens_analysis").exists()


def _jobs_left(out) -> bool:
    names = {path.name.split("_")[0] for path in (out / ".slurm" / "submitit").glob("[0-9]*")}
    return bool(queue.living(names))
