"""A scrubbed copy holds no secret and reads like the original."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from lab.errors import BadDataError, StorageError, UsageError
from lab.recordings import nsys
from lab.recordings.load import load_capture
from lab.recordings.nsys.scrub import scrub
from tests.recordings.sqlgen import PREFIX, Export, global_tid, training_step

SECRETS = {
    "META_DATA_CAPTURE": [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "TOKEN=hush1"),
        ("PROCESS_0:COMMAND", "hush2"),
        ("PROCESS_0:ARGUMENT_0", "--key=hush3"),
        ("PROCESS_0:USER_NAME", "hush4"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
    ],
    "META_DATA_EXPORT": [
        ("EXPORT_HOST", "hush5"),
        ("EXPORT_PARAM_INPUT_PATH_ABS", "/home/hush6/a"),
        ("NEW_ONE", "hush7"),
    ],
    "TARGET_INFO_SYSTEM_ENV": [
        ("DeviceEnvironment", "TOKEN=hush8"),
        ("Hostname", "hush9"),
        ("NvDriverVersion", "580.1"),
    ],
}


def with_secrets(export):
    training_step(export)
    for table, rows in SECRETS.items():
        for name, value in rows:
            export.add(table, name=name, value=value)
    export.add(
        "TARGET_INFO_GPU",
        id=0,
        name="H200",
        uuid="hushA",
        busLocation="hushB",
        memoryBandwidth=4_814_304_000_000,
    )
    export.add("PROCESSES", globalPid=1, pid=1, name="hushC")
    export.add("ThreadNames", nameId=export.string("hushD"), globalTid=1)
    export.add(
        "ProcessStreams",
        globalPid=1,
        filenameId=export.string("hushE"),
        contentId=export.string("hushF printed"),
    )
    export.add("DIAGNOSTIC_EVENT", text="see /tmp/hushG/stdout.log")
    export.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t48.")
    for more in (", CUPTI buffers: 50.", " hushL", ". hushM", "\nhushN", ", CUPTI buffers: 50. hushO"):
        export.add("DIAGNOSTIC_EVENT", text=f"Number of CUPTI events produced: \t3045{more}")
    export.add("A_TABLE_OF_TOMORROW", text="hushH")
    export.add(PREFIX + "OF_TOMORROW", start=1, text="hushI")
    export.rows["NVTX_EVENTS"][0]["jsonText"] = "hushJ"
    export.string("hushK, used by nothing")
    return export


def test_a_scrubbed_copy_holds_no_secret_and_reads_the_same(tmp_path, export):
    source = with_secrets(export).write(tmp_path / "a.sqlite")
    done = scrub(source, tmp_path / "out" / "b.sqlite")
    data = (tmp_path / "out" / "b.sqlite").read_bytes()
    assert b"hush" not in data
    assert b"hush" in source.read_bytes()
    assert done.rows > 12 and done.strings >= 4
    before, after = nsys.load(source), nsys.load(tmp_path / "out" / "b.sqlite")
    for name in ("ops", "api", "ranges"):
        one, other = getattr(before, name), getattr(after, name)
        assert all(
            np.array_equal(getattr(one, c), getattr(other, c)) for c in one if not c.endswith("_id")
        ), name
        for column in [c for c in one if c.endswith("_id")]:
            assert before.text(getattr(one, column)).tolist() == after.text(getattr(other, column)).tolist()
    assert (after.version, after.schema, after.info) == (before.version, before.schema, {"driver": "580.1"})
    assert after.devices == before.devices
    assert after.problems == before.problems
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "b.sqlite"]


def test_a_text_appended_to_a_count_removes_the_line_and_the_counts_themselves_stay(tmp_path, export):
    scrub(with_secrets(export).write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite")
    with closing(sqlite3.connect(tmp_path / "b.sqlite")) as copy:
        kept = [text for (text,) in copy.execute("SELECT text FROM DIAGNOSTIC_EVENT")]
    assert kept == [
        "Number of CUDA events collected: \t48.",
        "Number of CUPTI events produced: \t3045, CUPTI buffers: 50.",
    ]


def test_a_gzipped_export_is_scrubbed_as_the_plain_one_and_a_bad_one_is_named(tmp_path, export):
    plain = with_secrets(export).write(tmp_path / "a.sqlite")
    packed, clean = tmp_path / "a.sqlite.gz", tmp_path / "clean.sqlite"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert (scrub(packed, clean).rows, b"hush" in clean.read_bytes()) == (
        scrub(plain, tmp_path / "c").rows,
        False,
    )
    packed.write_bytes(gzip.compress(b"text"))
    with pytest.raises(BadDataError) as caught:
        scrub(packed, tmp_path / "d.sqlite")
    assert caught.value.location == str(packed) and not (tmp_path / "d.sqlite").exists()


def test_a_full_disk_is_not_blamed_on_the_export(tmp_path, export, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("lab.recordings.nsys.scrub._copy", full)
    with pytest.raises(StorageError) as caught:
        scrub(with_secrets(export).write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite")
    assert caught.value.location == str(tmp_path / "b.sqlite")


def test_scrubbing_a_file_onto_itself_or_a_foreign_file_changes_nothing(tmp_path, export):
    source = with_secrets(export).write(tmp_path / "a.sqlite")
    before = source.read_bytes()
    with pytest.raises(UsageError, match="the same file"):
        scrub(source, tmp_path / "." / "a.sqlite")
    assert source.read_bytes() == before
    (tmp_path / "b.sqlite").write_bytes(b"text")
    with pytest.raises(BadDataError):
        scrub(tmp_path / "b.sqlite", tmp_path / "c.sqlite")
    assert not (tmp_path / "c.sqlite").exists()


def test_calls_of_the_os_runtime_stay_with_their_names_and_numbers_only(tmp_path):
    export = training_step(Export())
    row = {"start": 5, "end": 9, "globalTid": global_tid(1, 1), "nameId": export.string("poll")}
    export.add("OSRT_API", **row, callchain="hush")
    scrub(export.write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite")
    assert b"hush" not in (tmp_path / "b.sqlite").read_bytes()
    capture = nsys.load(tmp_path / "b.sqlite")
    assert capture.text(capture.osrt.name_id).tolist() == ["poll"]
    assert (capture.osrt.end_ns - capture.osrt.start_ns).tolist() == [4]


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("Not all CUDA events might have been collected.", "gpu"),
        ("CUPTI buffers of /home/alice/tool: 49 of 50. Some CUPTI events might be missing.", "gpu"),
        ("Not all NVTX events might have been collected.", "ops"),
    ],
)
def test_what_nsys_said_of_a_loss_stays_said(text, axis, tmp_path):
    export = training_step(Export())
    export.add("DIAGNOSTIC_EVENT", text=text)
    export.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t48.")
    scrub(export.write(tmp_path / "a.sqlite"), tmp_path / "clean.sqlite")
    (lack,) = load_capture(tmp_path / "clean.sqlite").lacks
    assert (lack.axis, lack.rule, lack.unknown) == (axis, "N", True)
    assert b"alice" not in (tmp_path / "clean.sqlite").read_bytes()
