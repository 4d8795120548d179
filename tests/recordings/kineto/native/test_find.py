"""The scanner's library: found, compiled or done without; and no byte read or written outside its blocks."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lab.errors import MissingError
from lab.native import READER, C
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.columns import TABLE_OF
from lab.recordings.kineto.native import scanner as native
from lab.recordings.kineto.native.scanner import COLUMNS, Scanner, text_of
from tests.recordings.kineto.native.test_equal import EVENTS, mutated, written

HAS_C = native.library() is not None
compiled = pytest.mark.skipif(not HAS_C, reason=f"no scanner here: {native.library_state()}")


@pytest.fixture
def fresh(monkeypatch):
    """Each test looks for the library anew."""
    forget()
    yield monkeypatch
    forget()


def forget():
    vars(native.LIBRARY).pop("_search", None)


def test_without_a_compiler_the_plain_reader_reads(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fresh.setenv("PATH", str(tmp_path))
    fresh.delenv("CC", raising=False)
    assert native.library() is None
    assert native.library_state() == "plain: no C compiler here"
    assert len(read_kineto(written(tmp_path / "a.json", EVENTS)).ops) == 3


@compiled
def test_the_plain_reader_can_be_asked_for(fresh):
    fresh.setenv(READER, "plain")
    assert native.library() is None and native.library_state() == "plain, as LAB_READER asks"


@compiled
def test_a_compiled_library_needs_no_compiler_any_more(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is not None and native.library_state() == "native, compiled here"
    forget()
    fresh.setenv("PATH", str(tmp_path))
    assert native.library() is not None


@compiled
def test_the_library_of_a_package_comes_first(fresh, tmp_path):
    made = Path(C.built(native.LIBRARY.source)._name)
    in_package(fresh, tmp_path).write_bytes(made.read_bytes())
    fresh.setenv("PATH", str(tmp_path))
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert native.library() is not None and native.library_state() == "native, from the wheel"


def test_a_library_that_does_not_load_is_named(fresh, tmp_path):
    place = in_package(fresh, tmp_path)
    place.write_bytes(b"\x7fELF")
    with pytest.raises(MissingError, match="does not load"):
        C.loaded(place)
    fresh.setenv("CC", "no-such-compiler")
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert native.library() is None
    assert "(of the wheel's, the compiled library does not load" in native.library_state()


def in_package(fresh, folder: Path) -> Path:
    """Where the wheel's library would be."""
    fresh.setattr("lab.native.PACKAGED", folder)
    return folder / C.file_name(native.LIBRARY.source)


@compiled
def test_both_sides_name_the_same_columns_and_tables():
    assert native.library().scan_columns() == len(COLUMNS)
    scanner = Scanner(native.library())
    rows = scanner.scan(",".join(json.dumps(event) for event in EVENTS).encode())
    assert {name: len(table) for name, table in rows.items()} == {
        "kernels": 3,
        "ops": 1,
        "runtime": 1,
        "ranges": 1,
        "modules": 0,
        "arrows": 2,
        "kernel_comms": 1,
        "op_comms": 0,
        "launches": 1,
        "copies": 1,
        "operator_indices": 2,
        "other_indices": 1,
        "meta": 2,
        "waits": 0,
        "foreign": 0,
    }
    assert rows["kernel_comms"].row.tolist() == [2] and rows["copies"].row.tolist() == [1]
    assert rows["launches"].grid_y.tolist() == [2] and rows["kernels"].block_z.tolist() == [6, -1, 6]


@compiled
@pytest.mark.parametrize(
    "category", [*TABLE_OF, "Kernel", "CUDA_Runtime", "kernels", "x", "\u212aernel", "kern\u00e9l"]
)
def test_categories_are_those_of_the_plain_form(category):
    event = {"ph": "X", "cat": category, "name": "nn.Module: a", "ts": 1, "dur": 1, "args": {"Ev Idx": 1}}
    rows = Scanner(native.library()).scan(json.dumps(event, ensure_ascii=False).encode())
    if not category.isascii():
        assert rows is None  # how its letters are written small is Python's to say
        return
    found = {name for name, table in rows.items() if len(table) and not name.endswith("indices")}
    table = TABLE_OF.get(category.lower(), "")
    expected = {"functions": "modules", "flows": "", "names": "", "": "foreign"}.get(table, table)
    assert found == ({expected} if expected and category else set())


@compiled
def test_numbers_of_texts_stay_over_pieces_and_growth():
    scanner = Scanner(native.library())
    names = [f"name {number}" for number in range(20_000)]
    event = {"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}
    for start in range(0, len(names), 1000):
        text = ",".join(json.dumps({**event, "name": name}) for name in names[start : start + 1000])
        rows = scanner.scan(text.encode())["ops"]
        assert rows.name.tolist() == list(range(start + 1, start + 1001))  # 0 is the category
    again = scanner.scan(json.dumps({**event, "name": "name 7"}).encode())["ops"]
    assert again.name.tolist() == [8]
    assert len(scanner.take()["ops"]) == 20_001 and len(scanner.take()["ops"]) == 0
    ids = scanner.texts.ids(np.array([-1, 20_000, 8]), lambda raw: int(text_of(raw).split()[1]) * 10)
    assert ids.tolist() == [-1, 199_990, 70]


@compiled
def test_a_piece_that_only_the_plain_form_reads_leaves_nothing_behind():
    scanner = Scanner(native.library())
    good = json.dumps(EVENTS[4]).encode()
    bad = good.replace(b'"dur": 2.5', b'"dur": 2.5004')
    assert scanner.scan(good) and scanner.scan(good + b"," + bad) is None and scanner.scan(good)
    assert len(scanner.take()["kernels"]) == 2


def test_no_read_or_write_leaves_its_block_on_mutated_and_cut_events(tmp_path):
    program = tmp_path / "fuzz"
    source = native.LIBRARY.source.parent
    flags = ("-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    here = __file__.replace("test_find.py", "fuzz.c")
    try:
        done = subprocess.run(["cc", *flags, f"-I{source}", here, "-o", program], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    if done.returncode:
        pytest.skip("this compiler has no sanitizers")
    text = ", ".join(json.dumps(event) for event in EVENTS).encode()
    chance = random.Random(7)
    cases = [text, *(text[:end] for end in range(len(text))), *(mutated(text, chance) for _ in range(5000))]
    (tmp_path / "cases").write_bytes(b"".join(len(case).to_bytes(4, "little") + case for case in cases))
    ran = subprocess.run([program, tmp_path / "cases"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[:3000]
    read, whole = (int(word) for word in ran.stdout.split() if word.isdigit())
    assert whole == len(cases) and 500 < read < whole
