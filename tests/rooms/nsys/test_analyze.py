"""A made trace of known truth through reader, projection and tables; and the recordings of real GPUs."""

from __future__ import annotations

import gzip

import pandas as pd
import pytest

from lab.recordings.load import load_capture
from lab.recordings.phase_names import is_step
from lab.recordings.projection import project
from lab.rooms.nsys import flops
from lab.rooms.nsys.analyze import with_tables
from lab.rooms.nsys.config import spec_of
from lab.rooms.nsys.layout import CellData
from lab.rooms.nsys.recording import Recording, normalised, recording_of
from tests.rooms.nsys import made
from tests.rooms.nsys.made import SPEC, truth, write_trace


def read(path) -> Recording:
    return recording_of(project(load_capture(path)))


def tables(path, spec=SPEC, context=64):
    cell = with_tables(CellData(size="tiny", context=context, type="training", spec=spec), read(path))
    return cell.recording, cell.tables


def phase(found, name):
    return found["phases"][found["phases"]["phase"] == name].iloc[0]


def test_every_phase_has_the_kernels_that_its_thread_and_autograds_worker_launched(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json"))
    due = truth()
    for name in ("forward", "backward"):
        row = phase(found, name)
        assert row.kernels == due[f"{name}_kernels"] and row.same_in_all_steps
        assert 1000 * row.kernel_ms == pytest.approx(due[f"{name}_us"])
    assert phase(found, "optimizer_step").kernels == 3
    assert phase(found, "step").kernels == due["forward_kernels"] + due["backward_kernels"] + 3


def test_phases_add_up_to_their_step(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json", steps=3))
    parts = found["phases"][found["phases"]["phase"] != "step"]
    assert parts["kernel_ms"].sum() == pytest.approx(phase(found, "step").kernel_ms)
    assert parts["matmuls"].sum() == phase(found, "step").matmuls == 3 * SPEC.forward_gemms


def test_warm_up_is_left_out(tmp_path):
    with_it, without = (read(write_trace(tmp_path / f"{on}.json", warmup=on)) for on in (True, False))
    assert with_it.steps == without.steps == [0, 1]
    assert len(with_it.ops) == len(without.ops) and with_it.outside_steps > without.outside_steps == 0


def test_shares_count_products_by_name_and_split_k_sums_as_none(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json"))
    row, due = phase(found, "forward"), truth()
    assert row.matmul_percent == pytest.approx(100 * due["forward_matmul"])
    assert row.matmuls == SPEC.forward_gemms and row.splitk_reductions == 1
    assert phase(found, "step").matmul_percent == pytest.approx(100 * due["step_matmul"])


def test_products_reach_the_rate_of_their_flops_over_their_time(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json"))
    row, products_us = phase(found, "forward"), SPEC.forward_gemms * made.GEMM_US
    assert row.gflop == flops.forward_flop(SPEC, 4, 64) / 1e9
    assert row.matmul_tflops == pytest.approx(flops.forward_flop(SPEC, 4, 64) / products_us / 1e6)
    assert phase(found, "step").gflop == pytest.approx(3 * row.gflop)
    assert pd.isna(phase(found, "optimizer_step").matmul_tflops)


def test_four_times_are_nested_and_not_the_same(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json"))
    for _, row in found["phases"].iterrows():
        assert row.kernel_ms <= row.busy_ms * (1 + 1e-9) <= row.span_ms * (1 + 1e-9) < row.wall_ms


def test_attentions_parts_are_per_layer_with_their_gemm_apart(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json"))
    parts = found["attention"].set_index("part")
    assert list(parts["ranges"]) == [SPEC.layers] * 4
    assert parts.loc["computing_attention_scores", "us_per_layer"] == made.GEMM_US + made.OTHER_US
    assert parts.loc["computing_attention_scores", "matmul_us_per_layer"] == made.GEMM_US
    assert parts.loc["computing_softmax", "us_per_layer"] == 5 * made.OTHER_US
    flop = 2 * 4 * SPEC.heads * 64**2 * SPEC.d_head
    assert parts.loc["final_matmul", "tflops"] == pytest.approx(flop / made.GEMM_US / 1e6)


def test_launches_that_differ_between_steps_are_said_to_differ(tmp_path):
    _, found = tables(write_trace(tmp_path / "t.json", "forward", extra_gemm=True))
    row = phase(found, "forward")
    assert not row.same_in_all_steps and row.matmuls == SPEC.forward_gemms + 0.5
    top = found["kernels"][found["kernels"]["phase"] == "forward"].iloc[0]
    assert not top.same_in_all_steps


def test_a_capture_without_kernels_has_ranges_and_no_kernels(tmp_path):
    recording, found = tables(write_trace(tmp_path / "t.json", kernels=False))
    assert not recording.has_kernels and recording.steps == [0, 1]
    assert (
        phase(found, "forward").wall_ms > 0
        and found["classes"].empty
        and found["kernels"].empty
        and found["attention"].empty
    )


def test_names_are_read_in_the_handouts_spelling_too():
    assert normalised("computing attention  scores") == "computing_attention_scores"
    names = ("step_3", "forward_step_0", "Training Step 12", "step_x", "warmup")
    assert [is_step(name) for name in names] == [True, True, True, False, False]


# Shares of matrix products that the facts of these recordings give, by phase; nsys' own rule loses backward.
@pytest.mark.data
def test_the_h200_capture_of_nsys_has_its_known_shares(shared_data, tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(
        gzip.decompress((shared_data / "nsys_h200" / "transformer_2layer.sqlite.gz").read_bytes())
    )
    recording, found = tables(path, spec=None)
    shares = found["phases"].set_index("phase")["matmul_percent"]
    assert [round(shares[name], 1) for name in ("forward", "backward", "optimizer_step", "step")] == [
        84.4,
        87.7,
        0.0,
        77.6,
    ]
    counts = found["phases"].set_index("phase")
    assert list(counts["kernels"]) == [46, 64, 8, 118] and list(counts["matmuls"]) == [12, 24, 0, 36]
    assert list(counts["splitk_reductions"]) == [2, 8, 0, 10]
    assert recording.collector == "nsys" and recording.ambiguous == 0


@pytest.mark.data
def test_the_h200_kineto_trace_has_its_known_shares_and_products(shared_data):
    path = shared_data / "kernels_h200" / "cs336_small_training.json.gz"
    recording, found = tables(path, spec=spec_of("small", fused_qkv=True), context=512)
    counts = found["phases"].set_index("phase")
    assert [round(x, 1) for x in counts["matmul_percent"]] == [85.2, 87.6, 0.0, 81.6]
    assert [round(x, 2) for x in counts["kernel_ms"]][:3] == [15.31, 29.06, 2.84]
    assert list(counts["matmuls"]) == [85, 170, 0, 255] and counts.loc["optimizer_step", "kernels"] == 56
    parts = found["attention"].set_index("part")
    assert round(parts.loc["computing_softmax", "us_per_layer"], 1) == 32.7
    assert round(parts.loc["computing_attention_scores", "matmul_us_per_layer"], 1) == 52.4
    assert recording.collector == "kineto"
