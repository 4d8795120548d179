"""Recorded waits of streams for events bind the replay: planted recordings whose truth is counted by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.recordings.load import load_capture
from lab.recordings.ranks import account_of
from lab.recordings.ranks.explain import explain
from lab.recordings.ranks.explained import READY, RECORDED, Explained
from lab.recordings.ranks.work import RankWork, work_of
from tests.tracegen import TraceWriter

LAYERS, GEMM_US, COPY_US, TRANSFER_US, PAUSE_US = 6, 500, 400, 300, 2000
MAIN, SIDE, COMM = 7, 20, 28


@dataclass
class Host:
    """One rank's host: launches one after another; `sync` records what the profiler's option adds."""

    writer: TraceWriter
    sync: bool = True
    at_us: float = 1000.0
    told: bool = True  # which call recorded the event, and on which stream

    def launch(self, name: str, stream: int, start_us: float, dur_us: float, **args: object) -> None:
        self._call("cudaLaunchKernel")
        known = {"device": 0, "stream": stream, "correlation": self.writer.next_id, **args}
        self.writer.event("kernel", name, start_us, dur_us, args=known, pid=0, tid=stream)

    def wait(self, stream: int, on_stream: int, *, name: str = "Stream Wait Event") -> None:
        """stream waits for an event that is recorded now on on_stream."""
        self._call("cudaEventRecord")
        record = self.writer.next_id
        self._call("cudaStreamWaitEvent")
        args = {"cuda_sync_kind": name, "stream": stream, "correlation": self.writer.next_id, "device": 0}
        if self.told:
            args |= {"wait_on_stream": on_stream, "wait_on_cuda_event_record_corr_id": record}
        else:  # as torch 2.11 writes it
            args |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
        if self.sync:
            self.writer.event("cuda_sync", name, self.at_us, 1, args=args, pid=0, tid=stream)

    def all_reduce(self, start_us: float, stream: int = COMM) -> None:
        metadata = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024}
        metadata |= {"Group size": 2, "dtype": "Float", "Process Group Name": "0"}
        metadata |= {"Process Group Ranks": "[0, 1]"}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
        self.launch(name, stream, start_us, TRANSFER_US, **metadata)

    def _call(self, name: str) -> None:
        self.writer.next_id += 1
        self.writer.event("cuda_runtime", name, self.at_us, 5, args={"correlation": self.writer.next_id})
        self.at_us += 10


def _works(folder: Path, *, sync: bool, layout: str = "compact") -> dict[int, RankWork]:
    """Two ranks whose slow hosts hide that side copies and GEMMs wait for each other, layer by layer."""
    works = {}
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        for number in (5, 6):
            begin = 1000.0 + 60_000 * (number - 5)
            host = Host(writer, sync, begin)
            for _ in range(LAYERS):
                host.launch("nvjet_gemm", MAIN, host.at_us + 8, GEMM_US)
                host.at_us += PAUSE_US  # the GEMM has long ended when its event is recorded
                host.wait(SIDE, MAIN)
                host.launch("side_kernel", SIDE, host.at_us + 8, COPY_US)
                host.at_us += PAUSE_US
                host.wait(MAIN, SIDE)
            host.wait(COMM, MAIN)
            host.wait(COMM, SIDE)
            host.all_reduce(host.at_us + 20)
            writer.step(number, begin, 59_000)
        path = writer.write(folder / f"rank{rank}.json", layout)
        works[rank] = work_of(load_capture(path))
    return works


def _explained(folder: Path, **made: object) -> Explained:
    (found,) = explain([account_of(_works(folder, **made))])  # type: ignore[arg-type]
    return found


def test_with_ready_hosts_recorded_waits_still_bind(tmp_path):
    one = _explained(tmp_path, sync=True)
    serial_ms = (LAYERS * (GEMM_US + COPY_US) + TRANSFER_US) / 1e3
    assert one.withheld == one.notes == ()
    assert one.length_ms(READY) == pytest.approx(serial_ms, rel=0.01)
    assert one.length_ms(RECORDED) == pytest.approx(one.steps[0].recorded_ns / 1e6, rel=0.002)


def test_without_them_the_slow_hosts_hide_the_waits(tmp_path):
    """What the recorded waits are for: mining sees nothing that was ever waited for."""
    one = _explained(tmp_path, sync=False)
    assert one.length_ms(READY) == pytest.approx((LAYERS * GEMM_US + TRANSFER_US) / 1e3, rel=0.2)


def test_a_wait_of_the_host_or_of_an_event_from_before_the_window_is_none(tmp_path):
    writer = TraceWriter(rank=0, world_size=1)
    host = Host(writer)
    host.launch("a", MAIN, 1100, 10)
    host.wait(SIDE, MAIN, name="Event Sync")
    host.wait(MAIN, MAIN)
    lost = {"stream": SIDE, "correlation": writer.next_id, "device": 0, "wait_on_stream": MAIN}
    writer.event("cuda_sync", "Stream Wait Event", host.at_us, 1, pid=0, tid=SIDE, args=lost)
    lost = {**lost, "wait_on_cuda_event_record_corr_id": 999_999}
    writer.event("cuda_sync", "Stream Wait Event", host.at_us, 1, pid=0, tid=SIDE, args=lost)
    host.launch("b", SIDE, 1300, 10)
    trace = load_capture(writer.write(tmp_path / "rank0.json"))
    assert len(trace.waits) == 3 and len(work_of(trace).waits) == 0


def test_an_event_of_an_earlier_step_holds_the_first_operation_back(tmp_path):
    writer = TraceWriter(rank=0, world_size=2)
    works = {}
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        host = Host(writer, True, 1000)
        host.launch("long", MAIN, 1010, 9000)  # runs on into the next step
        writer.step(5, 1000, 1000)
        host.at_us = 2000
        host.wait(SIDE, MAIN)
        host.launch("after", SIDE, 10_011, 100)
        host.all_reduce(10_112, SIDE)
        writer.step(6, 2000, 9000)
        works[rank] = work_of(load_capture(writer.write(tmp_path / f"rank{rank}.json")))
    (one,) = explain([account_of(works)])
    step = next(step for step in one.steps if step.number == 6)
    assert step.ranks[0].floor[0] == pytest.approx(step.ranks[0].start[0] - 1000)


def test_waits_that_do_not_repeat_the_recording_are_completed_and_that_is_said(tmp_path):
    """The side kernels' waits were lost, and only the GEMMs' own are recorded: mining finds the others."""
    works = {}
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        for number in (5, 6):
            begin = 1000.0 + 20_000 * (number - 5)
            host = Host(writer, True, begin)
            start = begin + 6
            for _ in range(LAYERS):
                host.launch("nvjet_gemm", MAIN, start, GEMM_US)
                host.sync = False
                host.wait(SIDE, MAIN)
                host.sync = True
                host.launch("side_kernel", SIDE, start + GEMM_US + 1, COPY_US)
                host.wait(MAIN, SIDE)
                start += GEMM_US + COPY_US + 2
            host.all_reduce(start, MAIN)
            writer.step(number, begin, 19_000)
        works[rank] = work_of(load_capture(writer.write(tmp_path / f"rank{rank}.json")))
    (one,) = explain([account_of(works)])
    assert one.withheld == () and [text.partition(" is")[0] for text in one.notes] == ["step 5", "step 6"]
    truth_ms = (LAYERS * (GEMM_US + COPY_US) + TRANSFER_US) / 1e3
    assert one.length_ms(READY) == pytest.approx(truth_ms, rel=0.02)


@pytest.mark.parametrize(("sync", "seen"), [(True, True), (False, False)])
def test_a_wait_for_an_event_that_is_not_told_binds_after_the_latency_of_events(tmp_path, sync, seen):
    """GEMMs of 500 us, each awaited by a side kernel that starts 15 us after it, later than without one."""
    works = {}
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        for number in (5, 6):
            begin = 1000.0 + 10_000 * (number - 5)
            host, ready = Host(writer, sync, begin, told=False), begin
            for _ in range(LAYERS):
                ready = max(ready + 1, host.at_us + 8)
                host.launch("nvjet_gemm", MAIN, ready, GEMM_US)
                ready += GEMM_US
                host.wait(SIDE, MAIN)
                host.launch("side_kernel", SIDE, ready + 15, COPY_US)
            host.wait(COMM, SIDE)
            host.all_reduce(ready + 15 + COPY_US + 15)
            writer.step(number, begin, 9_000)
        works[rank] = work_of(load_capture(writer.write(tmp_path / f"rank{rank}.json")))
    (one,) = explain([account_of(works)])
    held = [len(work.held) for work in works.values()]
    assert held == ([2 * (LAYERS + 1)] * 2 if seen else [0, 0])
    waits = [sum(map(len, rank.awaited)) for step in one.steps for rank in step.ranks.values()]
    assert waits == ([LAYERS + 1] * 4 if seen else [0] * len(waits))
    assert one.notes == () if seen else one.notes or one.withheld
