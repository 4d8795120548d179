"""Largest magnitudes, and their share of what a type can hold."""

from __future__ import annotations

import numpy
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.guard.step import Headroom  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402


@pytest.mark.parametrize(("largest", "is_near"), [(40_000.0, True), (30_000.0, False)])
def test_a_magnitude_is_told_with_its_share_of_the_range(largest, is_near):
    headroom = Headroom(0)
    headroom.met("forward", [torch.float16], numpy.array([largest]))
    text = f"activation in float16: largest {largest:.4g}, {largest / 65504:.1%} of what the type can hold"
    assert headroom.sentences() == [text] and headroom.sentences(0.5) == [text] * is_near


def test_growing_gradients_are_followed_and_not_forecast():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with nan.guard(model, optimizer) as g:
        for step in range(20):
            optimizer.zero_grad()
            (model(x(8, 4)).sum() * 2.0**step).backward()
            optimizer.step()
    assert g.status == "clean"
    kinds = {kind for kind, _ in g.headroom.peaks}
    assert kinds == {"activation", "gradient", "weight"}, "SGD without momentum has no state"
    assert not any("step" in text for text in g.headroom.sentences()), "no forecast"


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this torch has no float8")
def test_a_cast_that_saturates_is_visible():
    class Casts(torch.nn.Module):
        def forward(self, given):
            return (given * 1e6).to(torch.float8_e4m3fn)

    with torch.no_grad(), nan.watch(Casts()) as w:
        w.model(torch.ones(8))
    # Up to torch 2.11 such a cast gives NaN, from 2.12 on the largest number.
    assert w.status == "bad" or any("float8_e4m3fn" in note and "largest number" in note for note in w.notes)


def test_magnitudes_are_known_in_the_first_steps_and_then_in_every_eighth():
    due = [step for step in range(64) if Headroom(16).is_due(step)]
    assert due == [*range(32), 32, 40, 48, 56] and not Headroom(0).is_due(0)
