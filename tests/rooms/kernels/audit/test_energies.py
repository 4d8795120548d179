"""Audits of an energy run."""

from __future__ import annotations

import msgspec
import pytest

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.energies import of_energy
from lab.rooms.kernels.energy.joules import evaluate
from tests.rooms.kernels.energy.made import a_plan, a_raw, a_window


def test_an_energy_run_is_audited_with_every_factor():
    raw = a_raw()
    checks = {check.name: check for check in of_energy(evaluate(a_plan(), raw), raw)}
    assert checks["closure"].factors["idle_w"] == 100.0
    assert checks["sensor updates"].verdict == OK
    raw.facts_before = {"power_limit_w": 100.0}
    refused = of_energy(evaluate(a_plan(), raw), raw)
    assert any(check.verdict == REFUSED and "limit" in check.what for check in refused)


@pytest.mark.parametrize(("joules", "verdict"), [(592.5, OK), (590.0, REFUSED), (540.0, REFUSED)])
def test_a_closure_beyond_ten_percent_is_refused_net_of_idle_too(joules, verdict):
    raw = a_raw(model=[msgspec.structs.replace(a_raw().model[0], window=a_window(joules))])
    checks = {check.name: check for check in of_energy(evaluate(a_plan(), raw), raw)}
    assert checks["closure"].verdict == verdict
