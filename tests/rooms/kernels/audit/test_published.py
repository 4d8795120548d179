"""A published measurement is refused for its faults; a sound one passes."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.folder import audit_folder
from lab.rooms.kernels.audit.published import of_energy_report


def test_one_sample_and_zero_joules_are_refused():
    report = {
        "num_power_samples": 1,
        "energy_joules": {"total": 0.0},
        "power_watts": {"min": 101.0, "peak": 101.0},
    }
    assert [check.verdict for check in of_energy_report("r", report, None)] == [REFUSED, REFUSED, REFUSED]
    good = {
        "num_power_samples": 90,
        "energy_joules": {"total": 10.0},
        "power_watts": {"min": 90.0, "peak": 101.0},
    }
    assert [check.verdict for check in of_energy_report("r", good, 250.0)] == [OK]
    assert of_energy_report("r", good, 80.0)[-1].verdict == REFUSED


@pytest.mark.data
def test_the_published_measurement_is_refused_for_its_known_faults(shared_data):
    checks = audit_folder(shared_data / "energy_gtx1080ti", board_limit_w=250.0)
    refused = {check.name: check for check in checks if check.verdict == REFUSED}
    assert refused["counts are of kernels"].factors == {
        "counted": 38714,
        "runtime_calls": 21528,
        "launches": 17186,
    }
    assert refused["iterations counted are those divided by"].factors == {"rows": 53, "factor": 50}
    assert refused["launches divide into forwards"].factors == {"forwards": 25}
    whole = refused["parts add up to the whole"].factors
    assert (whole["published_pct"], whole["per_forward_pct"]) == (594.2, -72.2)
    assert json.dumps(msgspec.to_builtins(checks))
