"""The reports of `nsys stats`, against those that nsys wrote."""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lab.cli.main import main
from lab.errors import MissingError, UsageError
from lab.recordings.lacks import Lack
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from lab.rooms.nsys.captures.stats.reports import REPORTS, missing, report
from lab.rooms.nsys.captures.stats.sums import grouped, rounded
from lab.rooms.nsys.cli import nsys
from tests.recordings.sqlgen import PREFIX, START_END, Export, global_tid, training_step
from tests.tracegen import TraceWriter

# Reports of which no output of nsys itself is at hand; their columns are the documented ones.
WITHOUT_GOLDEN = {"osrt_sum"}


def rows(made):
    return [dict(zip(made.columns, row, strict=True)) for row in zip(*made.columns.values(), strict=True)]


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name in REPORTS if name not in WITHOUT_GOLDEN])
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


def test_calls_of_the_os_and_start_end_ranges_have_their_sums(trained):
    export = Export()
    for i, took in enumerate((10, 30)):
        row = {"start": 100 * i, "end": 100 * i + took, "globalTid": global_tid(7, 8)}
        export.add("OSRT_API", **row, eventClass=27, nameId=export.string("poll"), returnValue=0)
    export.range("copy", (7, 8), 0, 50, kind=START_END, end_at=(7, 9))
    export.range("push", (7, 8), 0, 70)
    export.call("cudaLaunchKernel_v7000", (7, 8), (5, 9))
    projection = project(load_capture(export.write(trained.parent / "os.sqlite")), "nsys")
    assert report("osrt_sum", projection).csv() == (
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "100.0,40,2,20.0,20.0,10,30,14.1,poll\n"
    )
    ranges = {row["Range"]: row["Style"] for row in rows(report("nvtx_sum", projection))}
    assert ranges == {":copy": "StartEnd", ":push": "PushPop"}
    assert [row["Range"] for row in rows(report("nvtx_pushpop_sum", projection))] == [":push"]
    assert "poll" not in report("cuda_api_sum", projection).csv(), "calls of the OS are none of CUDA"


def test_a_name_that_a_spreadsheet_would_run_is_text(trained):
    export = Export()
    export.launch('=HYPERLINK("x")', (1, 1), (0, 5), (10, 20))
    made = report("cuda_gpu_kern_sum", project(load_capture(export.write(trained.parent / "f.sqlite"))))
    assert list(csv.reader(io.StringIO(made.csv())))[1][-1] == '\'=HYPERLINK("x")'


def test_what_kineto_does_not_record_is_empty_and_not_minus_one(tmp_path):
    trace = TraceWriter()
    trace.gemm(8, 8, 8, 10, 20)
    made = rows(report("cuda_gpu_trace", project(load_capture(trace.write(tmp_path / "a.json")))))
    assert (made[0]["Ctx"], made[0]["GreenCtx"], made[0]["Reg/Trd"]) == ("", "", "")


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
    both = [name for name in REPORTS if not missing(name, capture) and not missing(name, other.capture)]
    assert len(both) > 6
    for name in both:
        assert list(report(name, projection).columns) == list(report(name, other).columns)
        assert rows(report(name, projection))


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
    groups = grouped(keys)
    by_name, total = groups.figures(values).by_name, groups.figures(values).total
    for group, row in enumerate(groups.first_row.tolist()):
        mine = [value for value, key in pairs if key == keys[row]]
        figures = {name: of_groups[group] for name, of_groups in by_name.items()}
        assert (total[group], figures["count"]) == (sum(mine), len(mine))
        assert (figures["min"], figures["max"]) == (min(mine), max(mine))
        assert figures["median"] == statistics.median(mine)
        assert len(mine) == 1 or figures["std"] == pytest.approx(statistics.stdev(mine))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.25, 1, "0.3"), (0.35, 1, "0.3"), (-0.0, 1, "0.0"), (2.5, 0, "3"), (368947.55, 1, "368947.5")],
)
def test_exact_halves_go_up_as_in_sql(value, digits, text):
    assert rounded(value, digits).lstrip("-") == text


AXES_OF = {
    "cuda_gpu_kern_sum": "gpu",
    "cuda_api_sum": "host",
    "nvtx_sum": "ops",
    "nvtx_kern_sum": "gpu host ops",
}


@pytest.mark.parametrize("axis", ["gpu", "host", "ops"])
def test_reports_that_rest_on_lost_rows_have_a_column_bound_and_others_are_nsys_own(trained, axis):
    projection = project(load_capture(trained), "nsys")
    lost = Lack(axis, "tail", "G", 0, 1, 10, 0.1, "lost")
    torn = replace(projection, capture=replace(projection.capture, lacks=(lost,)))
    for name, axes in AXES_OF.items():
        whole, found = report(name, projection), report(name, torn)
        assert "Bound" not in whole.columns
        if axis in axes:
            assert rows(found) == [{**row, "Bound": "at least"} for row in rows(whole)]
        else:
            assert found.csv() == whole.csv()


def test_a_hole_ends_with_1_though_some_reports_have_no_data(tmp_path, capsys):
    export = training_step(Export())
    kernels = export.rows[f"{PREFIX}KERNEL"]
    del kernels[5:9]
    path = export.write(tmp_path / "a.sqlite")
    for command in (["stats", path, "-r", "all"], ["summary", path]):
        with pytest.raises(SystemExit) as ended:
            main(["nsys", *map(str, command)])
        said = capsys.readouterr()
        assert ended.value.code == 1 and "the recording is incomplete" in said.err
    main_code = CliRunner().invoke(nsys, ["stats", str(path), "-r", "all"])
    assert "not written: osrt_sum: the capture has no calls of the OS runtime" in main_code.stderr


def test_a_report_without_data_does_not_keep_the_later_ones_from_being_printed(trained):
    done = CliRunner().invoke(nsys, ["stats", str(trained), "-r", "osrt_sum,cuda_gpu_kern_sum"])
    assert "# cuda_gpu_kern_sum\n" in done.stdout and isinstance(done.exception, MissingError)
