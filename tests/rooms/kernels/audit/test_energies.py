"""Audits of an energy run."""

from __future__ import annotations

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.energies import of_energy
from lab.rooms.kernels.energy.joules import evaluate
from tests.rooms.kernels.energy.made import a_plan, a_raw


def test_an_energy_run_is_audited_with_every_factor():
    raw = a_raw()
    checks = {check.name: check for check in of_energy(evaluate(a_plan(), raw), raw)}
    assert checks["closure"].factors["idle_w"] == 100.0
    assert checks["sensor updates"].verdict == OK
    raw.facts_before = {"power_limit_w": 100.0}
    refused = of_energy(evaluate(a_plan(), raw), raw)
    assert any(check.verdict == REFUSED and "limit" in check.what for check in refused)
