"""A capture process by process: nothing dropped, times and launches as in the recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.recordings.capture import GRAPH, Device, shared_memory_bytes
from lab.recordings.lacks import Lack
from lab.recordings.load import load_capture
from lab.recordings.processes import process_captures
from lab.recordings.tables import MEMCPY, Table
from lab.recordings.views import launch_calls
from tests.recordings.rocpdgen import GUIDS, Process, two, write


def test_every_process_is_a_trace_whose_launches_are_its_own(tmp_path):
    traces = process_captures(load_capture(write(tmp_path / "a.db", *two())))
    assert len(traces) == 2
    for trace, name in zip(traces, ("first", "second"), strict=True):
        assert trace.text(trace.ops.name_id).tolist() == [name] * 4
        assert launch_calls(trace).tolist() == [0, 1, 2, 3]
        assert trace.ops.dur_ns.tolist() == [30] * 4
        assert trace.ops.start_ns.tolist() == [
            20,
            120,
            220,
            320,
        ]
        assert trace.meta.vendor == "amd" and trace.meta.devices == ("GPU of 28", "GPU of 28")
        assert trace.meta.num_sms == (304, 304)


def test_shared_memory_of_a_kernel_is_static_and_dynamic_together(tmp_path):
    (trace,) = process_captures(load_capture(write(tmp_path / "a.db", two()[0])))
    assert shared_memory_bytes(trace.ops).tolist() == [5120] * 4 and trace.ops.regs.tolist() == [48] * 4


def test_copies_stay_copies_and_a_replay_in_one_row_is_work(tmp_path):
    process = Process(GUIDS[0], 5)
    process.launch("k", (0, 5), (10, 20), 1)
    process.copy("HOST_TO_DEVICE", (30, 40), 64, 2)
    capture = load_capture(write(tmp_path / "a.db", process))
    kinds = np.array([GRAPH, MEMCPY], dtype=np.int8)
    capture = replace(capture, ops=Table(capture.ops.as_dict() | {"kind": kinds}))
    (trace,) = process_captures(capture)
    assert trace.work.tolist() == [True, False] and trace.ops.bytes.tolist() == [-1, 64]


def test_a_finding_stays_with_its_process_and_one_of_all_counts_once(tmp_path):
    capture = load_capture(write(tmp_path / "a.db", *two()))
    lacks = [Lack("gpu", "hole", "D", process, 1, 9, 0.1, f"of {process}") for process in (-1, 0, 1)]
    first, second = process_captures(replace(capture, lacks=tuple(lacks)))
    assert [one.text for one in first.lacks] == ["of -1", "of 0"]
    assert [one.text for one in second.lacks] == ["of 1"]


def test_device_numbers_of_a_hostile_file_make_no_long_list(tmp_path):
    capture = load_capture(write(tmp_path / "a.db", two()[0]))
    far = (Device(device=2**31 - 1, name="far"), Device(device=-7, name="below"))
    (trace,) = process_captures(replace(capture, devices=far))
    assert trace.meta.devices == ()
