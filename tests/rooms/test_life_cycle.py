"""A room comes and goes by its folder and its entry in the registry, and by nothing else."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cli.registry import ROOMS, smoke_runs
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples/own_room"

# Each command in a process of its own would cost as many starts of Python.
COMMANDS = """
import json, sys
from lab.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words}: exit code {end.code}")
"""


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of what `lab` runs from."""
    for name in ("lab", "images"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run_lab(tree: Path, *commands: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(tree)}
    argv = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


def entry_of(text: str, room: str) -> tuple[int, int]:
    """First and last line of a room's entry in the registry."""
    for node in ast.walk(ast.parse(text)):
        is_entry = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Room"
        if is_entry and ast.literal_eval(node.args[0]) == room:
            return node.lineno, node.end_lineno
    raise AssertionError(f"no entry of {room!r}")


def test_a_room_is_added_by_a_folder_and_an_entry_and_runs_to_its_page(tree, tmp_path):
    registry = tree / "lab/cli/registry.py"
    shutil.copytree(EXAMPLE / "copyrate", tree / "lab/rooms/copyrate")
    entry = (EXAMPLE / "entry.txt").read_text()
    registry.write_text(registry.read_text().replace("ROOMS = (\n", "ROOMS = (\n" + entry))
    done = run_lab(
        tree, ["--help"], ["run", "--help"], ["run", "-o", "run", "copyrate", "--mib", "7"], cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Copy memory, and say how fast.") == 1 and "A copy of 7 MiB" in done.stdout
    assert "A copy of 7 MiB" in (tmp_path / "run/report.html").read_text()
    again = run_lab(
        tree, ["run", "-o", "other", "copyrate", "--mib", "3"], ["analyze", "other"], cwd=tmp_path
    )
    assert again.returncode == 0 and again.stdout.count("A copy of 3 MiB") == 2, again.stderr


@pytest.mark.parametrize("room", [room.name for room in ROOMS])
def test_a_room_is_removed_by_its_folder_and_its_entry_and_the_others_still_plan(tree, tmp_path, room):
    shutil.rmtree(tree / "lab/rooms" / room)
    registry = tree / "lab/cli/registry.py"
    lines = registry.read_text().splitlines(keepends=True)
    first, last = entry_of("".join(lines), room)
    registry.write_text("".join([*lines[: first - 1], *lines[last:]]))
    others = [["run", "--dry-run", *words] for name, words in smoke_runs().items() if name != room]
    done = run_lab(tree, ["--help"], ["run", "--help"], ["doctor"], *others, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("room ") >= len(others) and f"room {room}," not in done.stdout
    for name, text in next(one.run for one in ROOMS if one.name == room).items():
        assert f"  {name}  " not in done.stdout and text not in done.stdout


@pytest.mark.parametrize("room", [room.name for room in ROOMS])
def test_what_tests_a_room_lies_in_its_folder(room):
    """So that a room's tests go with it: no test outside imports the room or its tests."""
    prefixes = (f"lab.rooms.{room}", f"tests.rooms.{room}")
    strangers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if not path.is_relative_to(ROOT / "tests/rooms" / room)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefixes)
    }
    assert strangers == set()
