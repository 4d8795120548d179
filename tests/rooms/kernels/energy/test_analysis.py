"""An energy run from folder to findings."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.energy.analysis import analyse_energy
from tests.rooms.kernels.energy.made import a_plan, a_raw


def test_the_analysis_writes_json_and_csv_and_reports_a_step_that_left_nothing(tmp_path):
    (tmp_path / "energy").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(a_plan()))
    assert analyse_energy(tmp_path, tmp_path).status == "fail"
    (tmp_path / "energy/energy_raw.json").write_bytes(msgspec.json.encode(a_raw()))
    found = analyse_energy(tmp_path, tmp_path / "out")
    assert [path.name for path in found.files] == ["energy.json", "energy.csv"]
    assert all(path.stat().st_size for path in found.files)
