"""The hash of a lab, and the check at the start of every process of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.core import content
from lab.core.content import EXPECTED, REPORT, content_sha256
from lab.core.snapshot import package_folder


def a_package(folder: Path) -> Path:
    package = folder / "lab"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "9"\n')
    (package / "core" / "x.py").write_text("x = 1\n")
    return package


def python(*words: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(path), **env},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: (p / "core" / "x.py").write_text("x = 2\n"),
        lambda p: (p / "core" / "x.py").rename(p / "core" / "y.py"),
        lambda p: (p / "core" / "new.py").write_text(""),
        lambda p: (p / "core" / "x.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF"),
        lambda p: (p / "core" / "x.py").unlink(),
        lambda p: (p / "page.js").write_text("1"),
        lambda p: (p / "linked").symlink_to(p / "core"),
    ],
)
def test_every_file_that_a_process_may_read_is_in_the_hash(tmp_path, edit):
    package = a_package(tmp_path)
    before = content_sha256(package)
    edit(package)
    assert content_sha256(package) != before


def test_bytecode_hidden_files_the_images_data_and_compiled_libraries_are_not_in_the_hash(tmp_path):
    package = a_package(tmp_path)
    before = content_sha256(package)
    left_out = ("_images/cpu/image.toml", "_native/x.so")
    for name in ("__pycache__/x.pyc", "core/__pycache__/x.pyc", *left_out, ".swp/x", "x.pyc"):
        path = package / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("anything")
    assert content_sha256(package) == before


def test_two_files_cannot_be_told_for_one_of_another_name(tmp_path):
    one, two = a_package(tmp_path / "1"), a_package(tmp_path / "2")
    (one / "a").write_text("x")
    (two / "ax").write_text("")
    assert content_sha256(one) != content_sha256(two)


def test_the_program_names_the_lab_that_python_would_import(tmp_path):
    package = a_package(tmp_path)
    program = Path(content.__file__).read_text()
    told = python("-c", program, path=tmp_path)
    assert json.loads(told.stdout) == {"sha256": content_sha256(package), "version": "9"}
    bare = python("-I", "-S", "-c", program, path=tmp_path)
    assert json.loads(bare.stdout) == {"sha256": None, "version": None}


def test_a_process_that_imports_another_lab_ends_in_words_before_it_does_anything(tmp_path):
    report, path = tmp_path / "report", package_folder().parent
    done = python("-c", "import lab; print('on')", path=path, **{EXPECTED: "0" * 64, REPORT: str(report)})
    assert done.returncode == 1 and done.stdout == "" and not report.exists()
    assert "imports another lab than the one that its run names" in done.stderr
    assert str(package_folder()) in done.stderr and "Traceback" not in done.stderr


def test_without_a_run_nothing_is_checked():
    done = python("-c", "import lab; print('on')", path=package_folder().parent, **{REPORT: "/nowhere/x"})
    assert done.stdout == "on\n"
