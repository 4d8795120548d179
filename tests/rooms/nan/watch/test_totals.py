"""Running totals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

import lab.nan  # noqa: E402
from lab.rooms.nan.watch.count import KINDS  # noqa: E402
from tests.rooms.nan.watch.models import Body  # noqa: E402


def test_totals_of_many_forwards_are_the_sums_of_each():
    body, largest = Body(), []
    with torch.no_grad(), lab.nan.watch(body, counter="plain") as w:
        for n in range(7):
            body(torch.full((1, 4), float("inf") if n == 4 else n * 1e-41))
            largest.append(w.steps[-1].totals["absmax"])
    outputs = [total for total in w.totals() if total.side == "out"]
    for kind in range(3):  # first, second and the model itself; second's output is the model's, too
        each = sum(step.totals[KINDS[kind]] for step in w.steps)
        own = [total.counts[kind] for total in outputs if total.module != "second"]
        assert sum(own) == each
    given = next(total for total in w.totals() if (total.module, total.side) == ("", "in"))
    assert given.counts.tolist()[:4] == [0, 4, 0, 5 * 4] and given.calls == 7 and given.first_bad_step == 4
    assert max(total.counts[4] for total in outputs) == max(largest)
