"""Idle time has a cause: who was late is told by when the next operation was launched."""

from __future__ import annotations

import json

import pytest

from lab.compare.diff.comparison import compare
from tests.compare.made import event
from tests.conftest import SHARED


def recorded(path, launches, waits=()):
    """Two steps of (launch at, kernel from, kernel to) in us, None for a launch that was not recorded;
    `waits` are (from, to) of cudaDeviceSynchronize."""
    events, corr = [], 0
    for step in range(2):
        base = 1000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", base, 900, 1, 1))
        for launch, begin, end in launches:
            corr += 1
            if launch is not None:
                events.append(
                    event("cuda_runtime", "cudaLaunchKernel", base + launch, 1, 1, 1, {"correlation": corr})
                )
            args = {"correlation": corr, "device": 0, "stream": 7}
            events.append(event("kernel", "k", base + begin, end - begin, 0, 7, args))
        for begin, end in waits:
            corr += 1
            wait = {"correlation": corr}
            events.append(
                event("cuda_runtime", "cudaDeviceSynchronize", base + begin, end - begin, 1, 1, wait)
            )
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


BUSY = [(1, 10, 50), (2, 50, 100), (3, 100, 150)]


def idle_of(tmp_path, launches, waits=()):
    base = recorded(tmp_path / "a.json", BUSY)
    found = compare(base, recorded(tmp_path / "b.json", launches, waits)).shown
    return {
        cause: round(getattr(found, f"idle_{cause}_ns") / 1000)
        for cause in ("late", "wait", "queued", "unknown")
        if getattr(found, f"idle_{cause}_ns")
    }


def test_a_launch_after_the_gpu_ran_dry_is_the_hosts(tmp_path):
    assert idle_of(tmp_path, [*BUSY[:2], (130, 140, 190)]) == {"late": 30, "queued": 10}


def test_a_launch_after_the_host_waited_is_the_waits(tmp_path):
    late = [*BUSY[:2], (130, 140, 190)]
    assert idle_of(tmp_path, late, waits=[(60, 102)]) == {"wait": 30, "queued": 10}
    assert idle_of(tmp_path, late, waits=[(5, 40)]) == {"late": 30, "queued": 10}  # long over
    assert idle_of(tmp_path, late, waits=[(200, 240)]) == {"late": 30, "queued": 10}  # later on


def test_a_queued_operation_that_begins_late_is_not_the_hosts(tmp_path):
    assert idle_of(tmp_path, [*BUSY[:2], (3, 140, 190)]) == {"queued": 40}


def test_without_a_recorded_launch_the_cause_is_not_known(tmp_path):
    assert idle_of(tmp_path, [*BUSY[:2], (None, 140, 190)]) == {"unknown": 40}


@pytest.mark.skipif(not (SHARED / "serve").exists(), reason="the shared recordings are not here")
def test_a_planted_wait_is_seen_though_the_idle_time_as_a_whole_fell():
    found = compare(SHARED / "serve" / "a_base01.json.gz", SHARED / "serve" / "a_idle01.json.gz").shown
    assert found.idle_ns < 0 and found.idle_wait_ns == pytest.approx(612_600, rel=0.01)
