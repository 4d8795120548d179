"""`lab analyze` of a recording that no experiment of lab made: page, tables, summary, exit code."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from lab.cli.main import main
from lab.rooms.nsys.captures.analysis import analyse_recordings
from tests.recordings.sqlgen import PREFIX, Export, training_step
from tests.tracegen import TraceWriter
from tests.tracegen import training_step as traced_step

HOSTILE = "=cmd|'/C calc'!A0 \x1b[2J<script>alert(1)</script>"


def analyze(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["analyze", *map(str, arguments)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def rows(path):
    return list(csv.DictReader(path.open(newline="")))


@pytest.fixture
def trace(tmp_path):
    writer = TraceWriter()
    for number in range(3):
        traced_step(writer, number, 1000 + 50 * number)
    return writer.write(tmp_path / "trace.json")


def test_a_trace_gets_a_page_with_its_phases_kernels_chart_and_verdict(trace, tmp_path, capsys):
    out = tmp_path / "out"
    code, said, _ = analyze(capsys, trace, "-o", out)
    assert code == 0 and "costliest kernels" in said and str(out / "report.html") in said
    page = (out / "report.html").read_text()
    for title in ("Integrity", "Phases", "Kernel classes", "Costliest kernels", "Gantt"):
        assert f"<h2>{title}</h2>" in page
    assert "data-timeline" in page and "The recording is " in page
    kernels = rows(out / "tables" / "kernels.csv")
    assert sum(int(row["launches"]) for row in kernels) == 6
    chart = rows(out / "tables" / "gantt.csv")
    assert len(chart) == 9 and {row["op"] for row in chart} >= {"aten::mm"}, "copies are on the chart, too"
    assert sum(float(row["share_percent"]) for row in kernels) == pytest.approx(100)
    assert trace.parent.joinpath("trace.json").exists() and not (trace.parent / "report.html").exists()


def test_hostile_names_stay_text_on_page_csv_and_terminal(tmp_path, capsys):
    writer = TraceWriter()
    op = writer.op(HOSTILE, 0, 5)
    writer.kernel(HOSTILE, 10, 5, op=op)
    code, said, _ = analyze(capsys, writer.write(tmp_path / "t.json"), "-o", tmp_path / "out")
    assert code == 0 and "\x1b" not in said
    assert "<script>alert" not in (tmp_path / "out" / "report.html").read_text()
    for name in ("kernels", "gantt"):
        (row, *_) = rows(tmp_path / "out" / "tables" / f"{name}.csv")
        assert row["name"].startswith("'=cmd")


def test_a_lossy_recording_has_its_page_and_exit_code_1(tmp_path, capsys):
    writer = TraceWriter()
    for number in range(9):
        op = writer.op("aten::mm", 100 * number, 5)
        writer.kernel("gemm", 100 * number + 10, 5, op=op)
    writer.events = [one for one in writer.events if (one["cat"], one["ts"]) != ("kernel", 410)]
    path = writer.write(tmp_path / "t.json")
    code, said, error = analyze(capsys, path, "-o", tmp_path / "out")
    assert code == 1 and "lossy" in said and "1 of 9 launches" in error
    (lack,) = [row for row in rows(tmp_path / "out" / "tables" / "integrity.csv") if row["rule"] == "G"]
    assert (lack["place"], lack["missing"], lack["of"]) == ("hole", "1", "9")
    assert "at least" in (tmp_path / "out" / "report.html").read_text()
    for name in ("kernels", "processes"):
        assert [row["bound"] for row in rows(tmp_path / "out" / "tables" / f"{name}.csv")] == ["at least"]
    (gpu,) = rows(tmp_path / "out" / "tables" / "gpus.csv")
    assert gpu["bound"] == "busy at least, idle at most"
    (lack,) = json.loads(analyze(capsys, path, "-o", tmp_path / "again", "--json")[1])["incomplete"]
    assert "1 of 9 launches" in lack


def test_only_the_process_that_lost_rows_has_bounds(tmp_path, capsys):
    export = Export()
    for pid, missing in ((11, 4), (22, -1)):
        for number in range(9):
            at = 1000 * number
            export.launch("gemm", (pid, 1), (at, at + 20), (at + 30, at + 130), corr=number + 1)
            if number == missing:
                export.rows[f"{PREFIX}KERNEL"].pop()
    assert analyze(capsys, export.write(tmp_path / "two.sqlite"), "-o", tmp_path / "out")[0] == 1
    for name in ("kernels", "processes"):
        found = rows(tmp_path / "out" / "tables" / f"{name}.csv")
        assert [(row["process"], row["bound"]) for row in found] == [
            ("process 11", "at least"),
            ("process 22", ""),
        ]


def test_without_kernels_nothing_is_said_about_shares_or_idle_time(tmp_path, capsys):
    writer = TraceWriter()
    name = "Memcpy HtoD (Pageable -> Device)"
    writer.event("gpu_memcpy", name, 1, 2, args={"device": 0, "stream": 7}, pid=0, tid=7)
    code, said, error = analyze(capsys, writer.write(tmp_path / "t.json"), "-o", tmp_path / "out")
    assert code == 1 and "no kernels were recorded" in error
    assert "100.0%" not in said and "matrix products: 0.0%" not in said


@pytest.mark.parametrize(
    "text", ['{"traceEvents": []}', "{}", "[]", "", "not a recording", '{"traceEvents": [{']
)
def test_a_file_without_events_is_an_error_and_leaves_no_folder(tmp_path, capsys, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    code, said, error = analyze(capsys, path, "-o", tmp_path / "out")
    assert code in (4, 5) and said == "" and str(path) in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_an_export_without_stringids_says_that_names_are_unknown(tmp_path, capsys):
    path = training_step(Export()).write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE StringIds")
        database.commit()
    code, said, error = analyze(capsys, path, "-o", tmp_path / "out")
    assert code == 1 and "no StringIds: names of kernels" in error
    assert "matrix products: 0.0%" not in said


def test_a_folder_of_recordings_has_a_page_each_and_names_what_it_could_not_read(trace, tmp_path, capsys):
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(trace, folder / "a.json")
    training_step(Export()).write(folder / "b.sqlite")
    (folder / "settings.json").write_text('{"who": "me"}')
    (folder / "notes.txt").write_text("nothing")
    (folder / "cut.json").write_text('{"traceEvents": [{"ph": "X"')
    (folder / "empty.sqlite").touch()
    (folder / "step.pftrace.gz").write_bytes(b"\x1f\x8b")
    (folder / "trace_cut.json").write_text('{"schemaVersion": 1, "dev')  # before its first event
    code, said, error = analyze(capsys, folder, "-o", tmp_path / "out")
    assert code == 1 and "2 recordings of 6 analysed" in said
    assert all(name in error for name in ("cut.json", "empty.sqlite", "step.pftrace.gz", "trace_cut.json"))
    for name in ("a.json", "b.sqlite"):
        assert (tmp_path / "out" / name / "report.html").exists()
        assert f"{name}/report.html" in (tmp_path / "out" / "report.html").read_text()
    assert "settings.json" not in said + error and "notes.txt" not in said + error


def test_a_folder_in_which_no_recording_can_be_read_is_an_error(tmp_path, capsys):
    folder = tmp_path / "spoilt"
    folder.mkdir()
    for name in ("a.sqlite", "b.rpd"):
        (folder / name).touch()
    code, said, error = analyze(capsys, folder, "-o", tmp_path / "out")
    assert code == 5 and "the file is empty" in error and not said


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "kernels", "kernel_ns"),
    [
        ("rocpd_ck_batched_gemm_mi300x.db.gz", 151, 2_604_546),
        ("rocprofv3_aorta_mi350x_dispatch_1_20000.json.gz", 20_000, 2_876_374_360),
        ("matmul_small_schema2.rpd.gz", 29, 26_399_795),
        ("h200_decoder/nsys_graph_nodes_parquetdir", 187, None),
        ("h200_decoder/infer_eager.json.gz", 129, None),
    ],
)
def test_every_format_of_the_shared_recordings_gets_its_page(
    shared_data, tmp_path, capsys, name, kernels, kernel_ns
):
    path = shared_data / "captures" / name
    if not path.exists():
        pytest.skip("the shared captures are not here")
    code, _, error = analyze(capsys, path, "-o", tmp_path)
    assert code == 0, error
    found = rows(tmp_path / "tables" / "kernels.csv")
    assert sum(int(row["launches"]) for row in found) == kernels
    if kernel_ns:
        assert sum(float(row["kernel_ms"]) for row in found) * 1e6 == pytest.approx(kernel_ns, abs=0.5)


def test_what_a_recording_without_steps_cannot_say_is_absent_not_zero(tmp_path):
    """No step: no deviation, and the recording as a whole has no time on the host."""
    export = Export()
    export.launch("k", (1, 1), (10, 20), (30, 40))
    analyse_recordings(export.write(tmp_path / "a.sqlite"), tmp_path / "a", lambda _: None)
    (row,) = rows(tmp_path / "a" / "tables" / "phases.csv")
    assert (row["kernels"], row["instances_per_step"], row["kernel_sd_ms"], row["host_ms"]) == (
        "1",
        "",
        "",
        "",
    )
    assert "over the whole recording" in (tmp_path / "a" / "report.html").read_text()
    analyse_recordings(training_step(Export()).write(tmp_path / "b.sqlite"), tmp_path / "b", lambda _: None)
    first = rows(tmp_path / "b" / "tables" / "phases.csv")[0]
    assert float(first["host_ms"]) > 0 and first["kernel_sd_ms"] and first["instances_per_step"] == "1.0"
    assert "over all measured steps together" in (tmp_path / "b" / "report.html").read_text()
