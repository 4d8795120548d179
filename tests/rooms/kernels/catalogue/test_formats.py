"""The kernels room on AMD's recordings: every launch of every process once, phases from what was marked."""

from __future__ import annotations

import csv

import pytest

from lab.errors import StepFailed
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.rank import read_ranks
from lab.rooms.kernels.catalogue.sources import home_of, trails_of
from lab.rooms.kernels.trails import Trail
from tests.recordings.rocpdgen import GUIDS, Process, two, write
from tests.recordings.sqlgen import Export
from tests.rooms.kernels.test_cli import run
from tests.simulator.faults import Lost, damaged
from tests.simulator.program import Op, Program, step
from tests.simulator.writers import FORMATS


def test_processes_of_one_file_are_ranks_and_equal_the_single_ones(tmp_path):
    one, other = two()
    together = read_catalogue([Trail(rank=0, trace=write(tmp_path / "both.db", one, other))])
    assert [rank.rank for rank in together.ranks] == [0, 1]
    assert [(launch.rank, launch.name) for launch in together.launches] == [(0, "first")] * 4 + [
        (1, "second")
    ] * 4
    alone = read_catalogue([Trail(rank=0, trace=write(tmp_path / "one.db", one))])
    mine = [launch for launch in together.launches if launch.rank == 0]
    assert [(a.ts_us, a.dur_us, a.sig_id) for a in mine] == [
        (a.ts_us, a.dur_us, a.sig_id) for a in alone.launches
    ]


def test_ranks_are_those_of_the_environment_where_they_tell_processes_apart(tmp_path):
    processes = [Process(guid, 9, environment={"RANK": rank}) for guid, rank in zip(GUIDS, "31", strict=True)]
    for process in processes:
        process.launch("k", (0, 5), (10, 20), 1)
    path = write(tmp_path / "a.db", *processes)
    assert [rank.rank for rank in read_ranks([Trail(rank=0, trace=path)])] == [3, 1]


def test_no_rank_is_given_twice_over_several_recordings(tmp_path):
    both = write(tmp_path / "a.db", *two())
    third = write(tmp_path / "b.db", two()[0])
    trails = [Trail(rank=0, trace=both), Trail(rank=1, trace=third)]
    assert [rank.rank for rank in read_ranks(trails)] == [0, 1, 2]


def marked():
    process = Process(GUIDS[0], 5)
    process.mark("train", (0, 1_000), 90)
    for number in range(2):
        at = 400 * number
        process.mark(f"forward #{number}", (at, at + 100), 91 + number)
        process.mark("attention", (at + 10, at + 50), 95 + number)
        process.mark(f"backward_{number}", (at + 100, at + 200), 93 + number)
        process.launch("fwd", (at + 20, at + 30), (at + 150, at + 160), 10 * number + 1)
        process.launch("bwd", (at + 120, at + 130), (at + 210, at + 220), 10 * number + 2)
    process.launch("after", (990, 995), (1_100, 1_200), 50)
    return process


def test_the_outermost_ranges_are_phases_by_launch_not_by_time_on_the_gpu(tmp_path):
    found = read_catalogue([Trail(rank=0, trace=write(tmp_path / "a.db", marked()))])
    phases = [(launch.name, launch.phase) for launch in found.launches]
    assert phases == [("fwd", "forward"), ("bwd", "backward")] * 2 + [("after", "")]
    assert found.signatures.forwards == {"forward": 2, "backward": 2}


def test_ranges_of_a_thread_that_launches_nothing_mark_no_phase(tmp_path):
    process = Process(GUIDS[0], 5)
    process.add("info_thread", id=6, pid=5, tid=1006)
    event = process.event("MARKER_CORE_RANGE_API", 70, "loader")
    process.add("region", pid=5, tid=6, start=0, end=500, name_id=process.string("x"), event_id=event)
    process.launch("k", (10, 20), (30, 40), 1)
    found = read_catalogue([Trail(rank=0, trace=write(tmp_path / "a.db", process))])
    assert [launch.phase for launch in found.launches] == [""]


def test_a_folder_of_one_job_is_a_source_and_the_output_goes_elsewhere(tmp_path):
    job = tmp_path / "job"
    for host, process in zip(("h0", "h1"), two(), strict=True):
        (job / host).mkdir(parents=True)
        write(job / host / "28_results.db", process)
    (trail,) = trails_of([job])
    assert trail.trace == job and len(read_ranks([trail])) == 2
    assert home_of([job]).name == "job_analysis" and home_of([tmp_path / "a.db.gz"]).name == "a_analysis"


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize("command", ["unique", "unique --launches", "gantt"])
def test_commands_write_their_files_elsewhere_and_tell_the_verdict(tmp_path, work, monkeypatch, command):
    path = write(tmp_path / "a.db", *two())
    done = run(f"kernels {command}", path, cwd=work, monkeypatch=monkeypatch)
    assert done.exception is None, done.output
    assert "8 launches" in done.output and "recording: complete" in done.output
    assert {one.name for one in tmp_path.iterdir()} == {"a.db", "work"}


@pytest.mark.parametrize("name", FORMATS)
def test_every_table_of_a_torn_recording_is_marked_whatever_its_format(tmp_path, work, monkeypatch, name):
    form = FORMATS[name]
    job = Program(tuple(step(number, Op(), Op((9_000, 2_000))) for number in range(3))).play(amd=form.amd)
    torn, _ = damaged(job, (Lost("rows", count=3),))
    path = form.write(torn, tmp_path / form.file)
    for command in ("kernels unique", "kernels unique --launches", "kernels gantt", "analyze"):
        out = tmp_path / command
        done = run(command, path, "-o", out, cwd=work, monkeypatch=monkeypatch)
        assert isinstance(done.exception, StepFailed) and done.exception.exit_code == 1, command
        assert "gpu lossy" in done.output
        tables = [one for one in out.rglob("*.csv") if one.name != "integrity.csv"]
        assert tables
        for table in tables:
            with table.open(newline="") as file:
                assert all("at least" in row["bound"] for row in csv.DictReader(file)), (command, table.name)


def test_names_from_the_file_reach_table_and_terminal_neutralised(tmp_path, work, monkeypatch):
    process = Process(GUIDS[0], 5)
    process.launch("=cmd|' /C calc'!A0", (0, 5), (10, 20), 1)
    process.launch("\x1b[31mred<script>", (20, 25), (30, 40), 2)
    done = run("kernels unique", write(tmp_path / "a.db", process), cwd=work, monkeypatch=monkeypatch)
    assert done.exception is None and "\x1b[31mred" not in done.output
    with (work / "experiments/a_analysis/tables/unique_kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and not any(row["name"].startswith("=") for row in rows)


def test_an_op_that_no_external_id_names_was_found_by_the_call(tmp_path):
    """nsys and AMD's tools record none: -1 on both sides is no agreement."""
    export = Export()
    export.range("aten::mm, seq = 7, op_id = 9", (1, 1), 0, 100)
    export.launch("k", (1, 1), (10, 20), (30, 40))
    found = read_catalogue([Trail(rank=0, trace=export.write(tmp_path / "a.sqlite"))])
    assert found.unique[["op", "op_rule"]].to_numpy().tolist() == [["aten::mm", "correlation"]]
