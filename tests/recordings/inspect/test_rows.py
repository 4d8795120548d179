"""Rows of `lab inspect`: every recording and every thing beside one, by its content."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from lab.errors import MissingError
from lab.recordings.inspect import inspect_all, rows_text
from lab.recordings.lacks import holes
from tests.recordings.sqlgen import Export, training_step
from tests.tracegen import TraceWriter


def trace(path, *, rank=0, steps=3, kernels=4, drop=()):
    """Kernels launched one by one in each step; `drop` counts kernels whose GPU row is missing."""
    writer = TraceWriter(rank=rank, world_size=4)
    number = 0
    for step in range(steps):
        writer.step(step, 1000 * step, 900)
        for index in range(kernels):
            at = 1000 * step + 100 + 50 * index
            op = writer.op("aten::mm", at - 6, 4)
            writer.kernel("k", at, 10, op=op)
            if number in drop:
                writer.events.pop()
            number += 1
    return writer.write(path)


def test_a_recording_has_its_tool_its_figures_its_processes_and_its_commands(tmp_path):
    (row,) = inspect_all([trace(tmp_path / "t.json.gz", rank=2)])
    judged = (row.format, row.tool, row.verdict, row.lacks, row.error)
    assert judged == ("kineto", "torch.profiler", "complete", [], None)
    assert (row.gpu_ops, row.gpu_time_ns) == (12, 120_000)
    assert row.processes == [{"index": 0, "pid": 4321, "rank": 2, "name": None}]
    assert row.commands[0] == f"lab analyze {tmp_path}/t.json.gz"
    assert f"lab kernels unique {tmp_path}/t.json.gz" in row.commands


def test_what_is_missing_is_in_the_row(tmp_path):
    (row,) = inspect_all([trace(tmp_path / "t.json", drop=(3, 7))])
    (lack,) = row.lacks
    assert (row.verdict, lack.axis, lack.place, lack.n, lack.of) == ("lossy", "gpu", "hole", 2, 12)
    assert "2 of 12 launches (16.7%) without a GPU row" in rows_text([row])


def test_metrics_without_a_timeline_are_named_and_not_judged(tmp_path):
    path = tmp_path / "metrics.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript("CREATE TABLE compute_dispatch(id); CREATE TABLE compute_metadata(id);")
    (row,) = inspect_all([path])
    assert (row.format, row.verdict, row.commands) == ("rocprof-compute", None, [])


def test_a_folder_names_what_it_knows_and_passes_over_the_rest(tmp_path):
    trace(tmp_path / "run" / "trace.json.gz")
    training_step(Export()).write(tmp_path / "a.sqlite")
    (tmp_path / "x.log").write_text("#nixnan: Initializing GPU context...\n")
    (tmp_path / "fr_rank0.pkl").write_bytes(
        b"\x80\x02}q\x00(X\x07\x00\x00\x00versionX\x09\x00\x00\x00pg_config"
    )
    (tmp_path / "fr.json").write_text('{"comm_lib_version": "2", "entries": []}')
    (tmp_path / "power.csv").write_text("timestamp,gpu,power_w\n1,0,9.5\n")
    (tmp_path / "details.json").write_text('[{"file": "a", "batch_size": 1, "mode": "FULL"}]')
    (tmp_path / "golden.json").write_text('{"answer": 42}')
    (tmp_path / "README.md").write_text("traceEvents")
    (tmp_path / ".hidden.json").write_text("{")
    found = {row.path.removeprefix(f"{tmp_path}/"): row for row in inspect_all([tmp_path])}
    assert {name: (row.format, row.verdict is None) for name, row in found.items()} == {
        "a.sqlite": ("nsys", False),
        "details.json": ("execution-details", True),
        "fr.json": ("flight-recorder", True),
        "fr_rank0.pkl": ("flight-recorder", True),
        "power.csv": ("power-log", True),
        "run/trace.json.gz": ("kineto", False),
        "x.log": ("nixnan-log", True),
    }


def test_a_folder_that_holds_anything_beside_a_recordings_parts_is_walked(tmp_path, monkeypatch):
    from lab.recordings.inspect import walk

    monkeypatch.setattr(walk, "format_of", lambda folder: None)  # whatever it is, it says it is one recording
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")
    assert walk.is_recording(tmp_path)
    (tmp_path / "t.json").write_text("{}")
    assert not walk.is_recording(tmp_path)
    (tmp_path / "t.json").unlink()
    (tmp_path / "below").mkdir()
    assert not walk.is_recording(tmp_path)


def test_what_cannot_be_read_is_a_row_with_its_reason(tmp_path):
    whole = trace(tmp_path / "whole.json").read_bytes()
    (tmp_path / "cut_trace.json").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.sqlite").write_bytes(b"")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(whole)[:200])
    rows = {row.path.rpartition("/")[2]: row for row in inspect_all([tmp_path])}
    assert set(rows) == {"whole.json", "cut_trace.json", "empty.sqlite", "cut.json.gz"}
    assert rows["whole.json"].error is None
    assert "truncated" in rows["cut_trace.json"].error and rows["cut_trace.json"].verdict == "unknown"
    assert "empty" in rows["empty.sqlite"].error
    assert "cut" in rows["cut.json.gz"].error or "gzip" in rows["cut.json.gz"].error


def test_a_named_file_that_is_nothing_is_a_row_and_a_path_that_is_not_there_an_error(tmp_path):
    (tmp_path / "song.mp3").write_bytes(b"ID3")
    (row,) = inspect_all([tmp_path / "song.mp3"])
    assert row.error is not None and row.error.startswith("not a recording")
    with pytest.raises(MissingError, match="no such file"):
        inspect_all([tmp_path / "none.json"])


def test_a_file_named_twice_is_one_row(tmp_path):
    path = trace(tmp_path / "t.json")
    assert len(inspect_all([path, tmp_path, path])) == 1


def test_a_name_cannot_command_the_terminal(tmp_path):
    text = rows_text(inspect_all([trace(tmp_path / "a\x1b[2J\n; x.json")]))
    assert "\x1b" not in text and "\n; x" not in text
    assert text.count("\n") == 4


def test_a_rank_that_stops_a_step_early_is_a_sign_and_no_proof(tmp_path):
    for rank in range(4):
        trace(tmp_path / f"rank{rank}" / "t.json", rank=rank, steps=2 if rank == 2 else 4)
    rows = inspect_all([tmp_path])
    assert [row.verdict for row in rows] == ["complete", "complete", "unknown", "complete"]
    (lack,) = rows[2].lacks
    assert (lack.rule, lack.place, lack.n, lack.of, lack.unknown) == ("S", "tail", 2, 4, True)


def test_ranks_with_unequal_work_in_equal_steps_are_complete(tmp_path):
    for rank in range(3):
        trace(tmp_path / f"rank{rank}" / "t.json", rank=rank, kernels=4 + rank)
    assert [row.verdict for row in inspect_all([tmp_path])] == ["complete"] * 3


def test_a_rank_that_lost_all_its_rows_is_lossy_by_itself(tmp_path):
    trace(tmp_path / "rank0" / "t.json", rank=0)
    trace(tmp_path / "rank1" / "t.json", rank=1, drop=range(12))
    rows = inspect_all([tmp_path])
    assert rows[0].verdict == "complete" and rows[1].verdict == "lossy"
    assert any(lack.rule == "S" and lack.share == 1.0 for lack in rows[1].lacks)


@pytest.mark.data
def test_a_replay_is_proven_by_the_capture_below_it_and_accused_by_it(shared_data, tmp_path):
    source = shared_data / "captures/graphs/sglang_decode"
    replay, *_ = source.glob("*.json.gz")
    rows = {row.path: row for row in inspect_all([source])}
    assert [lack.rule for lack in rows[str(replay)].lacks] == ["C", "C"]
    document = json.loads(gzip.decompress(replay.read_bytes()))
    events = document["traceEvents"]
    launch = next(one for one in events if one["name"] == "hipGraphLaunch")["args"]["correlation"]
    mine = [one for one in events if one["ph"] == "X" and one.get("args", {}).get("correlation") == launch]
    events.remove([one for one in mine if one["cat"] == "kernel"][200])
    (tmp_path / "replay.json").write_text(json.dumps(document))
    shutil.copytree(source / "capture_traces", tmp_path / "capture_traces")
    rows = {row.path: row for row in inspect_all([tmp_path])}
    lossy = [lack for lack in rows[f"{tmp_path}/replay.json"].lacks if lack.rule == "R"]
    assert [(lack.n, lack.of, lack.unknown) for lack in lossy] == [(1, 544, False)]


@pytest.mark.data
def test_planted_ranks_and_the_dumps_beside_them_are_no_false_alarm(shared_data):
    rows = inspect_all([shared_data / "ranks/planted/host_late", shared_data / "ranks/flight_recorder_nccl"])
    judged = [row for row in rows if row.verdict is not None]
    assert len(judged) == 8
    # Its operators were thinned by hand to those that own GPU rows: said, and no hole.
    assert {(one.axis, one.rule) for row in judged for one in row.lacks} == {("ops", "C")}
    assert not [one for row in judged for one in holes(row.lacks)]
    assert {row.format for row in rows if row.verdict is None} == {"flight-recorder"}
