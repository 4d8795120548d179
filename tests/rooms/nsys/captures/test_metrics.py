"""`lab analyze` of rocprof-compute's database: costliest kernels, the roof, and that it is no timeline."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing

import pytest

from lab.errors import BadDataError
from lab.rooms.nsys.captures.analysis import analyse_recordings, recordings_in
from lab.rooms.nsys.captures.metrics import NO_TIMELINE, write_metrics
from tests.recordings.rocprof_compute.test_metrics import made

REAL = "captures/rocprof_compute_mi350_a.db.gz"


def test_the_shared_database_gets_its_kernels_roof_and_every_number(shared_data, tmp_path):
    if not (shared_data / REAL).exists():
        pytest.skip("no shared database of rocprof-compute")
    found = analyse_recordings(shared_data / REAL, tmp_path, print)
    assert found.verdict[0] == NO_TIMELINE and found.incomplete == [NO_TIMELINE] and found.status == "warn"
    assert "8.2 GFLOP/s, 20.2% of the 40.3 GFLOP/s" in found.verdict[2]
    with (tmp_path / "tables" / "kernel_metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["dur_us"]) for row in rows] == [802.489, 227.562, 5.76, 3.04]
    with (tmp_path / "tables" / "metric_values.csv").open() as file:
        assert sum(1 for _ in file) == 27_660 + 1
    assert "no timeline" in (tmp_path / "report.html").read_text()


def test_it_counts_among_the_recordings_of_a_folder(tmp_path):
    (tmp_path / "in").mkdir()
    path = made(tmp_path / "in" / "a.db")
    assert recordings_in(tmp_path / "in") == [path]
    found = analyse_recordings(tmp_path / "in", tmp_path / "out", print)
    assert found.verdict == ["1 recording of 1 analysed."] and (tmp_path / "out/a.db/report.html").exists()


def test_names_reach_page_table_and_terminal_harmlessly(tmp_path):
    name = "'<script>alert(1)</script>\x1b[31m'"
    written, text = write_metrics(
        made(tmp_path / "a.db", f"UPDATE compute_kernel SET kernel_name = {name}"), tmp_path
    )
    assert "\x1b" not in text and "<script>alert" not in written.files[0].read_text()


def test_a_database_without_kernels_is_an_error_and_writes_nothing(tmp_path):
    path = made(tmp_path / "a.db", "DELETE FROM compute_kernel")
    with closing(sqlite3.connect(path)), pytest.raises(BadDataError, match="no kernels"):
        write_metrics(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
