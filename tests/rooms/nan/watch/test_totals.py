"""Running totals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
import lab.nan  # noqa: E402
from lab.rooms.nan.watch import totals  # noqa: E402
from tests.rooms.nan.watch.models import Body  # noqa: E402


def test_totals_of_many_forwards_are_those_of_each(monkeypatch):
    def run(most):
        monkeypatch.setattr(totals, "MOST_WAITING", most)
        torch.manual_seed(0)
        body = Body()
        with torch.no_grad(), lab.nan.watch(body, counter="plain") as w:
            for n in range(7):
                body(torch.full((1, 4), float("inf") if n == 4 else n * 1e-41))
        return [step.totals for step in w.steps], [
            (t.counts.tolist(), t.calls, t.first_bad_step) for t in w.totals()
        ]

    assert run(1) == run(3) == run(100)
