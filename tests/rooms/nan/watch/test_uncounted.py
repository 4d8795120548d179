"""What a model's code wipes by `.data` or numpy, which torch does not count, was there and is told."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.modules import may_write_uncounted  # noqa: E402

NAN = float("nan")


def by_data(hidden):
    hidden.data[hidden.isnan()] = 0


def by_numpy(hidden):
    hidden.detach().numpy()[:] = 0


class Wiper(nn.Module):
    """Its first module puts out NaN in one call; its own code wipes it before anybody else sees it."""

    def __init__(self, wipe):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.wipe = wipe

    def forward(self, given):
        hidden = self.first(given)
        self.cleaned(hidden)
        return self.last(hidden)

    def cleaned(self, hidden):
        return by_data(hidden) if self.wipe == "data" else by_numpy(hidden)


@pytest.mark.parametrize("way", ["data", "numpy"])
@pytest.mark.parametrize("around", [nan.watch, nan.guard])
def test_a_nan_that_is_wiped_inside_a_later_forward_is_seen(way, around):
    model = Wiper(way).eval()
    with torch.no_grad(), around(model) as found:
        for number in range(4):
            model(torch.full((2, 4), NAN) if number == 9 else torch.ones(2, 4))
            model.first.weight.data[0, 0] = NAN if number == 1 else 1.0
    assert found.status == "bad" and "first" in found.first.place


class Decorated(nn.Module):
    def decorate(forward):
        @functools.wraps(forward)
        def run(*args):
            return forward(*args)

        return run

    @decorate
    def forward(self, given):
        return next(iter([one.data.mul_(2) for one in [given]]))


class Reads(nn.Module):
    def forward(self, given):
        return torch.nan_to_num(given).masked_fill(given.isnan(), 0)

    def reset(self, other):
        other.weight.data.normal_()


def test_the_code_is_read_through_methods_functions_and_decorators():
    assert may_write_uncounted(Wiper) and may_write_uncounted(Decorated)
    assert not any(
        map(may_write_uncounted, (Reads, nn.Linear, nn.LSTM, nn.BatchNorm1d, nn.TransformerEncoder))
    )
