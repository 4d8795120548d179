"""The scanner's library: found, compiled or done without; and no byte read or written outside its blocks."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lab.core import compiled as compiled_module
from lab.core.library import READER
from lab.core.native import C
from lab.errors import MissingError
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.native import find as native
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
    vars(native.LIBRARY).pop("found", None)


def test_without_a_compiler_the_plain_reader_reads(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fresh.setenv("PATH", str(tmp_path))
    fresh.delenv("CC", raising=False)
    assert native.library() is None
    assert native.library_state() == "plain: no C compiler here (this lab came without a compiled one)"
    assert len(read_kineto(written(tmp_path / "a.json", EVENTS)).kernels) == 3


@compiled
def test_the_plain_reader_can_be_asked_for(fresh):
    fresh.setenv(READER, "plain")
    assert native.library() is None and native.library_state() == "plain, as LAB_READER asks"


@compiled
def test_a_compiled_library_needs_no_compiler_any_more(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is not None and native.library_state().startswith("native, compiled here (")
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
    fresh.setattr(compiled_module, "PACKAGED", folder)
    return folder / C.file_name(native.LIBRARY.source)


@compiled
def test_both_sides_name_the_same_columns():
    assert native.library().scan_columns() == len(COLUMNS)


@compiled
def test_numbers_of_texts_stay_over_pieces_and_growth():
    scanner = Scanner(native.library())
    names = [f"name {number}" for number in range(20_000)]
    for start in range(0, len(names), 1000):
        text = ",".join(json.dumps({"name": name}) for name in names[start : start + 1000])
        rows = scanner.scan(text.encode())
        assert rows.name.tolist() == list(range(start, start + 1000))
    again = scanner.scan(b'{"name": "name 7", "cat": "new"},{"name": "name 19999"}')
    assert again.name.tolist() == [7, 19_999] and again.cat.tolist() == [20_000, -1]
    ids = scanner.texts.ids(np.array([-1, 19_999, 7]), lambda raw: int(text_of(raw).split()[1]) * 10)
    assert ids.tolist() == [-1, 199_990, 70]


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
