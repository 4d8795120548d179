"""A rank's row of the timeline says how its times are to be read."""

from __future__ import annotations

import pytest

from lab.recordings.load import load_capture
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.rank import figures_of
from tests.compare.made import edited, layer, trace

STEPS = [layer()] * 3


def without_a_kernel(events):
    lost = [one for one in events if one["cat"] == "kernel"][5]
    return [one for one in events if one is not lost]


def with_kernels_twice(events):
    return [*events, *[dict(one) for one in events if one["cat"] == "kernel"][:2]]


def without_calls(events):
    return [one for one in events if one["cat"] != "cuda_runtime"]


@pytest.mark.parametrize(
    ("edit", "recording", "bound"),
    [
        (list, "complete", "exact"),
        (without_a_kernel, "lossy", "busy at least, idle at most"),
        (with_kernels_twice, "unknown", "busy at most, idle at least"),
        (without_calls, "unknown", "not known"),
    ],
)
def test_times_are_exact_of_a_complete_recording_alone(tmp_path, edit, recording, bound):
    path = edited(trace(tmp_path / "rank0.json", STEPS), edit)
    row = figures_of(TraceFile(0, path, None), load_capture(path)).timeline
    assert (row["recording"], row["bound"]) == (recording, bound)
