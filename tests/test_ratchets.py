"""The ratchets of `make lint`: vague names and bytes per folder may only go down."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.conftest import ROOT


def script(name: str):
    spec = importlib.util.spec_from_file_location(f"lab_{name}", ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def names(tmp_path, monkeypatch):
    module = script("names")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "TABLE", tmp_path / "names.json")
    return module


def written(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("code", "vague"),
    [
        ("found = 1", ["found"]),
        ("self._known: int = 1", ["_known"]),
        ("for at, (row, other) in rows: pass", ["at", "other"]),
        ("def f(one, *others, where=1, **kept): pass", ["one", "others", "where", "kept"]),
        ("with opened() as it: pass", ["it"]),
        ("try: pass\nexcept OSError as why: pass", ["why"]),
        ("import numpy as them", ["them"]),
        ("match rows:\n  case [one, *rest]: pass", ["one", "rest"]),
        ("if (seen := 1): pass", ["seen"]),
        ("class Row:\n    made: int\n    first = 1", ["made", "first"]),
        ("call(lambda who: who)", ["who"]),
        ("rows = [one for one in x]", []),
        ("rows = [\n  one\n  for one in x\n]", ["one"]),
        ("first_step = last_seen_ns = founder = 1", []),
        ("print(one, found.at)", []),
    ],
)
def test_every_kind_of_binding_is_seen_and_short_comprehensions_are_free(names, code, vague):
    words = [
        binding.name
        for binding in names.bindings_of(Path("x.py"), code)
        if binding.word in names.BANNED | names.RARE
    ]
    assert sorted(words) == sorted(vague)


def test_a_folder_may_lose_vague_names_and_never_gain_one(names, tmp_path, capsys):
    written(tmp_path, "lab/engines/a.py", "one = found = 1\n")
    written(tmp_path, "lab/rooms/nan/watch/b.py", "told = 1\n")
    assert names.main([]) == 1, "without a table nothing is allowed"
    assert names.main(["--write"]) == 0 and names.main([]) == 0
    assert json.loads(names.TABLE.read_text()) == {
        "lab/engines": {"banned": 2, "rare": 0},
        "lab/rooms/nan": {"banned": 1, "rare": 0},
    }
    written(tmp_path, "lab/engines/a.py", "one = found = given = 1\n")
    assert names.main([]) == 1 and "lab/engines: 3 banned names, at most 2" in capsys.readouterr().err
    names.main(["--write"])
    assert names.main([]) == 1, "--write never raises a row"
    written(tmp_path, "lab/engines/a.py", "one = 1\n")
    assert names.main([]) == 1, "a name that went must leave the table"
    names.main(["--write"])
    assert names.main([]) == 0
    written(tmp_path, "lab/engines/a.py", "container = 1\n")
    written(tmp_path, "lab/rooms/nan/watch/b.py", "summary = 1\n")
    names.main(["--write"])
    assert names.main([]) == 0 and not names.TABLE.exists()


def test_rare_words_count_beyond_their_share(names, tmp_path):
    written(tmp_path, "lab/a.py", "first = 1\n" + "".join(f"row_{index} = 1\n" for index in range(199)))
    assert names.main([]) == 0
    written(tmp_path, "lab/a.py", "first = 1\n" + "".join(f"row_{index} = 1\n" for index in range(198)))
    assert names.main([]) == 1


def test_a_folder_may_not_outgrow_its_budget_nor_its_last_size(tmp_path, monkeypatch, capsys):
    shape = script("shape")
    monkeypatch.setattr(shape, "TABLE", tmp_path / "shape.json")
    monkeypatch.setattr(shape, "BUDGETS_KB", {"lab/cli + lab/terminal": 1, "lab/stats": 1})
    check = [str(tmp_path), "--check"]
    written(tmp_path, "lab/cli/a.py", "x" * 600)
    written(tmp_path, "lab/terminal/a.js", "x" * 400)
    written(tmp_path, "lab/terminal/notes.md", "x" * 4000)
    assert shape.main(check) == 0, "text is not code"
    written(tmp_path, "lab/terminal/a.js", "x" * 401)
    assert shape.main(check) == 1 and "lab/cli + lab/terminal: 1.0 KB" in capsys.readouterr().out
    shape.main([str(tmp_path), "--write"])
    assert shape.main(check) == 0 and json.loads(shape.TABLE.read_text()) == {"lab/cli + lab/terminal": 1001}
    written(tmp_path, "lab/terminal/a.js", "x" * 402)
    shape.main([str(tmp_path), "--write"])
    assert shape.main(check) == 1, "--write never raises a row"
    written(tmp_path, "lab/terminal/a.js", "")
    shape.main([str(tmp_path), "--write"])
    assert shape.main(check) == 0 and not shape.TABLE.exists()
