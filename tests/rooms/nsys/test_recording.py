"""Steps, phases and operators of one process, from either collector."""

from __future__ import annotations

import re

import pytest

from lab.recordings.load import load_capture
from lab.recordings.projection import PhaseNames, project
from lab.rooms.nsys.analyze import phase_table
from lab.rooms.nsys.recording import recording_of
from tests.recordings.sqlgen import Export, training_step
from tests.tracegen import TraceWriter

MAIN = (1, 1)


def read(export, tmp_path, names=None):
    names = names or PhaseNames()
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    return recording_of(project(capture, "full", names.pattern), names)


def phases(recording):
    return phase_table(recording).set_index("phase")


def test_two_steps_of_one_number_are_two_steps(tmp_path):
    """A second epoch counts from 0 again: the step is the instance, not the number in its name."""
    export = training_step(Export())
    for epoch in (50_000, 60_000):
        export.range("step_0", MAIN, epoch, epoch + 5_000)
        export.range("forward", MAIN, epoch + 100, epoch + 1_000)
        for i in range(2):
            call = epoch + 200 + 50 * i
            export.launch(
                "gemm_forward", MAIN, (call, call + 10), (call + 300 * (i + 1), call + 300 * i + 400)
            )
    recording = read(export, tmp_path)
    assert recording.step_names == ("step_0", "step_1", "step_0", "step_0")
    row = phases(recording).loc["forward"]
    assert (row["steps"], row["kernels"], row["same_in_all_steps"]) == (4, 2, True)
    assert row["kernel_ms"] == pytest.approx(200 / 1e6)


def test_a_phase_inside_the_same_phase_counts_once(tmp_path):
    export = Export()
    export.range("step_0", MAIN, 0, 10_000)
    export.range("forward", MAIN, 100, 4_100)
    export.range("DistributedDataParallel.forward", MAIN, 200, 4_000)
    export.launch("k", MAIN, (300, 310), (400, 500))
    row = phases(read(export, tmp_path)).loc["forward"]
    assert row["wall_ms"] == pytest.approx(4000e-6), "not the sum of both"
    assert row["kernels"] == 1


def test_lightnings_optimizer_step_is_without_the_passes_that_it_runs(tmp_path):
    export = Export()
    export.range("[pl][profile]run_training_batch", MAIN, 0, 10_000)
    export.range("[pl][profile][LightningModule]Net.optimizer_step", MAIN, 100, 9_000)
    export.range("Optimizer.step#Adam.step", MAIN, 150, 8_900)
    export.range("[pl][profile][Strategy]DDPStrategy.training_step", MAIN, 200, 2_200)
    export.launch("f", MAIN, (300, 310), (400, 500))
    export.range("[pl][profile][Strategy]DDPStrategy.backward", MAIN, 3_000, 6_000)
    export.launch("b", (1, 2), (3_100, 3_110), (3_200, 3_400))
    export.launch("adam", MAIN, (7_000, 7_010), (7_100, 7_150))
    recording = read(export, tmp_path)
    found = phases(recording)
    assert recording.steps == [0]
    assert {name: found.loc[name, "wall_ms"] for name in ("forward", "backward", "optimizer_step")} == {
        "forward": pytest.approx(2000e-6),
        "backward": pytest.approx(3000e-6),
        "optimizer_step": pytest.approx((8900 - 2000 - 3000) * 1e-6),
    }
    assert list(found["kernels"]) == [1, 1, 1, 3]
    assert list(found["kernel_ms"]) == [pytest.approx(ns / 1e6) for ns in (100, 200, 50, 350)]


def test_an_unknown_phase_is_offered_and_claimed_by_name(tmp_path):
    export = Export()
    for step in range(2):
        t = 10_000 * step
        export.range(f"step_{step}", MAIN, t, t + 9_000)
        export.range("bwd", MAIN, t + 2_000, t + 5_000)
        for i in range(3):
            export.launch(
                "k", (1, 2), (t + 2_200 + i, t + 2_201 + i), (t + 3_000 + 10 * i, t + 3_005 + 10 * i)
            )
    unnamed = read(export, tmp_path)
    assert "6 kernels ran under `bwd`: --phase bwd" in unnamed.problems
    assert "backward" not in phases(unnamed).index and phases(unnamed).loc["step", "kernels"] == 3
    names = PhaseNames((("backward", re.compile("bwd")),))
    named = read(export, tmp_path, names)
    assert not named.problems and phases(named).loc["backward", "kernels"] == 3


def test_warm_up_steps_are_no_measured_steps(tmp_path):
    export = Export()
    export.range("warmup", MAIN, 0, 5_000)
    export.range("step_0", MAIN, 10, 4_000)
    export.launch("k", MAIN, (20, 30), (40, 50))
    export.range("step_0", MAIN, 6_000, 9_000)
    export.launch("k", MAIN, (6_020, 6_030), (6_040, 6_050))
    recording = read(export, tmp_path)
    assert recording.steps == [0] and recording.outside_steps == 1


# The same run as torch.profiler records it and as `nsys profile --pytorch=autograd-shapes-nvtx` does:
# (name, thread, start, length in us, sequence number, shapes).
OPS = [
    ("aten::linear", 1, 110, 60, 5, [[4, 8], [16, 8]]),
    ("aten::mm", 1, 120, 40, 5, [[4, 8], [8, 16]]),
    ("aten::empty", 1, 121, 5, -1, [[]]),
    ("autograd::engine::evaluate_function: MmBackward0", 2, 300, 90, 5, []),
    ("MmBackward0", 2, 310, 70, 5, []),
    ("aten::mm", 2, 320, 40, -1, [[16, 4], [4, 8]]),
]
RANGES = [("step_0", 0, 900), ("forward", 100, 100), ("block", 105, 80), ("backward", 250, 300)]
KERNELS = [("gemm_f", 1, 130, 200), ("gemm_b", 2, 330, 400)]


def by_kineto(path):
    trace = TraceWriter()
    for name, start, took in RANGES:
        trace.event("user_annotation", name, start, took, tid=1)
    for name, tid, start, took, seq, dims in OPS:
        args = {"Sequence number": seq} if seq >= 0 else {}
        trace.event(
            "cpu_op", name, start, took, tid=tid, args={**args, **({"Input Dims": dims} if dims else {})}
        )
    for corr, (name, tid, call, run) in enumerate(KERNELS, start=1):
        trace.event("cuda_runtime", "cudaLaunchKernel", call, 5, tid=tid, args={"correlation": corr})
        args = {"correlation": corr, "device": 0, "stream": 7}
        trace.event("kernel", name, run, 20, pid=0, tid=7, args=args)
    return load_capture(trace.write(path / "a.json"))


def by_nsys(path):
    export = Export()
    for number, (name, start, took) in enumerate(RANGES, start=1):
        text = f"{name}, op_id = {number}"  # emit_nvtx numbers a program's own ranges, too
        export.range(text, MAIN, 1000 * start, 1000 * (start + took))
    for number, (name, tid, start, took, seq, dims) in enumerate(OPS, start=10):
        numbers = f", seq = {seq}" if seq >= 0 else ""
        sizes = f", sizes = {dims}" if dims else ""
        export.range(
            f"{name}{numbers}, op_id = {number}{sizes}", (1, tid), 1000 * start, 1000 * (start + took)
        )
    for name, tid, call, run in KERNELS:
        export.launch(name, (1, tid), (1000 * call, 1000 * call + 5000), (1000 * run, 1000 * run + 20_000))
    return load_capture(export.write(path / "a.sqlite"))


def test_operator_ranges_of_nvtx_give_the_tables_that_kineto_gives(tmp_path):
    captures = [by_kineto(tmp_path), by_nsys(tmp_path)]
    projections = [project(capture) for capture in captures]
    kineto, nsys = (recording_of(projection) for projection in projections)
    assert list(nsys.ops["phase"]) == list(kineto.ops["phase"]) == ["forward", "backward"]
    for projection in projections:
        assert [projection.path(path)[-1] for path in projection.ops.path.tolist()] == ["aten::mm"] * 2
        assert projection.path(int(projection.ops.origin[1]))[-1] == "block"
    names = [
        sorted(zip(one.text(one.ranges.name_id), one.ranges.kind.tolist(), strict=True)) for one in captures
    ]
    assert names[0] == names[1]
    dims = [
        sorted(
            (name, text)
            for name, text in zip(one.text(one.ranges.name_id), one.text(one.ranges.dims_id), strict=True)
            if text
        )
        for one in captures
    ]
    assert dims[0] == dims[1] and len(dims[0]) == 4
