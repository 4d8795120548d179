"""Recordings of several processes: none is folded into another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.capture import Device, Process
from lab.recordings.lacks import Lack
from lab.recordings.load import load_capture
from lab.recordings.processes import process_label, single_processes, with_processes
from lab.recordings.projection import project
from tests.recordings.nsys.twice import twice
from tests.recordings.projection.made import call, kernel, made, named
from tests.recordings.sqlgen import Export, training_step

COLUMNS = ("rule", "range", "inherited", "api")


def test_rows_without_a_process_are_told_apart_by_their_pid():
    capture = made([named("a", 0, 9, pid=5)], [call(1, 1, 2, pid=7)], [kernel(1, pid=7)])
    found = with_processes(capture)
    assert [one.pid for one in found.processes] == [5, 7]
    assert (found.ranges.process.tolist(), found.ops.process.tolist()) == ([0], [1])
    assert with_processes(found) is found


def test_each_process_is_a_capture_of_its_own_with_its_devices_and_lacks():
    lacks = [Lack("gpu", "hole", "G", process, 1, 2, 0.5, "text") for process in (0, 1, -1)]
    capture = with_processes(made([], [call(1, 1, 2, pid=5), call(1, 3, 4, pid=7)], [kernel(1, pid=7)]))
    devices = (Device(0, "a", pid=5), Device(0, "b", pid=7), Device(0, "c", process=1), Device(1, "all"))
    capture = replace(capture, lacks=tuple(lacks), devices=devices)
    found = single_processes(capture)
    assert list(found) == [0, 1]
    assert [len(one.ops) for one in found.values()] == [0, 1]
    assert [[device.name for device in one.devices] for one in found.values()] == [
        ["a", "all"],
        ["b", "c", "all"],
    ]
    assert [[lack.process for lack in one.lacks] for one in found.values()] == [[0, -1], [1, -1]]
    assert found[1].ops.process.tolist() == [0]
    assert found[1].processes == (Process(pid=7),)


def test_a_process_is_named_by_pid_rank_and_host():
    assert process_label(Process(pid=3, rank=1), 0) == "process 3 (rank 1)"
    assert process_label(Process(host="n1"), 2) == "process number 2 (n1)"


@pytest.mark.parametrize("shift_ns", [0, 3, 1_000_000])
def test_two_processes_are_projected_as_each_by_itself(tmp_path, shift_ns):
    """With a shift of 0 every thread, number and time of one is also the other's."""
    single = training_step(Export()).write(tmp_path / "single.sqlite")
    both = load_capture(twice(single, tmp_path / "both.sqlite", shift_ns=shift_ns))
    alone = project(load_capture(single))
    together = project(both)
    for index, part in single_processes(both).items():
        projection = project(part)
        for name in COLUMNS:
            assert getattr(projection.ops, name).tolist() == getattr(alone.ops, name).tolist()
        mine = together.ops.where(both.ops.process == index)
        assert mine.rule.tolist() == alone.ops.rule.tolist()
        calls = both.api.corr[mine.api]
        assert calls.tolist() == alone.capture.api.corr[alone.ops.api].tolist()
        assert (both.api.process[mine.api] == index).all()


def test_one_pid_on_two_machines_is_two_processes(tmp_path):
    single = training_step(Export()).write(tmp_path / "single.sqlite")
    both = load_capture(twice(single, tmp_path / "both.sqlite", shift_ns=7, pids=1 << 24))
    assert [one.pid for one in both.processes] == [1, 1]
    assert len({one.host for one in both.processes}) == 2
    alone = project(load_capture(single))
    assert [project(one).ops.rule.tolist() for one in single_processes(both).values()] == [
        alone.ops.rule.tolist()
    ] * 2


@pytest.mark.data
def test_the_public_capture_of_two_gpus_joins_within_each_process(shared_data):
    """Correlations overlap: without the process 16 device rows (11 kernels) find a false partner."""
    capture = load_capture(shared_data / "nsys_public" / "h100_2gpu_1s.sqlite.gz")
    assert len(capture.processes) == 2
    found = project(capture).ops.api
    joined = found >= 0
    assert (capture.api.process[found[joined]] == capture.ops.process[joined]).all()
    assert (int((~joined).sum()), int((~joined & capture.kernels).sum())) == (2276, 1810)
    anywhere = np.isin(capture.ops.corr, capture.api.corr)
    assert (int((anywhere & ~joined).sum()), int((anywhere & ~joined & capture.kernels).sum())) == (16, 11)
    each = single_processes(capture)
    assert sum(len(one.ops) for one in each.values()) == len(capture.ops)
    assert sum(int((project(one).ops.api < 0).sum()) for one in each.values()) == 2276
