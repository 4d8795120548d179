"""What a sweep will be able to show."""

from __future__ import annotations

import math

import pytest

from lab.rooms.sweep.plan import design_note, detectable_sd


@pytest.mark.parametrize(("repeats", "dunnett_sd"), [(3, 2.4), (4, 2.0)])
def test_the_limit_lies_just_above_dunnetts(repeats, dunnett_sd):
    assert dunnett_sd < detectable_sd(8, repeats) < 1.1 * dunnett_sd + 0.05


def test_one_repeat_shows_nothing_and_more_repeats_show_more():
    assert math.isinf(detectable_sd(8, 1))
    limits = [detectable_sd(8, repeats) for repeats in range(2, 12)]
    assert limits == sorted(limits, reverse=True)
    assert "cannot tell" in (design_note(8, 1) or "") and design_note(1, 5) is None
    assert "3 repeats of 8 settings" in (design_note(8, 3) or "")
