"""A replay run from folder to findings."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.errors import BadDataError
from lab.rooms.kernels.replay.analysis import analyse_replay
from tests.rooms.kernels.replay.made import a_plan, a_raw


def test_the_analysis_writes_its_rows_and_reports_a_failed_step(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(a_plan()))
    assert analyse_replay(tmp_path, tmp_path).status == "fail"
    (tmp_path / "replay/replay_raw.json").write_bytes(msgspec.json.encode(a_raw()))
    found = analyse_replay(tmp_path, tmp_path / "out")
    rows = json.loads((tmp_path / "out/replay.json").read_text())["rows"]
    assert {(row["sig_id"], row["position"]) for row in rows} == {("a", 0), ("a", 1), ("b", 0)}
    assert len((tmp_path / "out/tables/replay.csv").read_text().splitlines()) == 4
    assert "100.00 % of kernel time" in found.terminal


def test_a_torn_result_is_an_error_in_words(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(a_plan()))
    (tmp_path / "replay/replay_raw.json").write_bytes(msgspec.json.encode(a_raw())[:-20])
    with pytest.raises(BadDataError, match="replay_raw"):
        analyse_replay(tmp_path, tmp_path)
