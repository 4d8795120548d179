"""Recordings with known work, boards and classes: one figure in every command that prints it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lab.perfmodel.boards import board_of
from lab.recordings.kineto import read_kineto
from lab.recordings.names import kernel_class
from lab.rooms.kernels.analyze import frame_of, shares
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.products import products
from lab.rooms.kernels.catalogue.sources import trails_of
from lab.rooms.sweep.gemm.sheets.launches import launches
from lab.rooms.sweep.gemm.sheets.perf_model import perf_model_sheets

pytestmark = pytest.mark.data
CASES = "cases/recordings"


def unified(path: Path) -> pd.DataFrame:
    return pd.DataFrame(perf_model_sheets(launches(read_kineto(path)))["unified_perf_summary"].as_dict())


@pytest.mark.parametrize(
    ("name", "op", "tflops", "gflop_each"),
    [("flops_split_k", "aten::mm", 477.2, 8.59), ("flops_two_kernels", "aten::bmm", 214.7, 25.77)],
)
def test_a_products_rate_is_one_number_over_all_its_kernels(
    shared_data, tmp_path, name, op, tflops, gflop_each
):
    path = shared_data / CASES / f"{name}.json.gz"
    (row,) = unified(path).query("name == @op").to_dict("records")
    assert row["TFLOPS/s_mean"] == pytest.approx(tflops, abs=0.05)
    (product,) = products(read_catalogue(trails_of([path])), None).to_dict("records")
    assert product["rate_tflops"] == pytest.approx(tflops, abs=0.05)
    assert (product["count"], product["flop"] / 1e9) == (4, pytest.approx(gflop_each, abs=0.005))
    analyze = [sys.executable, "-m", "lab", "analyze", "-o", tmp_path, path]
    assert f"{tflops:.1f}\n" in subprocess.run(analyze, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("h100_sxm", 60.4),
        ("h100_fp32", 73.4),
        ("h100_tf32", 69.5),
        ("gtx1080ti_fp16", 76.0),
        ("h100_nvl", 65.8),
        ("gb200", 61.1),
        ("mi250x_one_gcd", 71.8),
        ("quadro_p1000", None),  # the recording's P1000 has 4 of 5 multiprocessors
        ("t400", 66.1),
    ],
)
def test_the_share_of_the_roof_is_that_of_the_board_itself(shared_data, name, percent):
    path = shared_data / CASES / f"board_{name}.json.gz"
    (row,) = unified(path).to_dict("records")
    catalogue = read_catalogue(trails_of([path]))
    board = board_of(catalogue.signatures.gpu, catalogue.signatures.num_sms)
    (product,) = products(catalogue, board).to_dict("records")
    expected = pytest.approx(float("nan") if percent is None else percent, abs=0.3, nan_ok=True)
    assert [row["percent_of_roof"], product["of_ceiling_percent"]] == [expected, expected]


@pytest.mark.parametrize(
    ("name", "class_", "percent"),
    [
        ("classes_cuda", "attention", 100 / 3),
        ("classes_rocm", "gemm", 200 / 3),
        ("classes_rocm", "attention", 100 / 3),
    ],
)
def test_classes_follow_what_a_kernel_does(shared_data, name, class_, percent):
    path = shared_data / CASES / f"{name}.json.gz"
    table = shares(frame_of(read_catalogue(trails_of([path]))), "class").set_index("class")
    assert table.loc[class_, "share_percent"] == pytest.approx(percent)
    trace = read_kineto(path)
    same = trace.ops.dur_ns[[kernel_class(text) == class_ for text in trace.text(trace.ops.name_id)]]
    assert 100 * same.sum() / trace.ops.dur_ns.sum() == pytest.approx(percent)
