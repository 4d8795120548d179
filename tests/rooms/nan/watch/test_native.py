"""A C library of lab: from the wheel, compiled once, or done without."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import MissingError
from lab.native import READER, C
from lab.rooms.nan.watch import native

HAS_C = native.library() is not None
compiled = pytest.mark.skipif(not HAS_C, reason=f"no library here: {native.library_state()}")


@pytest.fixture
def fresh(monkeypatch):
    """Each test looks for the library anew."""
    forget()
    yield monkeypatch
    forget()


def forget():
    vars(native.LIBRARY).pop("_search", None)


@compiled
def test_the_plain_form_can_be_asked_for(fresh):
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
