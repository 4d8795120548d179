"""Shares of a format that a cast would lose, and largest magnitudes without a forecast."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.guard.headroom import FORMATS, Headroom, shares_of  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402


def test_shares_are_those_of_the_values_before_a_cast():
    values = torch.tensor([0.0, 0.0, 1.0, 448.0, 449.0, 2.0**-9, 2.0**-10, 2.0**-6, 7e4, 2.0**-8])
    found = {one.format: one for one in shares_of(values, "float32")}
    e4m3 = found["float8_e4m3fn"]
    assert e4m3.overflow == pytest.approx(2 / 10)
    assert e4m3.underflow == pytest.approx(1 / 8), "a tie goes to zero, and zeros underflow nowhere"
    assert e4m3.subnormal == pytest.approx(2 / 8)
    assert found["float16"].overflow == pytest.approx(1 / 10) and found["bfloat16"].overflow == 0


def test_the_limits_are_torchs_own():
    for name, (largest, normal, _) in FORMATS.items():
        dtype = getattr(torch, name, None)
        if dtype is not None:
            assert torch.finfo(dtype).max == largest and torch.finfo(dtype).tiny == normal


@pytest.mark.parametrize(("largest", "is_near"), [(40_000.0, True), (30_000.0, False)])
def test_a_magnitude_is_told_with_its_share_of_the_range(largest, is_near):
    headroom = Headroom(0)
    headroom.met("forward", "float16", largest)
    headroom.step_ends(SimpleNamespace(step=0), [])
    text = f"activation in float16: largest {largest:.4g}, {largest / 65504:.1%} of what the type can hold"
    assert headroom.sentences() == [text] and headroom.near_edge() == [text] * is_near


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
    assert {kind for kind, _ in g.headroom.shares} == kinds
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


def test_samples_become_rare_once_the_first_steps_are_over():
    headroom = Headroom(16)
    assert [step for step in range(600) if headroom.due(step)] == [0, 16, 32, 256, 512]
    assert not Headroom(0).due(0)


def test_magnitudes_are_known_in_the_first_steps_and_then_in_every_eighth():
    due = [step for step in range(64) if Headroom(16).magnitudes_due(step)]
    assert due == [*range(32), 32, 40, 48, 56] and not Headroom(0).magnitudes_due(0)
