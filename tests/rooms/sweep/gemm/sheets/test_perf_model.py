"""Which op a kernel belongs to, and what the data sheet allows."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from lab.recordings.kineto import read_kineto
from lab.rooms.sweep.gemm.sheets.launches import launches
from lab.rooms.sweep.gemm.sheets.perf_model import perf_model_sheets
from tests.perfmodel.truths import CASES, PRODUCT_RATES, ROOF_PERCENTS
from tests.tracegen import TraceWriter


def _sheets_of(path: Path) -> dict[str, pd.DataFrame]:
    sheets = perf_model_sheets(launches(read_kineto(path)))
    return {name: pd.DataFrame(sheet.as_dict()) for name, sheet in sheets.items()}


def _sheets(writer: TraceWriter, tmp_path):
    return _sheets_of(writer.write(tmp_path / "t.json"))


@pytest.mark.data
@pytest.mark.parametrize(("name", "op", "tflops", "gflop_each"), PRODUCT_RATES)
def test_a_products_rate_is_that_of_all_its_kernels(shared_data, name, op, tflops, gflop_each):
    table = _sheets_of(shared_data / CASES / f"{name}.json.gz")["unified_perf_summary"]
    (row,) = table.query("name == @op").to_dict("records")
    assert row["TFLOPS/s_mean"] == pytest.approx(tflops, abs=0.05)
    assert row["GFLOPS"] == pytest.approx(gflop_each, abs=0.005)


@pytest.mark.data
@pytest.mark.parametrize(("name", "percent"), ROOF_PERCENTS)
def test_the_share_of_the_roof_is_that_of_the_board_itself(shared_data, name, percent):
    table = _sheets_of(shared_data / CASES / f"board_{name}.json.gz")["unified_perf_summary"]
    (row,) = table.to_dict("records")
    expected = float("nan") if percent is None else percent
    assert row["percent_of_roof"] == pytest.approx(expected, abs=0.3, nan_ok=True)


def _attention(writer: TraceWriter, at: float) -> None:
    shape = [[2, 4, 128, 64]] * 3
    writer.op(
        "aten::_scaled_dot_product_flash_attention",
        at,
        50,
        **{
            "Input Dims": [*shape, [], []],
            "Input type": ["c10::BFloat16"] * 3 + ["Scalar", "Scalar"],
            "Concrete Inputs": ["", "", "", "0.", "False"],
        },
    )
    inner = writer.op("aten::_flash_attention_forward", at + 10, 20)
    writer.kernel("flash_fwd", at + 20, 30, op=inner)


def test_attentions_kernels_are_attentions_whatever_launches_them(tmp_path):
    writer = TraceWriter()
    _attention(writer, 100)
    _attention(writer, 300)
    sheets = _sheets(writer, tmp_path)
    assert list(sheets) == ["unified_perf_summary", "SDPA_fwd"]
    (row,) = sheets["SDPA_fwd"].to_dict("records")
    assert (row["name_count"], row["Kernel Time (µs)_mean"], row["param: N_KV"]) == (2, 30, 128)
    assert row["TFLOPS/s_mean"] == pytest.approx(2 * 2 * 4 * 128 * 128 * 128 / 30e-6 / 1e12)
    assert list(sheets["unified_perf_summary"]["name"]) == ["aten::_scaled_dot_product_flash_attention"]


def test_roofs_are_those_of_the_gpus_data_sheet(tmp_path):
    writer = TraceWriter()  # an H200: 989.5 TFLOP/s, 4.8 TB/s
    writer.gemm(4096, 4096, 4096, 100, 200)
    (row,) = _sheets(writer, tmp_path)["unified_perf_summary"].to_dict("records")
    assert row["compute_roof_us"] == pytest.approx(2 * 4096**3 / 989.5e12 * 1e6)
    assert row["memory_roof_us"] == pytest.approx(3 * 4096**2 * 2 / 4.8e12 * 1e6)
    assert row["bound_by"] == "compute" and row["percent_of_roof"] == pytest.approx(
        row["compute_roof_us"] / 2
    )


def test_an_op_whose_kernel_took_no_time_reaches_nothing_that_can_be_told(tmp_path):
    writer = TraceWriter()
    writer.gemm(64, 64, 64, 100, 0)
    (row,) = _sheets(writer, tmp_path)["unified_perf_summary"].to_dict("records")
    assert row["Kernel Time (µs)_sum"] == 0 and row["compute_roof_us"] > 0
    assert math.isnan(row["percent_of_roof"]) and math.isnan(row["TFLOPS/s_mean"])


def test_an_op_without_a_model_has_its_time_and_no_figures(tmp_path):
    writer = TraceWriter()
    writer.kernel("copy", 100, 10, op=writer.op("aten::cat", 90, 5))
    writer.kernel("lost", 200, 10)
    sheets = _sheets(writer, tmp_path)
    (row,) = sheets["unified_perf_summary"].to_dict("records")
    assert (row["name"], row["has_perf_model"], row["Kernel Time (µs)_sum"]) == ("aten::cat", False, 10)
    assert (
        math.isnan(row["GFLOPS"])
        and math.isnan(row["percent_of_roof"])
        and list(sheets) == ["unified_perf_summary"]
    )


def test_a_trace_without_ops_has_an_empty_summary(tmp_path):
    writer = TraceWriter()
    writer.kernel("lost", 200, 10)
    assert len(_sheets(writer, tmp_path)["unified_perf_summary"]) == 0
