"""`lab nan analyze` as a person types it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")
from lab.cli.main import cli
from lab.errors import MissingError
from tests.rooms.nan.folders import published


def test_the_command_leaves_a_recording_alone_and_says_where_its_page_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    published(tmp_path / "theirs", "baseline")
    before = sorted((tmp_path / "theirs").iterdir())
    done = CliRunner().invoke(cli, ["nan", "analyze", "theirs", "--json", "-q"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"][-1] == "experiments/theirs_analysis/report.html"
    assert sorted((tmp_path / "theirs").iterdir()) == before
    assert isinstance(CliRunner().invoke(cli, ["nan", "analyze", "nowhere"]).exception, MissingError)
