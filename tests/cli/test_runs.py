"""`lab runs`: what a folder or a manifest is called commands no terminal."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lab.cli.runs import runs
from lab.errors import BadDataError
from tests.core.test_manifest import a_run

EVIL = "evil\x1b[31m\nrun_that_is_not_there"


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / EVIL
    a_run(run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest |= {"room": EVIL, "id": EVIL, "created_utc": EVIL}
    (run / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


@pytest.mark.parametrize("words", [("list", ""), ("show", EVIL)], ids=["list", "show"])
def test_hostile_names_stay_on_their_line(folder, words):
    command, name = words
    done = CliRunner().invoke(runs, [command, str(folder / name)], color=True, catch_exceptions=False)
    assert done.exit_code == 0 and "evil" in done.stdout
    assert "\x1b" not in done.stdout and "\nrun_that" not in done.stdout


def test_a_damaged_run_is_a_line_among_the_others(folder):
    a_run(folder / "whole")
    (folder / EVIL / "manifest.json").write_text("{")
    done = CliRunner().invoke(runs, ["list", str(folder)])
    first, second = done.stdout.splitlines()
    assert "unreadable: cannot read the manifest" in first and second.startswith(str(folder / "whole"))
    assert isinstance(done.exception, BadDataError) and done.exception.problem == "1 of 2 runs cannot be read"
    rows = json.loads(CliRunner().invoke(runs, ["list", "--json", str(folder)]).stdout)
    assert "error" in rows[0] and rows[1]["steps"]
