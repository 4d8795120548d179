"""Exports that are truncated, damaged, foreign or of another version."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from lab.errors import BadDataError
from lab.recordings.load import load_capture
from tests.recordings.nsys.test_scrub import with_secrets
from tests.recordings.sqlgen import PREFIX, Export, training_step


def test_an_older_export_without_textId_and_graph_columns_reads_the_same(tmp_path):
    old = training_step(Export(schema="3.1.7", version="2021.4"))
    for table, columns in old.columns.items():
        old.columns[table] = [
            c for c in columns if c not in ("textId", "graphNodeId", "greenContextId", "domainId")
        ]
    before = load_capture(old.write(tmp_path / "old.sqlite"))
    after = load_capture(training_step(Export()).write(tmp_path / "new.sqlite"))
    assert before.text(before.ranges.name_id).tolist() == after.text(after.ranges.name_id).tolist()
    assert before.ops.start_ns.tolist() == after.ops.start_ns.tolist()
    assert set(before.ops.graph_node.tolist()) == {-1}


def test_columns_that_a_newer_version_adds_do_no_harm(tmp_path):
    new = training_step(Export(schema="3.99.0", version="2031.1"))
    new.columns[PREFIX + "KERNEL"].append("clusterX")
    assert len(load_capture(new.write(tmp_path / "a.sqlite")).ops) == 24


def test_an_export_of_another_major_schema_is_read_with_a_word_of_warning(tmp_path):
    capture = load_capture(training_step(Export(schema="4.0.0")).write(tmp_path / "a.sqlite"))
    assert any("schema 4.0.0" in said for said in capture.problems)


def test_a_needed_column_that_is_gone_is_named(tmp_path, export):
    export.columns[PREFIX + "KERNEL"].remove("correlationId")
    with pytest.raises(BadDataError, match="has no column correlationId"):
        load_capture(training_step(export).write(tmp_path / "a.sqlite"))


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"", BadDataError, "empty"),
        (b"hello", BadDataError, "not a recording"),
        (b"\x00" * 5000, BadDataError, "not a recording"),
        (b"SQLite format 3\x00", BadDataError, "truncated"),
        (b"{}", BadDataError, "traceEvents"),
        (b'{"traceEvents": [', BadDataError, "ends"),
    ],
)
def test_a_file_that_is_no_capture_ends_in_words(tmp_path, content, error, said):
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    with pytest.raises(error, match=said):
        load_capture(path)


def test_a_cut_export_is_refused_wherever_it_was_cut(tmp_path, export):
    whole = training_step(export).write(tmp_path / "a.sqlite").read_bytes()
    for size in (50, 1000, 4096, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.sqlite").write_bytes(whole[:size])
        with pytest.raises(BadDataError, match=f"truncated: {size} of" if size >= 100 else "truncated"):
            load_capture(tmp_path / "cut.sqlite")


def test_a_damaged_page_is_an_error_with_the_file_named(tmp_path, export):
    path = training_step(export).write(tmp_path / "a.sqlite")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(BadDataError, match="SQLite cannot read it") as caught:
        load_capture(path)
    assert caught.value.location == str(path)


@pytest.mark.parametrize("start", ["soon", 1000.5])
def test_a_time_that_is_not_an_integer_is_an_error(tmp_path, export, start):
    training_step(export)
    export.rows[PREFIX + "KERNEL"][3]["start"] = start
    with pytest.raises(BadDataError, match="values that are not integers"):
        load_capture(export.write(tmp_path / "a.sqlite"))


def test_a_name_that_is_no_utf8_is_read_with_replaced_characters(tmp_path, export):
    path = training_step(export).write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(X'66ff6f' AS TEXT) WHERE value = 'adam'")
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(X'66ff6f' AS TEXT) WHERE rowid = 1")
        connection.commit()
    capture = load_capture(path)
    assert "f\ufffdo" in capture.text(capture.ops.name_id)
    assert capture.name(int(capture.ranges.name_id[0])) == "f\ufffdo"


def test_the_reader_takes_no_string_that_no_event_uses(tmp_path, export):
    capture = load_capture(with_secrets(export).write(tmp_path / "a.sqlite"))
    assert not any("hush" in text for text in capture.strings)
    assert "hush" not in repr(capture.info)
