"""Logs of one run's processes as one; device functions that repeat a kernel's entries."""

from __future__ import annotations

from lab.rooms.nan.nixnan.log import instructions
from lab.rooms.nan.nixnan.reading.parse import parse
from lab.rooms.nan.nixnan.terminal import function_rows
from tests.rooms.nan.nixnan import nixgen
from tests.rooms.nan.nixnan.examples import REPEATED, TWINS
from tests.rooms.nan.nixnan.nixgen import error


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


def test_a_device_function_that_repeats_a_kernel_is_counted_once_and_said(made):
    found = made(*TWINS, *REPEATED)
    assert found.twins == {"__cuda_sm70_shflsync_down_p": "void kgemm_4bit_inference_naive"}
    (row,) = function_rows(found, instructions(found))
    assert (row["sites"], row["lines"]) == (5, 5)
    assert (
        found.categories == {"quantized gemm": 10}
        and found.site_count == 10
        and found.integrity == "complete"
    )


def test_a_device_function_with_an_entry_of_its_own_stays(made):
    found = made(*TWINS, *REPEATED, error("NaN", "FADD R9, R9, R9", function="__cuda_sm70_shflsync_down_p"))
    assert found.twins == {} and found.categories["device function"] == 6
