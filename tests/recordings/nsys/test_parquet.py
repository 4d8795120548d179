"""An export to a folder of Parquet files reads like the one to SQLite, and an unfinished one is refused."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest

from lab.errors import BadDataError, StorageError
from lab.recordings.load import format_of, load_capture
from lab.recordings.nsys import parquet
from tests.recordings.sqlgen import Export, training_step

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def folder_of(export, path):
    """The tables of a made export as Parquet files, with all their columns."""
    path.mkdir()
    rows = export.rows | {"StringIds": [{"id": id, "value": text} for text, id in export.strings.items()]}
    for table, some in rows.items():
        columns = list(
            dict.fromkeys([*export.columns.get(table, ()), *(name for row in some for name in row)])
        )
        made = {name: [row.get(name) for row in some] for name in columns}
        pq.write_table(pa.table(made), path / f"{table}.parquet")
    return path


def assert_same(one, other):
    for name in ("ops", "api", "ranges", "sync"):
        mine, its = getattr(one, name), getattr(other, name)
        assert len(mine) == len(its) > -1
        for column in mine:
            texts = column in ("name_id", "text_id", "domain")
            a, b = getattr(mine, column), getattr(its, column)
            a, b = (one.text(a), other.text(b)) if texts else (a, b)
            assert np.array_equal(a, b), (name, column)
    assert (one.devices, one.version, one.schema) == (other.devices, other.version, other.schema)
    assert (one.processes, one.problems) == (other.processes, other.problems)


@pytest.mark.data
def test_the_folder_and_the_database_of_one_real_capture_are_equal_row_by_row(shared_data):
    home = shared_data / "captures" / "h200_decoder"
    if not home.exists():
        pytest.skip("the shared captures are not here")
    database = load_capture(home / "nsys_graph_nodes.sqlite.gz")
    folder = load_capture(home / "nsys_graph_nodes_parquetdir")
    assert len(folder.ops) == 211 and folder.ops.graph_node.max() > 0
    assert_same(folder, database)


def test_a_made_export_reads_the_same_from_both(tmp_path):
    export = training_step(Export())
    export.rows["NVTX_EVENTS"][-1]["end"] = None  # still open when the recording ended
    folder = load_capture(folder_of(export, tmp_path / "step"))
    assert folder.problems[-1:] == ["1 range still open at the end of the recording"]
    assert_same(folder, load_capture(export.write(tmp_path / "step.sqlite")))


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "StringIds"])
def test_an_export_without_its_last_tables_is_unfinished(tmp_path, table):
    folder = folder_of(training_step(Export()), tmp_path / "step")
    (folder / f"{table}.parquet").unlink()
    assert format_of(folder).name == "nsys"
    with pytest.raises(BadDataError, match=f"unfinished export: {table} missing"):
        load_capture(folder)


@pytest.mark.parametrize("keep", [0, 3, 200, -5])
def test_a_truncated_table_is_named(tmp_path, keep):
    folder = folder_of(training_step(Export()), tmp_path / "step")
    table = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table.write_bytes(table.read_bytes()[:keep])
    with pytest.raises(BadDataError, match="truncated, damaged or still being written") as caught:
        load_capture(folder)
    assert caught.value.location == str(table)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("a", "string"), (1.5, "double"), (2**64 - 1, "uint64"), (1e30, "double"), (b"\xff", "binary")],
)
def test_columns_of_wrong_types_and_values_are_an_error_not_numbers(tmp_path, value, kind):
    folder = folder_of(training_step(Export()), tmp_path / "step")
    path = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pq.read_table(path)
    wrong = pa.array([value] * len(table), kind)
    at = table.column_names.index("start")
    pq.write_table(table.set_column(at, "start", wrong), path)
    with pytest.raises(BadDataError, match="CUPTI_ACTIVITY_KIND_KERNEL has values that are not integers"):
        load_capture(folder)


def test_a_name_with_invalid_utf_8_is_read_with_a_replaced_character(tmp_path):
    folder = folder_of(training_step(Export()), tmp_path / "step")
    path = folder / "StringIds.parquet"
    table = pq.read_table(path)
    raw = pa.array([b"\xff" + value.as_py().encode() for value in table.column("value")])
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    pq.write_table(table.set_column(1, "value", text), path)
    assert all(
        text.startswith("\ufffd") for text in load_capture(folder).text(load_capture(folder).api.name_id)
    )


def test_an_export_older_than_its_report_says_so(tmp_path):
    folder = folder_of(training_step(Export()), tmp_path / "step_pqtdir")
    report = tmp_path / "step.nsys-rep"
    report.write_bytes(b"newer")
    os.utime(report, (2e9, 2e9))
    assert "step.nsys-rep is newer than this export of it: export it again" in load_capture(folder).problems


def test_a_full_disk_is_no_fault_of_the_export(tmp_path, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    folder = folder_of(training_step(Export()), tmp_path / "step")
    monkeypatch.setattr(parquet, "_copy", full)
    with pytest.raises(StorageError, match="no room for a copy"):
        load_capture(folder)
