"""What the samples beside a trial say of its GPUs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numpy")
from lab.power.sampling import COLUMNS, SAMPLES, SUMMARY
from lab.rooms.trials.analyze import sensors

ABSENT = {"temperature_c": None, "sm_clock_mhz": None, "throttled": None}


def sampled(folder, *rows):
    """rows: SM clock, temperature and throttle bits; an empty text is not reported."""
    lines = [
        f"{at},{at % 2},GPU-{at % 2},{clock},,,{heat},{bits}" for at, (clock, heat, bits) in enumerate(rows)
    ]
    (folder / SAMPLES).write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    (folder / SUMMARY).write_text(json.dumps({"interval_s": 0.25, "samples": len(rows)}))
    return sensors(folder)


def test_the_highest_temperature_the_median_clock_and_any_throttling(tmp_path):
    seen = sampled(tmp_path, ("900", "41", "0"), ("1000", "43", "64"), ("1100", "42", "1"))
    assert seen == {"temperature_c": 43.0, "sm_clock_mhz": 1000.0, "throttled": True}


def test_what_is_not_reported_is_none_and_not_zero(tmp_path):
    assert sensors(tmp_path) == {}
    assert sampled(tmp_path) == ABSENT == sampled(tmp_path, ("", "", ""))
    assert sampled(tmp_path, ("900", "", "1")) == {**ABSENT, "sm_clock_mhz": 900.0, "throttled": False}
