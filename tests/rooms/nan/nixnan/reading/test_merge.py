"""Logs of one run's processes as one."""

from __future__ import annotations

from lab.rooms.nan.nixnan.reading.parse import parse
from tests.rooms.nan.nixnan import nixgen


def test_several_logs_of_one_run_add_up(tmp_path):
    one, two = (
        [nixgen.error(), nixgen.error(operand=1)],
        [nixgen.error(), nixgen.error(sass="FMUL R1, R2, R3")],
    )
    paths = [nixgen.write(tmp_path / f"{n}.nixnan", nixgen.log(*lines)) for n, lines in enumerate((one, two))]
    child = nixgen.write(tmp_path / "child.nixnan", nixgen.BANNER[:1])
    found = parse([*paths, child])
    assert (found.error_lines, found.site_count, found.integrity, found.contexts) == (4, 3, "complete", 2)
    assert found.report["f32"]["NaN"] == {"unique": 4, "repeats": 28} and found.counts["f32"]["NaN"] == 4
    assert next(site for site in found.sites if site.operand == 0 and "FADD" in site.sass).lines == 2
