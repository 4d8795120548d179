"""A recording is recognised by its content, whatever its name; what it is not, the error says."""

import gzip
import sqlite3
from contextlib import closing

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.load import format_of, load_capture
from tests.recordings.sqlgen import Export


def database(path, *statements):
    with closing(sqlite3.connect(path)) as made:
        for one in statements:
            made.execute(one)
        made.commit()
    return path


DISPATCHES = "CREATE TABLE rocpd_kernel_dispatch_00000000_1111_2222_3333_444444444444 (id INTEGER)"
RPD = ("CREATE TABLE rocpd_op (id INTEGER)", "CREATE TABLE rocpd_api (id INTEGER)")
VERSION_3 = (
    "CREATE TABLE rocpd_metadata (tag TEXT, value TEXT)",
    "INSERT INTO rocpd_metadata VALUES ('schema_version', '3')",
)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("rocpd", (DISPATCHES, *VERSION_3)),
        ("rpd", (*RPD, *VERSION_3)),
        ("rocprof-compute", ("CREATE TABLE compute_dispatch (id)", "CREATE TABLE compute_metadata (id)")),
    ],
)
def test_sqlite_kinds_are_told_apart_by_their_tables_not_by_name_or_version(tmp_path, name, tables):
    path = database(tmp_path / "a.sqlite", *tables)
    assert format_of(path).name == name
    packed = tmp_path / "trace.json"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert format_of(packed).name == name


def test_an_nsys_export_is_known_under_any_name(tmp_path):
    assert format_of(Export().write(tmp_path / "x.json")).name == "nsys"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"rocprofiler-sdk-tool": [{}]}', "rocprofv3"),
        ('\n {\n "rocprofiler-sdk-tool" : [', "rocprofv3"),
        ('{"traceEvents": [], "note": "rocprofiler-sdk-tool"}', "kineto"),
    ],
)
def test_json_is_told_apart_by_its_first_key(tmp_path, text, name):
    path = tmp_path / "a.db"
    path.write_text(text)
    assert format_of(path).name == name


def test_a_perfetto_trace_is_named_with_the_way_to_one_that_lab_reads(tmp_path):
    path = tmp_path / "results.pftrace"
    path.write_bytes(b"\n\x17\x50\x01" + bytes(21))  # TracePacket: trusted_packet_sequence_id
    assert format_of(path).name == "pftrace"
    with pytest.raises(BadDataError, match="Perfetto trace") as caught:
        load_capture(path)
    assert "--output-format rocpd or json" in caught.value.fix


def test_a_git_lfs_pointer_is_named_as_one(tmp_path):
    path = tmp_path / "a.rpd"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12345\n")
    with pytest.raises(BadDataError, match="Git LFS pointer") as caught:
        load_capture(path)
    assert caught.value.location == str(path) and "git lfs pull" in caught.value.fix


def test_a_foreign_database_is_told_with_its_tables(tmp_path):
    path = database(tmp_path / "a.db", "CREATE TABLE songs (id)")
    with pytest.raises(BadDataError, match=r"no profiler that lab knows \(tables: songs\)"):
        load_capture(path)


def test_views_and_virtual_tables_do_not_make_a_recording(tmp_path):
    path = database(
        tmp_path / "a.db",
        "CREATE VIEW rocpd_op AS SELECT 1",
        "CREATE VIEW rocpd_api AS SELECT load_extension('x')",
        "CREATE TABLE songs (id)",
    )
    with pytest.raises(BadDataError, match="tables: songs"):
        load_capture(path)


def test_a_journal_beside_a_database_is_read_with_it_and_nothing_is_written_there(tmp_path):
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        for statement in (DISPATCHES, "CREATE TABLE more (id)"):
            writer.execute(statement)
        writer.commit()
        copy = tmp_path / "copy" / "a.db"
        copy.parent.mkdir()
        for end in ("", "-wal"):
            (copy.parent / f"a.db{end}").write_bytes((tmp_path / f"a.db{end}").read_bytes())
    assert format_of(copy).name == "rocpd"
    assert sorted(one.name for one in copy.parent.iterdir()) == ["a.db", "a.db-wal"]


def test_a_text_in_utf_16_is_named_as_one(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes('{"traceEvents":[]}'.encode("utf-16"))
    with pytest.raises(BadDataError, match="UTF-16") as caught:
        load_capture(path)
    assert "iconv" in caught.value.fix


def test_text_and_folders_that_are_no_recordings_say_so(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("<html>")
    with pytest.raises(BadDataError, match="not a recording"):
        load_capture(path)
    with pytest.raises(MissingError, match="folder"):
        load_capture(tmp_path)
    with pytest.raises(MissingError, match="no such file"):
        load_capture(tmp_path / "none.db")
