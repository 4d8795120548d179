"""The summary of a capture."""

from __future__ import annotations

import pytest

from lab.recordings.load import load_capture
from lab.recordings.projection import project
from lab.rooms.nsys.captures.summary import summarise
from lab.rooms.nsys.captures.summary_text import summaries_text
from tests.recordings.sqlgen import Export, training_step
from tests.recordings.test_cases import TRUTH, capture_of
from tests.tracegen import TraceWriter


def test_the_summary_tells_phases_launches_classes_and_rules_of_the_measured_steps(trained):
    found = summarise(project(load_capture(trained)))
    by_path = {phase.path: phase for phase in found.phases}
    assert found.steps == ("step_0", "step_1")
    assert by_path[()].kernels == (8,)
    assert by_path["backward",].kernels == (5,)
    assert by_path["backward",].kernel_ms == pytest.approx(410e-6)
    assert by_path["backward",].share == pytest.approx(410 / 660)
    assert by_path["forward",].busy_ms == pytest.approx(200e-6)
    assert by_path["forward",].span_ms == pytest.approx(300e-6)
    assert by_path["forward",].host_ms == pytest.approx(900e-6)
    first = found.classes[0]
    assert (first.name, first.kernels, first.per_step) == ("gemm", 12, 6)
    assert found.matmul_share == pytest.approx(600 / 660)
    assert found.rules["cross"][0] == 12
    assert found.left_out[0] == 8


def test_kernels_that_overlap_are_busy_once_and_count_twice(tmp_path):
    export = Export()
    export.range("step_0", (1, 1), 0, 1000)
    export.launch("a", (1, 1), (10, 20), (100, 200))
    export.launch("b", (1, 1), (30, 40), (150, 250))
    export.launch("c", (1, 1), (50, 60), (300, 400))
    found = summarise(project(load_capture(export.write(tmp_path / "a.sqlite"))))
    assert found.phases[0].kernel_ms == pytest.approx(300e-6)
    assert found.phases[0].busy_ms == pytest.approx(250e-6)
    assert (found.gpus[0].busy_ms, found.gpus[0].idle_ms) == (pytest.approx(250e-6), pytest.approx(50e-6))


def test_matrix_products_of_recorded_shapes_give_work_and_rate(tmp_path):
    trace = TraceWriter()
    for step in range(2):
        trace.event("user_annotation", f"step_{step}", 1000 * step, 900)
        trace.event("user_annotation", "forward", 1000 * step + 5, 800)
        trace.gemm(100, 200, 300, 1000 * step + 50, 40)
        trace.gemm(100, 200, 300, 1000 * step + 250, 60)
    found = summarise(project(load_capture(trace.write(tmp_path / "a.json"))))
    forward = next(phase for phase in found.phases if phase.path == ("forward",))
    assert forward.gemm_tflop == pytest.approx(2 * 2 * 100 * 200 * 300 / 1e12)
    assert forward.gemm_ms == pytest.approx(0.1)
    assert f"{24e6 / 100e-6 / 1e12:9.1f}" in summaries_text([found])


def test_a_range_inside_backward_is_found_by_its_path_and_operators_are_not_phases(tmp_path):
    export = training_step(Export(), op_ranges=True)
    export.range("my_hook", (1, 2), 22_140, 24_950)
    found = summarise(project(load_capture(export.write(tmp_path / "a.sqlite"))))
    assert {phase.path for phase in found.phases} == {
        (),
        ("forward",),
        ("backward",),
        ("backward", "my_hook"),
        ("optimizer_step",),
    }


def test_launches_that_differ_between_steps_are_listed(tmp_path):
    export = Export()
    for step in range(2):
        export.range(f"step_{step}", (1, 1), 1000 * step, 1000 * step + 900)
        for i in range(step + 1):
            export.launch("k", (1, 1), (1000 * step + 10 + 10 * i, 1000 * step + 15 + 10 * i), (0, 10))
    text = summaries_text([summarise(project(load_capture(export.write(tmp_path / "a.sqlite"))))])
    assert "launches of the step differ between steps: 1, 2" in text
    assert "1-2" in text


@pytest.mark.data
@pytest.mark.parametrize("name", TRUTH.get("idle", ["none"]))
def test_busy_and_idle_cover_the_whole_gpu(name):
    truth = TRUTH["idle"][name]
    summary = summarise(project(capture_of(name)))
    assert summary.gpus[0].busy_ms == pytest.approx(truth["busy_ms"], abs=1e-6)
    assert summary.gpus[0].idle_ms == pytest.approx(truth["idle_ms"], abs=1e-6)
