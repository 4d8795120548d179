"""nsys' reports without nsys, row by row; the summary; `lab nsys` as a person calls it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import statistics

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lab.cli.main import main
from lab.errors import MissingError, UsageError
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from lab.rooms.nsys.captures.stats.reports import REPORTS, available, report
from lab.rooms.nsys.captures.stats.table import grouped, rounded
from lab.rooms.nsys.captures.summary import summarise
from lab.rooms.nsys.captures.summary_text import summary_text
from lab.rooms.nsys.cli import nsys as nsys_group
from tests.conftest import SHARED
from tests.recordings.sqlgen import Export, training_step
from tests.tracegen import TraceWriter


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return training_step(Export()).write(tmp_path_factory.mktemp("nsys") / "run.sqlite")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "transformer_2layer.sqlite"
    path.write_bytes(gzip.decompress((SHARED / "nsys_h200" / "transformer_2layer.sqlite.gz").read_bytes()))
    return path


def rows(made):
    return [dict(zip(made.header, row, strict=True)) for row in made.rows]


@pytest.mark.data
@pytest.mark.parametrize("name", list(REPORTS))
def test_a_report_is_the_one_that_nsys_wrote_to_the_byte(name, recorded, shared_data):
    theirs = (shared_data / "nsys_h200" / f"nsys_{name}.csv").read_text()
    assert report(name, project(load_capture(recorded), "nsys")).csv() == theirs


@pytest.mark.data
def test_full_attribution_gives_backward_its_kernels_in_the_same_report(recorded):
    made = rows(report("nvtx_gpu_proj_sum", project(load_capture(recorded))))
    backward = next(row for row in made if row["Range"] == ":backward")
    assert backward["Total GPU Ops"] == str(5 * 71)  # 64 kernels, 3 copies and 4 fills a step
    kernels = rows(report("nvtx_kern_sum", project(load_capture(recorded))))
    assert sum(int(row["Kern Inst"]) for row in kernels if row["NVTX Range"] == ":backward") == 5 * 64
    assert sum(int(row["Kern Inst"]) for row in kernels if row["NVTX Range"] == "") == 1


def test_api_names_lose_versions_of_four_digits_only(trained):
    export = Export()
    for i, name in enumerate(("cudaLaunchKernel_v7000", "cudaLaunchKernelExC_v11060", "cuGetProcAddress_v2")):
        export.call(name, (1, 1), (10 * i, 10 * i + 5))
    made = report("cuda_api_sum", project(load_capture(export.write(trained.parent / "api.sqlite")), "nsys"))
    assert [row["Name"] for row in rows(made)] == [
        "cuGetProcAddress_v2",
        "cudaLaunchKernel",
        "cudaLaunchKernelExC_v11060",
    ]


def test_the_throughput_of_a_copy_is_nsys_own_integer_division(trained):
    export = Export()
    export.copy((1, 1), (0, 5), (10, 13), size=1000)
    made = rows(report("cuda_gpu_trace", project(load_capture(export.write(trained.parent / "copy.sqlite")))))
    assert made[0]["Throughput (MB/s)"] == f"{1000 * 333_333_333 / 1e6:.3f}"


def test_reports_of_a_kineto_trace_have_the_same_headers(trained, tmp_path):
    trace = TraceWriter()
    trace.step(1, 0, 1000)
    trace.gemm(8, 8, 8, 10, 20)
    capture = load_capture(trace.write(tmp_path / "a.json"))
    projection, other = project(capture), project(load_capture(trained))
    both = [name for name in REPORTS if not available(capture)[name] and not available(other.capture)[name]]
    assert len(both) > 6
    for name in both:
        assert report(name, projection).header == report(name, other).header
        assert report(name, projection).rows


def test_an_unknown_report_lists_those_there_are_and_a_lacking_one_says_why(trained, tmp_path):
    projection = project(load_capture(trained))
    with pytest.raises(UsageError) as caught:
        report("gpu_gaps", projection)
    assert "nvtx_gpu_proj_sum" in caught.value.fix
    empty = project(load_capture(Export().write(tmp_path / "a.sqlite")))
    for name in REPORTS:
        with pytest.raises(MissingError, match="the capture has no"):
            report(name, empty)


VALUES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 3)), min_size=1, max_size=30)


@given(VALUES)
def test_grouped_figures_are_those_of_the_statistics_module(pairs):
    values, keys = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    groups = grouped(values, keys)
    for group, first in enumerate(groups.first.tolist()):
        mine = [value for value, key in pairs if key == keys[first]]
        assert (groups.total[group], groups.count[group]) == (sum(mine), len(mine))
        assert (groups.min[group], groups.max[group]) == (min(mine), max(mine))
        assert groups.med[group] == statistics.median(mine)
        assert groups.std[group] == pytest.approx(statistics.stdev(mine) if len(mine) > 1 else 0)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.25, 1, "0.3"), (0.35, 1, "0.3"), (-0.0, 1, "0.0"), (2.5, 0, "3"), (368947.55, 1, "368947.5")],
)
def test_exact_halves_go_up_as_in_sql(value, digits, text):
    assert rounded(value, digits).lstrip("-") == text


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
    assert f"{24e6 / 100e-6 / 1e12:9.1f}" in summary_text(found)


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
    text = summary_text(summarise(project(load_capture(export.write(tmp_path / "a.sqlite")))))
    assert "launches of the step differ between steps: 1, 2" in text
    assert "1-2" in text


def call(*arguments):
    return CliRunner().invoke(nsys_group, [str(one) for one in arguments], catch_exceptions=True)


def test_summary_writes_the_text_and_every_report(trained, tmp_path):
    done = call("summary", trained, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "ANALYSIS_SUMMARY.txt").read_text() in done.output
    made = {path.name for path in (tmp_path / "out" / "stats_reports").iterdir()}
    assert made == {f"run_{name}.csv" for name in REPORTS if not name.startswith("cuda_gpu_mem")}


def test_summary_as_json_is_all_that_stdout_holds(trained):
    done = json.loads(call("summary", trained, "--json").stdout)
    assert done["attribution"] == "full"
    assert done["phases"][1]["path"] == ["backward"]


def test_stats_prints_one_report_as_plain_csv(trained):
    done = call("stats", trained, "--report", "nvtx_kern_sum")
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert sum(int(row["Kern Inst"]) for row in found if row["NVTX Range"] == ":backward") == 3


def exit_code(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["nsys", *(str(one) for one in arguments)])
    return caught.value.code


def test_each_way_to_fail_has_its_exit_code(trained, tmp_path, capsys):
    (tmp_path / "empty.sqlite").write_bytes(b"")
    (tmp_path / "cut.sqlite").write_bytes(trained.read_bytes()[:5000])
    (tmp_path / "song.mp3").write_bytes(b"ID3")
    no_ranges = Export()
    no_ranges.launch("k", (1, 1), (0, 5), (10, 20))
    no_ranges.write(tmp_path / "no_ranges.sqlite")
    no_kernels = Export()
    no_kernels.range("forward", (1, 1), 0, 10)
    no_kernels.write(tmp_path / "no_kernels.sqlite")
    assert exit_code("summary", tmp_path / "none.sqlite") == 4
    for name in ("empty.sqlite", "cut.sqlite", "song.mp3"):
        assert exit_code("summary", tmp_path / name) == 5
    assert exit_code("summary", tmp_path / "no_kernels.sqlite") == 4
    assert "it has 1 range, 0 API calls" in capsys.readouterr().err
    assert exit_code("summary", tmp_path / "no_ranges.sqlite") == 4
    said = capsys.readouterr()
    assert "the whole capture" in said.out
    assert "no ranges" in said.err
    assert exit_code("stats", tmp_path / "no_kernels.sqlite") == 4
    assert exit_code("stats", trained, "--report", "nonsense") == 2
    assert exit_code("summary", trained, "--phase", "(") == 2
    assert exit_code("stats", trained, "--report", "all") == 4
    assert exit_code("stats", trained) == 0


def test_scrub_makes_a_copy_that_summary_reads_alike(trained, tmp_path):
    assert call("scrub", trained, tmp_path / "clean.sqlite").exit_code == 0
    before, after = (
        call("summary", path).stdout.splitlines()[1:] for path in (trained, tmp_path / "clean.sqlite")
    )
    assert before == after
