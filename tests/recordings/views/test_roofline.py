"""The roofline of a recording: the work, rate and roof of every op, and what is not known of it."""

from __future__ import annotations

import numpy as np
import pytest

from lab.recordings.kineto import read_kineto
from lab.recordings.views import drawing_of, op_roofs, summary_of
from tests.perfmodel.truths import CASES, PRODUCT_RATES, ROOF_PERCENTS
from tests.tracegen import TraceWriter


@pytest.mark.data
@pytest.mark.parametrize(("name", "op", "tflops", "gflop_each"), PRODUCT_RATES)
def test_a_product_counts_once_over_all_its_kernels(shared_data, name, op, tflops, gflop_each):
    roofs = op_roofs(read_kineto(shared_data / CASES / f"{name}.json.gz"))
    assert roofs.op.tolist() == [op] and roofs.count.tolist() == [4]
    assert roofs.tflops[0] == pytest.approx(tflops, abs=0.05)
    assert roofs.gflop[0] == pytest.approx(gflop_each, abs=0.005)


@pytest.mark.data
@pytest.mark.parametrize(("name", "percent"), ROOF_PERCENTS)
def test_a_board_has_its_own_roof_or_none(shared_data, name, percent):
    roofs = op_roofs(read_kineto(shared_data / CASES / f"board_{name}.json.gz"))
    if percent is None:
        assert np.isnan(roofs.percent_of_roof[0]) and roofs.note[0] == "unknown board"
        assert any("no data sheet" in sentence for sentence in summary_of(roofs))
    else:
        assert roofs.percent_of_roof[0] == pytest.approx(percent, abs=0.3) and roofs.note[0] == ""


def _recording(tmp_path):
    writer = TraceWriter()
    return writer, lambda: read_kineto(writer.write(tmp_path / "t.json"))


def _op(writer, name, start_us, dims, kernels, dtype="c10::BFloat16"):
    op = writer.op(name, start_us, 10, **{"Input Dims": dims, "Input type": [dtype] * len(dims)})
    for offset, (kernel, dur_us) in enumerate(kernels):
        writer.kernel(kernel, start_us + 100 * (offset + 1), dur_us, op=op, call_us=start_us + 1)
    return op


def test_above_its_peak_is_a_finding_and_above_memory_names_the_cache(tmp_path):
    writer, read = _recording(tmp_path)
    _op(writer, "aten::mm", 0, [[4096, 4096], [4096, 4096]], [("nvjet_gemm", 100)])
    _op(writer, "aten::add", 1000, [[1 << 20], [1 << 20]], [("elementwise_kernel", 1)])
    roofs = op_roofs(read())
    assert roofs.note[0] == "139 % of the bf16 peak cannot be: the FLOPs, the board or the times are wrong"
    assert roofs.note[1] == "faster than memory: its data were in a cache"
    assert sum("cannot be" in sentence for sentence in summary_of(roofs)) == 1
    points, ceilings = drawing_of(roofs)
    assert set(points) == {"bf16", "fp32"} and ceilings["bf16 989.5 TFLOP/s"] == (989.5, 4.8)


def test_time_without_flops_is_named_and_adds_up(tmp_path):
    writer, read = _recording(tmp_path)
    _op(writer, "aten::mm", 0, [[512, 512], [512, 512]], [("nvjet_gemm", 60)])
    _op(writer, "mylib::secret", 1000, [[512]], [("secret_kernel", 30)])
    writer.kernel("graph_kernel", 2000, 10)
    roofs = op_roofs(read())
    assert dict(zip(roofs.op, roofs.time_percent, strict=True)) == pytest.approx(
        {"aten::mm": 60, "mylib::secret": 30, "(no op recorded)": 10}
    )
    assert roofs.note.tolist() == ["", "no FLOPs known for this op", "no op"]
    assert summary_of(roofs)[0].startswith(
        "FLOPs are known for 60.0 % of the GPU's time; without: mylib::sec"
    )


def test_attention_owns_what_it_launches_inside(tmp_path):
    writer, read = _recording(tmp_path)
    shape = [1, 8, 128, 64]
    outer = {"Input Dims": [shape] * 3, "Input type": ["c10::Half"] * 3}
    writer.op("aten::_scaled_dot_product_flash_attention", 0, 100, **outer)
    inner = writer.op("aten::_flash_attention_forward", 10, 50, **outer)
    writer.kernel("flash_fwd_kernel", 200, 10, op=inner, call_us=20)
    roofs = op_roofs(read())
    assert roofs.op.tolist() == ["aten::_scaled_dot_product_flash_attention"]
    assert roofs.gflop[0] == pytest.approx(2 * 8 * 128 * 128 * 128 / 1e9)
