"""rocprof-compute: every number of the file, and the roof that its kernels are under."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.load import format_of, load_capture
from lab.recordings.rocprof_compute import load_metrics

REAL = "captures/rocprof_compute_mi350_a.db.gz"


@pytest.fixture
def real(shared_data):
    if not (shared_data / REAL).exists():
        pytest.skip("no shared database of rocprof-compute")
    return shared_data / REAL


def test_the_real_file_has_the_golden_numbers_and_those_of_its_own_view(real, tmp_path):
    plain = tmp_path / "a.db"
    plain.write_bytes(gzip.decompress(real.read_bytes()))
    metrics = load_metrics(real)
    assert (metrics.version, metrics.schema) == ("3.5.0", "1.3.0")
    assert sum(one.dispatches for one in metrics.kernels) == 5
    assert sum(one.dur_ns for one in metrics.kernels) == 1_038_851
    assert (metrics.kernels[0].dispatches, metrics.kernels[0].dur_ns) == (2, 802_489)
    with closing(sqlite3.connect(plain)) as own:
        rows = own.execute(
            "SELECT kernel_name, metric_id, metric_name, IFNULL(unit, ''), value_name, value "
            "FROM compute_kernel_metric_view"
        ).fetchall()
    read = [
        (one["kernel"], one["metric_id"], one["name"], one["unit"], one["value_name"], one["value"])
        for one in metrics.value_rows()
    ]
    assert len(read) == 27_660 and sorted(map(repr, read)) == sorted(map(repr, rows))


def test_the_roof_is_intensity_times_the_measured_bandwidth(real):
    metrics = load_metrics(real)
    peaks = metrics.peaks["monte_carlo_pi MI350"]
    assert (round(peaks["HBMBw"], 1), round(peaks["MFMABF16Flops"])) == (4885.5, 1_127_592)
    row = metrics.rows()[2]
    assert row["gflop_per_s"] == pytest.approx(773.689, abs=1e-3)
    assert row["roof_hbm_gflop_per_s"] == pytest.approx(0.303277903 * 4885.545, rel=1e-6)
    # Two ways to the same share: rate under the roof, and bytes under the bandwidth.
    assert row["of_roof"] == pytest.approx(row["hbm_of_peak"], rel=1e-6) == pytest.approx(0.52217, abs=1e-5)
    assert metrics.rows()[3]["of_roof"] is None


def test_it_is_no_timeline_and_says_what_reads_it(real):
    assert format_of(real).name == "rocprof-compute" and "no timeline" in format_of(real).title
    with pytest.raises(BadDataError, match="no timeline") as caught:
        load_capture(real)
    assert "lab analyze" in caught.value.fix


def test_names_of_people_and_machines_are_not_read(real):
    assert "node0" not in repr(load_metrics(real)) and "rocm-examples" not in repr(load_metrics(real).machine)


def made(path, *more):
    with closing(sqlite3.connect(path)) as one:
        for statement in (
            "CREATE TABLE compute_dispatch (kernel_uuid INTEGER, start_timestamp INTEGER, "
            "end_timestamp INTEGER)",
            "CREATE TABLE compute_kernel (kernel_uuid INTEGER, workload_id INTEGER, kernel_name)",
            "CREATE TABLE compute_metadata (id)",
            "CREATE TABLE compute_workload (workload_id INTEGER, name, sub_name, roofline_bench_extdata)",
            "CREATE TABLE compute_metric_definition (metric_uuid INTEGER, name, metric_id, unit)",
            "CREATE TABLE compute_kernel_metric_value (kernel_uuid INTEGER, metric_uuid INTEGER, "
            "value_name, value)",
            "INSERT INTO compute_kernel VALUES (1, 1, 'k')",
            "INSERT INTO compute_dispatch VALUES (1, 100, 300), (2, 0, 50)",
            *more,
        ):
            one.execute(statement)
        one.commit()
    return path


def test_what_the_file_does_not_describe_is_named_not_guessed(tmp_path):
    metrics = load_metrics(
        made(
            tmp_path / "a.db",
            "INSERT INTO compute_kernel_metric_value VALUES "
            "(1, 9, 'Avg', 2.5), (1, 9, 'Max', 'high'), (1, 9, 'Min', 9e999)",
            "INSERT INTO compute_workload VALUES (1, 'w', NULL, '{\"HBMBw\": \"fast\"')",
        )
    )
    (kernel,) = metrics.kernels
    assert (kernel.dispatches, kernel.dur_ns) == (1, 200) and len(metrics.problems) == 1
    assert [(one.metric.name, one.name, one.value) for one in kernel.values] == [
        ("metric 9", "Avg", 2.5),
        ("metric 9", "Max", None),
        ("metric 9", "Min", None),
    ]
    assert metrics.rows()[0]["roof_hbm_gflop_per_s"] is None


def test_wrong_types_cut_files_and_other_databases_are_refused(tmp_path):
    path = made(tmp_path / "a.db", "INSERT INTO compute_dispatch VALUES (1, 'x', 1)")
    with pytest.raises(BadDataError, match="not integers"):
        load_metrics(path)
    path.write_bytes(path.read_bytes()[:9_000])
    with pytest.raises(BadDataError, match="truncated"):
        load_metrics(path)
    with closing(sqlite3.connect(tmp_path / "b.db")) as one:
        one.execute("CREATE TABLE songs (id)")
        one.commit()
    with pytest.raises(BadDataError, match="not an analysis database"):
        load_metrics(tmp_path / "b.db")
    with pytest.raises(MissingError):
        load_metrics(tmp_path / "none.db")
