"""`lab export`: other tools' formats hold what the run holds, and what is missing ends with exit code 1."""

from __future__ import annotations

import gzip
import itertools
import json
import zipfile

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import MissingError, StepFailed
from lab.serve.export import export_run
from lab.serve.walk import group_of, recordings_below
from tests.conftest import SHARED
from tests.recordings.merge.made import read
from tests.serve.made import write_run
from tests.tracegen import BASE_NS, TraceWriter

OVERLAPPING = SHARED / "cases/compare/export/overlapping.json.gz"


def a_trace(rank: int = 0, world_size: int = 1) -> TraceWriter:
    """Two GEMMs and an all-reduce of 1,024 floats; the second GEMM on the first one's stream."""
    trace = TraceWriter(rank=rank, world_size=world_size)
    trace.gemm(64, 64, 32, 100, 10)
    trace.gemm(64, 64, 32, 120.5, 10.25)
    trace.all_reduce(1024, 140, 30)
    return trace


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "runs", "sweep_a", cells={"note": "=cmd()"})
    for rank in range(2):
        (folder / "256thread/torch_profiler" / f"rank{rank}").mkdir(parents=True)
        path = folder / "256thread/torch_profiler" / f"rank{rank}" / "trace.json"
        a_trace(rank, world_size=2).write(path)
    return folder


def test_perfetto_holds_every_kernel_of_every_rank(run, tmp_path):
    (path,), notes = export_run(run, "perfetto", tmp_path / "out")
    kernels = [event["dur"] for event in read(path)["traceEvents"] if event.get("cat") == "kernel"]
    assert len(kernels) == 6 and not notes
    assert sorted(set(kernels)) == [10, 10.25, 30]


def test_a_workbook_has_a_sheet_per_table_and_runs_no_formula(run, tmp_path):
    (path,), notes = export_run(run, "xlsx", tmp_path / "out")
    with zipfile.ZipFile(path) as book:
        names = book.read("xl/workbook.xml").decode()
        text = "".join(book.read(name).decode() for name in book.namelist() if "sheet" in name)
    assert all(f'name="{name}"' in names for name in ("findings", "steps", "configs")) and not notes
    assert "=cmd()" in text and "<f>" not in text


@pytest.mark.skipif(not OVERLAPPING.exists(), reason="the shared cases are not here")
def test_kernels_that_overlap_on_a_stream_get_tracks_of_their_own(tmp_path):
    (path,), _ = export_run(OVERLAPPING, "perfetto", tmp_path)
    events, recorded = (
        json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] for file in (path, OVERLAPPING)
    )
    tracks: dict[tuple, list] = {}
    for event in events:
        if event.get("cat") == "kernel":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(tracks) == 2
    for track in tracks.values():
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in track)
        assert all(end <= later + 1e-6 for (_, end), (later, _) in itertools.pairwise(spans))
    durations = [sorted(e["dur"] for e in side if e.get("cat") == "kernel") for side in (events, recorded)]
    assert durations[0] == durations[1]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert "stream 7" in names and "stream 7, overlapping 1" in names


def test_a_recording_is_a_workbook_too(tmp_path):
    a_trace().write(tmp_path / "trace.json")
    (path,), notes = export_run(tmp_path / "trace.json", "xlsx", tmp_path / "out")
    with zipfile.ZipFile(path) as book:
        names = book.read("xl/workbook.xml").decode()
        text = "".join(book.read(name).decode() for name in book.namelist() if name.endswith(".xml"))
    assert 'name="ops"' in names and "nvjet_gemm" in text and "start_ns" in text and not notes


def test_parquet_holds_tables_and_recordings_with_texts(run, tmp_path):
    written, _ = export_run(run, "parquet", tmp_path / "out")
    by_name = {path.name: pyarrow.parquet.read_table(path) for path in written}
    assert by_name["configs.parquet"].column("step_ms").to_pylist() == [10.0]
    ops = by_name["256thread_rank1_trace_ops.parquet"]
    assert ops.column("name").to_pylist()[:2] == ["nvjet_gemm"] * 2 and len(ops) == 3
    starts = [BASE_NS + 100_000, BASE_NS + 120_500, BASE_NS + 140_000]
    assert sorted(ops.column("start_ns").to_pylist()) == starts
    dims = by_name["256thread_rank0_trace_ranges.parquet"].column("dims").to_pylist()
    assert (
        "[[64, 32], [32, 64]]" in {str(one).replace(",", ", ").replace(",  ", ", ") for one in dims}
        and None in dims
    )


def test_what_is_missing_from_an_export_is_named_and_ends_with_1(run, tmp_path):
    (run / "256thread/torch_profiler/rank1/trace.json").write_text('{"traceEvents": [')
    for form in ("perfetto", "parquet"):
        done = CliRunner().invoke(cli, ["export", str(run), "--to", form, "-o", str(tmp_path / form)])
        assert isinstance(done.exception, StepFailed), form
        assert "left out:" in done.exception.problem and done.stdout.strip(), "the other rank is written"
    (run / "256thread/torch_profiler/rank1/trace.json").unlink()
    _, notes = export_run(run, "perfetto", tmp_path / "out")
    assert notes == ["no recording of 256thread: rank 1"]


def test_execution_traces_beside_the_recordings_are_no_holes_in_an_export(run, tmp_path):
    trace = '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}'
    (run / "256thread/torch_profiler/rank0/execution_trace_rank0.json").write_text(trace)
    _, notes = export_run(run, "perfetto", tmp_path / "out")
    assert notes == []


def test_a_format_that_lab_does_not_write_is_a_usage_error_with_those_it_does(run):
    done = CliRunner().invoke(cli, ["export", str(run), "--to", "chakra"])
    assert done.exit_code == 2
    for form in ("perfetto", "xlsx", "parquet"):
        assert form in done.output


def test_nothing_to_export_is_an_error(tmp_path):
    empty = write_run(tmp_path, "nan_b")
    with pytest.raises(MissingError, match="no recording in this run"):
        export_run(empty, "perfetto", tmp_path / "out")
    with pytest.raises(MissingError, match="no such run"):
        export_run(tmp_path / "absent", "xlsx", tmp_path / "out")


def test_ranks_of_a_step_belong_together():
    assert (
        group_of("256thread/nccl_28channels/torch_profiler/rank0/trace.json") == "256thread/nccl_28channels"
    )
    assert group_of("steps/forward/trace.json") == "steps/forward" and group_of("trace.json") == "."


def test_links_are_not_followed(run, tmp_path):
    (run / "trace.json").symlink_to(a_trace().write(tmp_path / "elsewhere.json"))
    assert list(recordings_below(run)) == ["256thread"]
