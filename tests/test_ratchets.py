"""What `make lint` refuses: vague names, phrases that read as translated, folders that grow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import script


@pytest.fixture
def names(tmp_path, monkeypatch):
    module = script("names")
    monkeypatch.setattr(module, "ROOT", tmp_path)
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


def test_no_vague_name_is_let_through(names, tmp_path, capsys):
    written(tmp_path, "lab/engines/a.py", "one = found = 1\n")
    assert names.main([]) == 1 and "lab/engines/a.py:1: variable one" in capsys.readouterr().out
    assert names.main(["lab/rooms"]) == 0, "only what was asked for"
    written(tmp_path, "lab/engines/a.py", "container = 1\n")
    assert names.main([]) == 0


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("lab/a.py", '"""What is no file."""\n', 1),
        ("lab/a.py", "rows = 1  # Nobody asks\n", 1),
        ("lab/a.py", 'text = f"{x} are no runs"\n', 1),
        ("lab/a.py", "rows = [word for word in words]\n", 0),
        ("lab/a.py", '"""It is no longer read."""\n', 0),
        ("docs/a.md", "said in words, and\nrows are no runs\n", 2),
        ("docs/a.md", "this notes\n", 0),
    ],
)
def test_phrases_are_looked_for_in_texts_and_not_in_code(names, tmp_path, path, text, count):
    written(tmp_path, path, text)
    assert len(list(names.phrases_of(Path(path), text))) == count
    assert names.main([]) == bool(count)


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
