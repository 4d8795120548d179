"""A rank's figures: how its times are to be read, and whether the ranks of a job are alike."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner

from lab.recordings.load import load_capture
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.rank import about, differences, figures_of
from lab.rooms.sweep.ranks.cli import ranks
from tests.compare.made import edited, layer, trace
from tests.rooms.sweep.gemm.recorded import read_tables
from tests.rooms.sweep.tuner.made import write_run

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


def _changed(folder, rank: int, **changes: object) -> None:
    path = folder / f"torch_profiler/rank{rank}/trace_step7.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps({**document, **changes}).encode()))


def test_another_gpu_and_another_torch_are_said_first_and_stand_in_the_problems(tmp_path):
    folder = write_run(tmp_path / "256thread/nccl_28channels", 120.0)
    assert read_tables(tmp_path, workers=1).problems.empty
    other = [{"id": 0, "name": "NVIDIA H100 PCIe"}]
    _changed(folder, 0, torch_version="2.11.0")
    _changed(folder, 1, deviceProperties=other, torch_version="2.9.1\u001b[31m")
    texts = read_tables(tmp_path, workers=1).problems["what"].tolist()
    assert texts[0] == "ranks differ in their GPU: rank 1 has NVIDIA H100 PCIe, the others NVIDIA H200"
    assert texts[1].startswith("ranks differ in their torch: rank 1 has 2.9.1") and "\u001b" not in texts[1]
    done = CliRunner().invoke(ranks, [str(folder), "-q", "--workers", "1", "--out", str(tmp_path / "out")])
    assert f"note: {texts[0]}" in done.output
    found = json.loads(CliRunner().invoke(ranks, [str(folder), "--json", "--workers", "1"]).stdout)
    assert found["problems"][:2] == texts


def test_the_few_are_set_against_the_many_and_silence_differs_from_nothing():
    usual = {"GPU": "H200", "torch": "2.11"}
    known = dict.fromkeys(range(5), usual) | {5: {"GPU": "H100"}, 6: {"GPU": "H100", "torch": "2.11"}}
    assert differences(known) == ["ranks differ in their GPU: ranks 5 and 6 have H100, the others H200"]
    assert differences({}) == differences({0: usual}) == []


def test_a_rank_has_the_gpu_that_its_kernels_ran_on(tmp_path):
    folder = write_run(tmp_path / "job", 120.0)
    names = ["NVIDIA A100", "NVIDIA H200"]
    _changed(folder, 0, deviceProperties=[{"id": at, "name": name} for at, name in enumerate(names)])
    assert about(load_capture(folder / "torch_profiler/rank0/trace_step7.json.gz"))["GPU"] == "NVIDIA A100"
