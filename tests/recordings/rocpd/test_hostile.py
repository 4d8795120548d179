"""Databases that are cut, damaged, or made to do harm."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from lab.errors import BadDataError
from lab.recordings.load import load_capture
from tests.recordings.rocpdgen import GUIDS, Process, two, write


def change(path, *statements):
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA writable_schema = 1")
        for one in statements:
            made.execute(one)
        made.commit()
    return path


def dispatches():
    return f"rocpd_kernel_dispatch_{GUIDS[0].replace('-', '_')}"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_cut_database_is_refused_wherever_it_was_cut(tmp_path, share):
    path = write(tmp_path / "a.db", *two())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BadDataError, match="truncated"):
        load_capture(path)


@pytest.mark.parametrize(
    "view",
    [
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "SELECT load_extension('/tmp/evil.so')",
    ],
)
def test_views_of_the_file_never_run(tmp_path, view):
    path = write(tmp_path / "a.db", two()[0])
    change(path, "DROP VIEW rocpd_kernel_dispatch", "DROP VIEW rocpd_string")
    change(path, f"CREATE VIEW rocpd_kernel_dispatch AS {view}", f"CREATE VIEW rocpd_string AS {view}")
    assert len(load_capture(path).ops) == 4


@pytest.mark.parametrize("value", ["'soon'", "1e30", "1.5", "x'00'", "-5", str(2**62 + 1)])
@pytest.mark.parametrize("column", ["start", "end"])
def test_a_time_that_is_none_is_an_error_with_the_file(tmp_path, column, value):
    path = change(write(tmp_path / "a.db", two()[0]), f'UPDATE "{dispatches()}" SET "{column}" = {value}')
    if column == "end" and value == "-5":
        assert any("0 ns long" in one for one in load_capture(path).problems)
        return
    with pytest.raises(BadDataError) as caught:
        load_capture(path)
    assert caught.value.location == str(path)


def test_numbers_too_large_for_a_column_read_as_not_recorded(tmp_path):
    process = Process(GUIDS[0], 5)
    process.launch("k", (0, 5), (10, 20), 1, grid_size_x=2**40, workgroup_size_x=1, grid_size_y="wide")
    ops = load_capture(write(tmp_path / "a.db", process)).ops
    assert (ops.grid_x[0], ops.grid_y[0]) == (-1, -1)


def test_a_missing_column_names_the_table(tmp_path):
    path = change(
        write(tmp_path / "a.db", two()[0]), f'ALTER TABLE "{dispatches()}" RENAME COLUMN start TO begin'
    )
    with pytest.raises(BadDataError, match="has no column start"):
        load_capture(path)


def test_names_are_data_whatever_they_hold(tmp_path):
    names = [
        "<script>alert(1)</script>",
        "=cmd|' /C calc'!A0",
        "\x1b[31mred\x1b[0m",
        "a" * 200_000,
        "']); DROP",
    ]
    process = Process(GUIDS[0], 5)
    for index, name in enumerate(names):
        process.launch(name, (20 * index, 20 * index + 5), (20 * index + 6, 20 * index + 9), index + 1)
    capture = load_capture(write(tmp_path / "a.db", process))
    read = capture.text(capture.ops.name_id).tolist()
    assert read[:3] == names[:3] and len(read[3]) == 65_536 and read[4] == names[4]


@pytest.mark.parametrize("text", ["{", "[1]", '{"message": 3}', "null", '{"message": ' + "[" * 100_000])
def test_a_marker_without_a_readable_text_keeps_the_name_of_its_call(tmp_path, text):
    process = Process(GUIDS[0], 5)
    process.mark("x", (0, 10), 1)
    process.rows["event"][0]["extdata"] = text
    capture = load_capture(write(tmp_path / "a.db", process))
    assert capture.text(capture.ranges.name_id).tolist() == ["roctxThreadRangeA"]


def test_environments_that_are_no_objects_give_no_rank(tmp_path):
    process = Process(GUIDS[0], 5)
    for text in ("[]", "{", '{"RANK": "x"}', '{"RANK": 99999999999999}'):
        process.rows["info_process"][0]["environment"] = text
        (tmp_path / "a.db").unlink(missing_ok=True)
        assert load_capture(write(tmp_path / "a.db", process)).processes[0].rank is None


def test_a_database_without_rows_is_empty_not_broken(tmp_path):
    capture = load_capture(write(tmp_path / "a.db", Process(GUIDS[0], 5)))
    assert len(capture.ops) == len(capture.api) == len(capture.ranges) == 0


def test_a_schema_that_is_no_text_is_an_error_with_the_file(tmp_path):
    path = write(tmp_path / "a.db", two()[0])
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE T\xf5BLE", 1))
    with pytest.raises(BadDataError, match="SQLite cannot read it") as caught:
        load_capture(path)
    assert caught.value.location == str(path)
