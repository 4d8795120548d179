"""The reports of `nsys stats`, against those that nsys wrote."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import MissingError, UsageError
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from lab.rooms.nsys.captures.stats.reports import REPORTS, available, report
from lab.rooms.nsys.captures.stats.table import grouped, rounded
from tests.recordings.sqlgen import Export
from tests.tracegen import TraceWriter


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
