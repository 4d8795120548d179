"""Published joules beside the log that should have measured them."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.folder import audit_folder
from lab.rooms.kernels.audit.power_log import PublishedRun, of_power_log


def test_a_power_log_with_no_readings_or_of_another_hour_is_refused(tmp_path):
    path = tmp_path / "power.csv"
    rows = (f"2026-02-06 17:00:0{i}.0,0,{w}\n" for i, w in enumerate(("0", "N/A", "100", "120")))
    path.write_text("timestamp,gpu,power_w\n" + "".join(rows))
    checks = of_power_log(path, [PublishedRun("the run", 2e9, 2e9 + 5)], 110.0)
    assert [check.verdict for check in checks] == [REFUSED, REFUSED, REFUSED]
    assert checks[0].factors["none"] == 2 and "before the window begins" in checks[-1].what
    path.write_text("when,watts\n1,2\n")
    assert "cannot be read" in of_power_log(path, [], None)[0].what


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("true_log", OK),
        ("true_log_nvidia_smi", OK),
        ("tenth", REFUSED),
        ("twice", REFUSED),
        ("milliwatts", REFUSED),
        ("no_sample_in_run", REFUSED),
        ("ends_early", REFUSED),
        ("stuck", REFUSED),
    ],
)
def test_published_joules_must_be_the_logs_integral(shared_data, name, verdict):
    checks = audit_folder(shared_data / "cases/box/audit" / name)
    assert (REFUSED if any(check.verdict == REFUSED for check in checks) else OK) == verdict
