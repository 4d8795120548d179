"""The C++ form's library: compiled once, kept safely, and what is reported if it cannot be built."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")


from lab.errors import MissingError  # noqa: E402
from lab.rooms.semicrf.model import native  # noqa: E402
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

pytestmark = pytest.mark.torch
NO_FORM = native.missing_reason("cpu")
compiled = pytest.mark.skipif(NO_FORM is not None, reason=(NO_FORM or "").splitlines()[0] if NO_FORM else "")


def test_without_a_compiler_it_is_said_where_one_was_looked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="no C\\+\\+ compiler here") as caught:
        native_cpu.CPP.built(native_cpu.SOURCE)
    assert "c++, g++, clang++" in str(caught.value) and "backend='torch'" in str(caught.value.fix)


def test_a_cxx_that_is_no_program_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++ -O1")
    with pytest.raises(MissingError, match="/nowhere/c"):
        native_cpu.CPP.built(native_cpu.SOURCE)


@compiled
def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MissingError, match="cannot be kept") as caught:
        native_cpu.CPP.built(native_cpu.SOURCE)
    assert str(tmp_path / "file") in str(caught.value) and "XDG_CACHE_HOME" in str(caught.value.fix)


@compiled
def test_nothing_is_loaded_from_a_folder_that_others_may_write_to(monkeypatch, tmp_path):
    (tmp_path / "lab" / "native").mkdir(parents=True)
    (tmp_path / "lab" / "native").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingError, match="others may write"):
        native_cpu.CPP.built(native_cpu.SOURCE)


@compiled
def test_a_user_without_a_home_gets_no_folder_named_tilde(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError, match="no home"):
        native_cpu.CPP.built(native_cpu.SOURCE)
    assert list(tmp_path.iterdir()) == []


@compiled
def test_a_full_disk_is_named(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "replace", full)
    source = tmp_path / "small.cpp"
    source.write_text("int a;")
    with pytest.raises(MissingError, match="no space left on the disk"):
        native_cpu.CPP.built(source)
    assert list((tmp_path / "lab" / "native").iterdir()) == []


@compiled
def test_a_source_that_does_not_compile_shows_the_compilers_words_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "broken.cpp"
    source.write_text('extern "C" int lab() { return undeclared_name; }\n')
    with pytest.raises(MissingError, match="undeclared_name"):
        native_cpu.CPP.built(source)
    assert list((tmp_path / "cache" / "lab" / "native").iterdir()) == []


@compiled
def test_a_library_that_does_not_load_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "small.cpp"
    source.write_text('extern "C" int lab() { return 7; }\n')
    made = native_cpu.CPP.folder() / native_cpu.CPP.file_name(source, *native_cpu.CPP.find_compiler())
    made.write_bytes(b"\x7fELF")
    with pytest.raises(MissingError, match="does not load") as caught:
        native_cpu.CPP.built(source)
    made.unlink()
    assert native_cpu.CPP.built(source).lab() == 7
    assert str(made) in str(caught.value)


@compiled
def test_another_source_or_compiler_is_another_file(monkeypatch, tmp_path):
    command, version = native_cpu.CPP.find_compiler()
    source = tmp_path / "a.cpp"
    source.write_text("int a;")
    first = native_cpu.CPP.file_name(source, command, version)
    assert first == native_cpu.CPP.file_name(source, command, version)
    assert first != native_cpu.CPP.file_name(source, command, version + " newer")
    assert first != native_cpu.CPP.file_name(source, [*command, "-O1"], version)
    source.write_text("int b;")
    assert first != native_cpu.CPP.file_name(source, command, version)


@compiled
def test_processes_that_compile_at_once_all_get_a_whole_library(tmp_path):
    source = tmp_path / "small.cpp"
    source.write_text('#include <thread>\nextern "C" int lab() { return 7; }\n')
    program = (
        "import sys, pathlib; from lab.rooms.semicrf.model.native import cpu; "
        "assert cpu.CPP.built(pathlib.Path(sys.argv[1])).lab() == 7"
    )
    env = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(source)], env=env, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = [run.communicate(timeout=900)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert len(list((tmp_path / "cache" / "lab" / "native").iterdir())) == 1


@compiled
def test_no_read_or_write_leaves_its_memory_at_any_number_of_labels(tmp_path):
    program, here = tmp_path / "sanitized", Path(__file__).with_name("sanitized.cpp")
    # Two lanes, as SSE2 has: rows are padded to eight labels, and eight lanes would hide a step too far.
    flags = ("-std=c++17", "-O0", "-g1", "-pthread", "-DLAB_LANES=2", "-fsanitize=address")
    command, _ = native_cpu.CPP.find_compiler()
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() {}")
    if subprocess.run([*command, *flags, empty, "-o", program], capture_output=True).returncode:
        pytest.skip("this compiler has no sanitizers")
    built = [*command, *flags, f"-I{native_cpu.SOURCE.parent}", here, "-o", program]
    subprocess.run(built, check=True)
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[:3000]
