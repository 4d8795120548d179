"""The cache: the same columns again, and never a reason to fail or to believe the wrong thing."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings import cache, tables
from lab.recordings.cache import entry_name, load_trace
from lab.recordings.tables import Trace
from tests.tracegen import TraceWriter, training_step


def written(path: Path, steps: int = 3) -> Path:
    writer = TraceWriter(rank=3, world_size=8)
    for number in range(steps):
        training_step(writer, number, 1000.125 + 50 * number)
    return writer.write(path)


def same(a: Trace, b: Trace) -> bool:
    if (a.meta, a.strings, a.truncated, a.source) != (b.meta, b.strings, b.truncated, b.source):
        return False
    return all(
        getattr(a, name).__getattr__(column).dtype == getattr(b, name).__getattr__(column).dtype
        and np.array_equal(getattr(getattr(a, name), column), getattr(getattr(b, name), column))
        for name, schema in tables.SCHEMAS.items()
        for column in schema
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were really read."""
    seen: list[Path] = []
    real = cache.read_kineto

    def spy(path: Path, *, salvage: bool = False) -> Trace:
        seen.append(path)
        return real(path, salvage=salvage)

    monkeypatch.setattr(cache, "read_kineto", spy)
    return seen


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_second_look_gives_the_same_trace_without_reading_it(tmp_path, reads, name):
    path = written(tmp_path / "rank3" / name)
    first = load_trace(path, cache=tmp_path / "c")
    second = load_trace(path, cache=tmp_path / "c")
    assert reads == [path] and same(first, second) and second.problems == []


def test_without_a_folder_nothing_is_kept(tmp_path, reads):
    path = written(tmp_path / "t.json")
    load_trace(path)
    load_trace(path)
    assert len(reads) == 2 and list(tmp_path.iterdir()) == [path]


def test_a_changed_trace_is_read_anew_and_a_touched_one_is_not(tmp_path, reads):
    path, folder = written(tmp_path / "t.json"), tmp_path / "c"
    load_trace(path, cache=folder)
    os.utime(path, (1, 1))
    load_trace(path, cache=folder)
    assert len(reads) == 1
    path.write_bytes(path.read_bytes().replace(b"nvjet_gemm", b"nvjet_GEMM"))  # the same size
    assert "nvjet_GEMM" in load_trace(path, cache=folder).strings
    assert len(reads) == 2 and "nvjet_GEMM" in load_trace(path, cache=folder).strings and len(reads) == 2


def test_a_trace_that_is_changed_within_its_date_is_read_anew(tmp_path, reads):
    """Dates of some file systems are whole seconds, or two."""
    path, folder = written(tmp_path / "t.json"), tmp_path / "c"
    load_trace(path, cache=folder)
    (entry,), date_ns = folder.iterdir(), path.stat().st_mtime_ns
    os.utime(entry, ns=(date_ns + 10**9, date_ns + 10**9))
    path.write_bytes(path.read_bytes().replace(b"nvjet_gemm", b"nvjet_GEMM"))
    os.utime(path, ns=(date_ns, date_ns))
    assert "nvjet_GEMM" in load_trace(path, cache=folder).strings


def test_another_version_of_the_reader_reads_anew(tmp_path, reads, monkeypatch):
    path = written(tmp_path / "t.json")
    load_trace(path, cache=tmp_path / "c")
    monkeypatch.setattr(cache, "READER_VERSION", -1)
    load_trace(path, cache=tmp_path / "c")
    assert len(reads) == 2


def test_a_copied_run_keeps_its_cache(tmp_path, reads):
    run = tmp_path / "a" / "sweep"
    path = written(run / "256thread/nccl_28channels/torch_profiler/rank3/t.json")
    load_trace(path, cache=run / ".cache")
    shutil.copytree(run, tmp_path / "b" / "sweep")
    copy = tmp_path / "b" / "sweep" / path.relative_to(run)
    assert load_trace(copy, cache=tmp_path / "b/sweep/.cache").source == copy
    assert len(reads) == 1


def test_two_ranks_with_files_of_one_name_do_not_share_an_entry(tmp_path):
    names = {entry_name(tmp_path / f"rank{rank}" / "t.json") for rank in range(8)}
    assert len(names) == 8 and all("/" not in name for name in names)


def damage_cut(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-200])


def damage_flip(entry: Path) -> None:
    raw = bytearray(entry.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    entry.write_bytes(raw)


def damage_foreign(entry: Path) -> None:
    entry.write_bytes(b"hello")


def damage_other_zip(entry: Path) -> None:
    with zipfile.ZipFile(entry, "w") as archive:
        archive.writestr("about.json", "{}")


def damage_ids(entry: Path) -> None:
    """A sound file whose columns point outside of its texts."""
    with zipfile.ZipFile(entry) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    about = found["about.json"].replace(b'"nvjet_gemm"', b'""').replace(b'"strings":[', b'"strings":[],"x":[')
    with zipfile.ZipFile(entry, "w") as archive:
        for name, raw in {**found, "about.json": about}.items():
            archive.writestr(name, raw)


def damage_packed(entry: Path) -> None:
    """The same content, deflated: such a file could grow a thousandfold."""
    with zipfile.ZipFile(entry) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(entry, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in found.items():
            archive.writestr(name, raw)


def damage_flag(entry: Path) -> None:
    """One bit of the zip's directory, which calls the first file encrypted."""
    raw = bytearray(entry.read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] ^= 1
    entry.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [damage_cut, damage_flip, damage_foreign, damage_other_zip, damage_ids, damage_packed, damage_flag],
    ids=lambda f: f.__name__,
)
def test_a_damaged_or_foreign_entry_is_named_ignored_and_rewritten(tmp_path, reads, damage):
    path, folder = written(tmp_path / "t.json"), tmp_path / "c"
    good = load_trace(path, cache=folder)
    damage(folder / entry_name(path))
    again = load_trace(path, cache=folder)
    assert same(good, again) and len(reads) == 2 and "read again" in again.problems[0]
    assert load_trace(path, cache=folder).problems == [] and len(reads) == 2


def test_a_folder_that_cannot_be_written_never_breaks_the_read(tmp_path):
    path = written(tmp_path / "t.json")
    (tmp_path / "file").write_text("in the way")
    trace = load_trace(path, cache=tmp_path / "file" / "c")
    assert len(trace.kernels) == 9 and "could not be cached" in trace.problems[0]


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
def test_what_stands_where_the_entry_should_be_never_breaks_the_read(tmp_path, kind):
    path, folder = written(tmp_path / "t.json"), tmp_path / "c"
    folder.mkdir()
    entry = folder / entry_name(path)
    entry.mkdir() if kind == "folder" else entry.symlink_to(tmp_path / "nowhere")
    assert len(load_trace(path, cache=folder).kernels) == 9
    assert not (tmp_path / "nowhere").exists()


def test_a_broken_trace_is_not_cached_and_salvage_has_an_entry_of_its_own(tmp_path, reads):
    path, folder = written(tmp_path / "t.json", steps=12), tmp_path / "c"
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(BadDataError):
        load_trace(path, cache=folder)
    part = load_trace(path, cache=folder, salvage=True)
    assert part.truncated and same(part, load_trace(path, cache=folder, salvage=True)) and len(reads) == 2
    with pytest.raises(BadDataError):
        load_trace(path, cache=folder)


def test_a_missing_trace_is_missing_even_with_an_entry(tmp_path):
    path, folder = written(tmp_path / "t.json"), tmp_path / "c"
    load_trace(path, cache=folder)
    path.unlink()
    with pytest.raises(MissingError):
        load_trace(path, cache=folder)


def test_an_empty_trace_comes_back_with_its_types(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    assert same(load_trace(path, cache=tmp_path / "c"), load_trace(path, cache=tmp_path / "c"))


def test_numbers_of_the_recorders_own_are_no_ids_of_texts(tmp_path, reads):
    """Beside an execution trace each op has a Record function id far beyond the number of texts."""
    large = 1 << 40
    args = {"External id": large + 1, "Record function id": large + 2, "Sequence number": large + 3}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": args},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2, "dur": 1}
        | {"args": {"External id": large + 1, "correlation": large + 4, "device": 0, "stream": 7}},
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    first, second = (load_trace(path, cache=tmp_path / "c") for _ in range(2))
    assert (first.ops.rf_id[0], first.ops.external_id[0]) == (large + 2, large + 1)
    assert reads == [path] and same(first, second) and second.problems == first.problems


@pytest.mark.parametrize("table", tables.SCHEMAS)
def test_a_column_of_text_ids_is_32_bits_wide_and_checked(table):
    texts = {name for name in tables.SCHEMAS[table] if name in tables.TEXT_COLUMNS}
    assert all(tables.SCHEMAS[table][name] is np.int32 for name in texts)
    assert not texts & {"external_id", "rf_id", "correlation"} and ("name_id" in texts) == (
        "name_id" in tables.SCHEMAS[table]
    )


def with_kernels(trace: Trace, **columns: np.ndarray) -> Trace:
    return replace(trace, kernels=tables.Table({**trace.kernels.as_dict(), **columns}))


@pytest.mark.parametrize(
    "values",
    [
        [-(2**63), 2**63 - 1, 0],
        [-1, -1, -1],
        [-100, 100, 27],
        [0, 255, 256],
        [2**62, 2**62 + 65535, 2**62 + 65536],
        [5, 5 + 2**32 - 1, 5 + 2**32],
    ],
    ids=str,
)
def test_every_number_survives_the_cache(tmp_path, reads, monkeypatch, values):
    path = written(tmp_path / "t.json", steps=1)
    trace = load_trace(path)
    assert len(trace.kernels) == 3
    narrow = np.array([value % 256 - 128 for value in values], dtype=np.int8)
    odd = with_kernels(trace, correlation=np.array(values), kind=narrow)
    monkeypatch.setattr(cache, "_read_new", lambda *_, **__: odd)
    load_trace(path, cache=tmp_path / "c")
    monkeypatch.setattr(cache, "_read_new", lambda *_, **__: pytest.fail("read again"))
    again = load_trace(path, cache=tmp_path / "c")
    assert again.kernels.correlation.tolist() == values and again.kernels.kind.tolist() == narrow.tolist()
    assert same(odd, again)


def test_long_columns_of_one_value_and_empty_tables_survive_the_cache(tmp_path, monkeypatch):
    path = written(tmp_path / "t.json", steps=1)
    trace = load_trace(path)
    long = replace(
        trace,
        kernels=trace.kernels.take(np.zeros(10_000, dtype=np.int64)),
        collectives=trace.collectives.take(np.empty(0, dtype=np.int64)),
    )
    monkeypatch.setattr(cache, "_read_new", lambda *_, **__: long)
    load_trace(path, cache=tmp_path / "c")
    assert same(long, load_trace(path, cache=tmp_path / "c"))


def edited(entry: Path, change) -> None:
    """The entry with its about.json changed and every checksum right."""
    with zipfile.ZipFile(entry) as archive:
        about, columns = json.loads(archive.read("about.json")), archive.read("columns")
    change(about)
    with zipfile.ZipFile(entry, "w") as archive:
        archive.writestr("about.json", json.dumps(about))
        archive.writestr("columns", columns)


def _first(about, name):
    return next(one for one in about["columns"] if one["name"] == name)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: _first(about, "ts_ns").update(width=0, rows=1 << 50),
        lambda about: _first(about, "ts_ns").update(rows=-1),
        lambda about: _first(about, "ts_ns").update(rows=1 << 62),
        lambda about: _first(about, "ts_ns").update(width=3),
        lambda about: _first(about, "regs").update(least=2**31 - 1, width=1),
        lambda about: _first(about, "kind").update(least=128),
        lambda about: _first(about, "name_id").update(least=-2),
        lambda about: about["columns"].reverse(),
        lambda about: about["columns"].pop(),
    ],
)
def test_an_entry_that_promises_what_it_cannot_hold_is_not_believed(tmp_path, reads, change):
    path, folder = written(tmp_path / "t.json"), tmp_path / "c"
    good = load_trace(path, cache=folder)
    edited(folder / entry_name(path), change)
    again = load_trace(path, cache=folder)
    assert same(good, again) and len(reads) == 2 and "read again" in again.problems[0]
