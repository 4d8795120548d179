"""Device functions that repeat a kernel's entries."""

from __future__ import annotations

from lab.rooms.nan.nixnan.log import instructions
from lab.rooms.nan.nixnan.terminal import function_rows
from tests.rooms.nan.nixnan.examples import REPEATED, TWINS
from tests.rooms.nan.nixnan.nixgen import error


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
