"""Constants that verdicts rest on are found, changed and put under the tests of their module."""

from __future__ import annotations

import re

import pytest

from scripts import mutate
from tests.conftest import ROOT

SOURCE = """
FEW = 8
_SHARE: float = 0.05
LEAST, MOST = 2.0**-24, 1 << 20
NEAR = (0.9, -1.1)
EXITS = {"same": 0, "differs": 1}
NAMES = ("eight", "8")
ON = True
TIMES = FEW * 2
few = 8


def inner():
    LOCAL = 3
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("lab/room/judge.py", "lab/room/inner/deep.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# ü\n" + SOURCE)
    for name in ("test_judge.py", "test_other.py"):
        (tmp_path / "tests/room").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests/room" / name).write_text("")
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    return tmp_path


def test_every_number_of_a_constant_is_found_where_it_stands(tree):
    path = tree / "lab/room/judge.py"
    constants = mutate.constants_of(path)
    numbers = ["8", "0.05", "2.0**-24", "1 << 20", "0.9", "-1.1", "0", "1"]
    assert [one.text for one in constants] == numbers
    assert [path.read_bytes()[one.start : one.end].decode() for one in constants] == numbers
    assert {one.name for one in constants[2:4]} == {"lab.room.judge.LEAST,MOST"}


@pytest.mark.parametrize(
    ("text", "change", "after"),
    [("8", "/ 2", "(8) // 2"), ("1 << 3", "* 3", "(1 << 3) * 3"), ("0.05", "/ 2", "(0.05) / 2")],
)
def test_a_whole_number_stays_whole(text, change, after):
    assert mutate.changed(text, change) == after


def test_the_file_of_a_modules_name_is_asked_before_its_folder(tree):
    assert mutate.mirrors(tree / "lab/room/judge.py") == [
        ["tests/room/test_judge.py"],
        ["tests/room/test_other.py"],
    ]
    deep = mutate.mirrors(tree / "lab/room/inner/deep.py")
    assert deep == [["tests/room/test_judge.py", "tests/room/test_other.py"]]


def test_every_function_that_is_explained_exists():
    """An explanation of a function that went would hide a mutant of another one, some day."""
    gone = []
    for row in mutate.explained():
        parts = row["function"].split(".")
        if re.search(r"[*?\[]", row["function"]):
            continue
        file, names = next(
            (path, parts[length:])
            for length in range(len(parts) - 1, 0, -1)
            for path in (
                ROOT.joinpath(*parts[:length]).with_suffix(".py"),
                ROOT.joinpath(*parts[:length], "__init__.py"),
            )
            if path.exists()
        )
        if not all(
            re.search(rf"^\s*(def|class) {name}\b|^{name}\b", file.read_text(), re.M) for name in names
        ):
            gone.append(row["function"])
    assert gone == []
