"""What tests of several rooms share."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lab.cli.main import cli


@pytest.fixture
def only(tmp_path, monkeypatch):
    """`lab analyze RECORDING --only SECTIONS -o out`; errors of lab come out as they are."""
    monkeypatch.chdir(tmp_path)

    def called(recording, names, *options):
        argv = ["analyze", str(recording), "--only", names, "-q", "-o", str(tmp_path / "out"), *options]
        return CliRunner().invoke(cli, argv, standalone_mode=False)

    return called
