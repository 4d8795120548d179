"""`lab analyze` of a recording: the roofline as a sheet and as a picture."""

from __future__ import annotations

import csv

import pytest

from tests.command import lab
from tests.perfmodel.truths import CASES

pytestmark = pytest.mark.data


def test_a_recording_gets_a_sheet_and_a_picture(shared_data, tmp_path):
    done = lab("analyze", "-o", tmp_path, shared_data / CASES / "board_h100_fp32.json.gz")
    assert done.returncode == 0
    (row,) = csv.DictReader((tmp_path / "tables/roofline.csv").open())
    assert (row["op"], row["rate"]) == ("aten::mm", "fp32")
    assert float(row["percent_of_roof"]) == pytest.approx(73.4, abs=0.05)
    assert (tmp_path / "figures/roofline.png").stat().st_size > 10_000


def test_an_unknown_board_is_named(shared_data, tmp_path):
    lab("analyze", "-o", tmp_path, shared_data / CASES / "board_quadro_p1000.json.gz")
    assert "lab has no data sheet for this board" in (tmp_path / "report.html").read_text()
