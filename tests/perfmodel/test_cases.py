"""Recordings with known work and classes, by `lab analyze` and by kernels' names."""

from __future__ import annotations

import pytest

from lab.recordings.kineto import read_kineto
from lab.recordings.names import kernel_class
from tests.command import lab
from tests.perfmodel.truths import CASES, CLASS_PERCENTS, PRODUCT_RATES

pytestmark = pytest.mark.data


@pytest.mark.parametrize(("name", "op", "tflops", "gflop_each"), PRODUCT_RATES)
def test_analyze_prints_a_products_rate_over_all_its_kernels(
    shared_data, tmp_path, name, op, tflops, gflop_each
):
    path = shared_data / CASES / f"{name}.json.gz"
    done = lab("analyze", "-o", tmp_path, path)
    assert done.returncode == 0 and f"{tflops:.1f}\n" in done.stdout


def test_a_sum_that_leaves_out_products_without_shapes_is_at_least_that(shared_data, tmp_path):
    path = shared_data / CASES / "flops_half_without_shapes.json.gz"
    shown = lab("analyze", "-o", tmp_path, path).stdout
    assert "≥ 0.55" in shown and "TFLOP counts 0.800 of 1.600 ms" in shown


@pytest.mark.parametrize(("name", "class_", "percent"), CLASS_PERCENTS)
def test_classes_follow_what_a_kernel_does(shared_data, name, class_, percent):
    trace = read_kineto(shared_data / CASES / f"{name}.json.gz")
    same = trace.ops.dur_ns[[kernel_class(text) == class_ for text in trace.text(trace.ops.name_id)]]
    assert 100 * same.sum() / trace.ops.dur_ns.sum() == pytest.approx(percent)
