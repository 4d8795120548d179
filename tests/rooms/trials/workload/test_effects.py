"""Whether a cell changed anything: settings read back in the command, libraries that read its variables."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("pandas")
from lab.rooms.trials.cells import MITIGATIONS
from lab.rooms.trials.workload.effects import SETTINGS, effect_of
from tests.conftest import ROOT

pytestmark = pytest.mark.torch
PROGRAM = """
import torch
switch = torch.are_deterministic_algorithms_enabled() and not torch.backends.cuda.flash_sdp_enabled()
print("loss:", 1 if switch else "nan")
"""


def run(cwd, *words):
    command = [sys.executable, "-m", "lab", "run", "-q", "-o", "out", "trials", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}  # TF32 is a GPU's
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)
    with (cwd / "out/tables/trials.csv").open() as file:
        return json.loads(done.stdout), list(csv.DictReader(file)), done


def test_settings_take_effect_inside_the_command_and_an_inert_cell_is_not_compared(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    cells = ("--cell", "none", "--cell", "deterministic+flash_off", "--cell", "tf32_off")
    answer, rows, done = run(
        tmp_path, "-n", "1", *cells, "--fail", "nan in loss", "--json", "--", sys.executable, "train.py"
    )
    found = {row["cell"]: (row["verdict"], row["effect"][:2]) for row in rows}
    assert found == {
        "none": ("fail", ""),
        "deterministic-flash_off": ("pass", "ye"),
        "tf32_off": ("fail", "no"),
    }
    verdicts = {one["cell"]: one["verdict"] for one in answer["comparisons"]}
    assert verdicts["tf32_off"] == "no effect" and done.returncode == 1, done.stderr
    assert "nothing in the command reads what the cell sets" in " ".join(answer["verdict"])


def test_a_setting_that_no_process_could_take_is_an_error_and_no_pass(tmp_path):
    answer, rows, _ = run(tmp_path, "-n", "1", "--cell", "deterministic", "--json", "--", "true")
    assert rows[0]["verdict"] == "error" and "no Python process" in rows[0]["reason"]
    assert answer["cells"][0]["rate"] is None


def test_a_witness_that_is_damaged_is_none(tmp_path):
    (tmp_path / "1.json").write_text("{")
    assert effect_of(("deterministic",), (), tmp_path).startswith("no Python process")
    assert effect_of((), ("libcublas",), tmp_path) == "" == effect_of((), (), tmp_path)
    (tmp_path / "2.json").write_text('{"settings": {"deterministic": false}, "loaded": []}')
    assert effect_of(("deterministic",), (), tmp_path) == "torch does not have the setting deterministic"
    (tmp_path / "2.json").write_text('{"settings": {}, "loaded": ["libcublas"]}')
    assert effect_of((), ("libcublas",), tmp_path) == "yes"


def test_every_preset_names_known_settings_or_readers_and_says_what_it_changes():
    for name, one in MITIGATIONS.items():
        assert set(one.settings) <= set(SETTINGS) and one.changes, name
        assert not one.env or one.read_by or one.settings, name
