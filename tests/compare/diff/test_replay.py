"""A change that comes back alone is the kernel's own; in order only, the caches'; never: surroundings."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lab.compare.cli import diff as command
from lab.compare.diff import replay as module
from lab.compare.diff.comparison import compare_sides
from lab.compare.diff.replay import (
    AROUND,
    CACHES,
    CANNOT,
    KERNEL,
    MODES,
    OUTSIDE,
    Time,
    decide,
    judge,
    read_times,
)
from lab.core.gpu import Gpu
from lab.errors import GpuError, UsageError
from tests.compare.diff.test_comparison import BASE
from tests.compare.made import layer, trace

NO_SPREAD = dict.fromkeys(MODES, 0.0)


@pytest.mark.parametrize(
    ("hot", "cold", "in_order", "verdict"),
    [
        (1.0, 1.0, 1.0, KERNEL),
        (0.1, 0.8, 0.9, KERNEL),
        (0.0, 0.1, 0.9, CACHES),
        (0.1, -0.2, 0.1, AROUND),
        (-1.0, -1.0, -1.0, AROUND),
    ],
)
def test_the_verdict_follows_from_what_comes_back(hot, cold, in_order, verdict):
    for recorded in (4000.0, -4000.0):
        changes = dict(zip(MODES, (hot * recorded, cold * recorded, in_order * recorded), strict=True))
        assert decide(recorded, changes, NO_SPREAD)[0] == verdict


def test_too_wide_a_spread_and_a_missing_mode_are_no_verdict():
    changes = dict.fromkeys(MODES, 4000.0)
    assert decide(4000.0, changes, {**NO_SPREAD, "cold": 2500.0})[0] == CANNOT
    assert decide(4000.0, {"hot": 4000.0, "cold": 4000.0}, NO_SPREAD)[0] == CANNOT
    assert decide(0.0, changes, NO_SPREAD)[0] == CANNOT


def sides(tmp_path):
    slow = [[(op, d, k, us * (1.5 if op == "aten::mm" else 1)) for op, d, k, us in step] for step in BASE]
    return trace(tmp_path / "a.json", BASE), trace(tmp_path / "b.json", slow)


def time(ns, same="exact", launched=""):
    return Time(ns, 0.0, same, launched)


def test_without_known_memory_caches_are_not_excluded(tmp_path):
    nothing = dict.fromkeys(MODES, 0.0)
    assert decide(4000.0, nothing, NO_SPREAD)[0] == AROUND
    assert decide(4000.0, nothing, NO_SPREAD, memory=False)[0] == OUTSIDE
    write_result(tmp_path / "one", 30.0, memory=False)
    assert (
        read_times(tmp_path / "one")[1] is False
        and "no execution trace" in read_times(tmp_path / "one")[2][0]
    )


def test_calls_are_joined_by_op_shapes_and_kernel_and_weighted_by_their_count(tmp_path):
    found = compare_sides(*sides(tmp_path)).shown.comparison
    key = ("aten::mm", "[[64,64],[64,64]]", "gemm_128")
    times = {(side, mode): {key: time(30_000 if side == "A" else 45_000)} for side in "AB" for mode in MODES}
    one = judge(0, found.findings[0], found.rows, times)
    assert (one.verdict, one.recorded_ns, one.hot_ns) == (KERNEL, pytest.approx(40_000), 30_000)


def test_another_kernel_here_is_said_and_no_verdict(tmp_path):
    found = compare_sides(*sides(tmp_path)).shown.comparison
    key = ("aten::mm", "[[64,64],[64,64]]", "gemm_128")
    times = {("A", mode): {key: time(30_000)} for mode in MODES}
    times |= {("B", mode): {key: time(0, "other kernel", "gemm_256")} for mode in MODES}
    one = judge(0, found.findings[0], found.rows, times)
    assert one.verdict == CANNOT and "gemm_256" in one.reason
    lost = judge(0, found.findings[0], found.rows, {(side, mode): {} for side in "AB" for mode in MODES})
    assert lost.verdict == CANNOT and "was not replayed" in lost.reason


def write_result(folder, us, *, device="cuda", same="exact", gpu="NVIDIA H200", memory=True):
    folder.mkdir(parents=True)
    row = {"sig_id": "s0", "name": "gemm_128", "count": 8, "same_kernel": same, "launched": ""}
    row["us"] = {"median": us, "ci": [us, us]}
    result = {"rows": [row], "device": device, "device_name": gpu, "trace_device_name": "NVIDIA H200"}
    (folder / "replay.json").write_text(json.dumps(result))
    args = [{"name": "self", "tensor": {"dtype": "float32", "shape": [64, 64]}}] * 2
    plan = {"signatures": [{"sig_id": "s0", "op": "aten::mm", "args": args}]}
    plan["origin"] = {"execution_trace": "et.json" if memory else ""}
    (folder / "replay_plan.json").write_text(json.dumps(plan))


def test_a_result_of_another_gpu_or_of_a_cpu_is_said(tmp_path):
    write_result(tmp_path / "one", 30.0, gpu="NVIDIA H100")
    assert "NVIDIA H100" in read_times(tmp_path / "one")[2][0]
    write_result(tmp_path / "two", 30.0, device="cpu", same="op called again, no kernel")
    times, _, notes = read_times(tmp_path / "two")
    assert "no kernel was replayed" in notes[0]
    assert times["aten::mm", "[[64,64],[64,64]]", "gemm_128"].same == "op called again, no kernel"


def test_the_command_replays_both_sides_in_all_modes_and_shows_the_verdict(tmp_path, monkeypatch):
    a, b = sides(tmp_path)
    ran = []

    def run(source, folder, mode, image):
        ran.append((source[0], mode))
        write_result(folder, 40.0 if source[0] == str(a) or mode != "in-order" else 60.0)

    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(
        module, "discover", lambda: [Gpu(uuid="GPU-0", index=0, vendor="nvidia", name="NVIDIA H200")]
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(command, [str(a), str(b), "--replay", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert ran == [(str(path), mode) for mode in MODES for path in (a, b)]
    assert CACHES in done.output and CACHES in (out / "diff.html").read_text()
    assert json.loads((out / "findings.json").read_text())["replayed"][0]["in_order_ns"] == pytest.approx(
        40_000
    )


def test_without_a_gpu_nothing_starts_and_the_error_has_its_own_code(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "discover", list)
    with pytest.raises(GpuError) as caught:
        CliRunner().invoke(
            command,
            ["nowhere", "nothing", "--replay", "-o", str(tmp_path / "out")],
            catch_exceptions=False,
            standalone_mode=False,
        )
    assert caught.value.exit_code == 7 and not (tmp_path / "out").exists()
    with pytest.raises(UsageError):
        CliRunner().invoke(command, ["a", "b", "--replay"], catch_exceptions=False, standalone_mode=False)


@pytest.mark.torch
def test_the_kernels_room_runs_a_side_and_what_it_writes_is_read(tmp_path):
    pytest.importorskip("torch")
    source = trace(tmp_path / "a.json", [layer()] * 2)
    module._run([str(source)], tmp_path / "run", "hot", None, gpus="none")
    times, _, notes = read_times(tmp_path / "run")
    assert times["aten::mm", "[[64,64],[64,64]]", "gemm_128"].same != "exact"
    assert "no kernel was replayed" in notes[0]
