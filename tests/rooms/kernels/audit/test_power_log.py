"""Power logs without readings, above the limit, or of another hour."""

from __future__ import annotations

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.power_log import Span, of_power_log


def test_a_power_log_with_no_readings_or_of_another_hour_is_refused(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text(
        "timestamp,gpu,power_w\n"
        + "".join(f"2026-02-06 17:00:0{i}.0,0,{w}\n" for i, w in enumerate(("0", "N/A", "100", "120")))
    )
    checks = of_power_log(path, [Span("the run", 2e9, 2e9 + 5)], 110.0)
    assert [check.verdict for check in checks] == [REFUSED, REFUSED, OK, REFUSED]
    assert checks[0].factors["none"] == 2
    assert "cannot have measured it" in checks[-1].what
