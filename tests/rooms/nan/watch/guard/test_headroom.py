"""Largest magnitudes, and their share of what a type can hold."""

from __future__ import annotations

import numpy
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from lab.rooms.nan.guarded.read import read  # noqa: E402
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


class AbsorbsOne(torch.nn.Module):
    """Puts one value into its layer's output, and a finite number in place of it."""

    def __init__(self, value, dtype):
        super().__init__()
        self.layer, self.value = torch.nn.Linear(4, 4).to(dtype), value

    def forward(self, values):
        spoilt = self.layer(values).index_fill(0, torch.tensor(0), self.value)
        return torch.nn.Identity()(spoilt).nan_to_num(0.0, 0.0, 0.0)


@pytest.mark.parametrize("counter", ["bits", "norm", "plain"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_record_has_finite_figures_whatever_passed(tmp_path, counter, dtype):
    """JSON has no NaN and no infinity: a record with one cannot be read, and with it goes the verdict."""
    for value in (float("inf"), float("-inf"), float("nan"), torch.finfo(dtype).max):
        model = AbsorbsOne(value, dtype)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with nan.guard(model, optimizer, counter=counter, out=str(tmp_path)):
            model(torch.randn(3, 4).to(dtype)).float().mean().backward()
            optimizer.step()
    job = read([tmp_path])
    assert len(job.records) == 4 and not job.problems
