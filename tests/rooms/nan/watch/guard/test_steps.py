"""Which step a bad number belongs to, where backwards come before the first update."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.shared import before_update  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

NAN = float("nan")


@pytest.mark.skipif(not before_update.exists, reason="this torch has no hooks around updates")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("where", ["batch", "loss"])
@pytest.mark.parametrize(("step", "part"), [(0, 0), (0, 2), (1, 2)])
def test_parts_of_an_accumulated_step_are_one_step(given, where, step, part):
    """Of an optimizer that was not given, the first backwards are counted as steps until it updates."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with nan.guard(model, optimizer if given else None) as g:
        for number in range(3):
            optimizer.zero_grad()
            for at in range(4):
                spoils = (number, at) == (step, part)
                out = model(x(8, 4) * (NAN if spoils and where == "batch" else 1))
                (out.square().mean() * (NAN if spoils and where == "loss" else 1)).backward()
            optimizer.step()
    assert (g.step, g.first.step, g.first.stage) == (3, step, where), g.sentence()
    assert sorted(bad.number for bad in g.steps) == [*range(step, 3)]
