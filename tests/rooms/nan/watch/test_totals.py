"""Running totals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
import numpy as np  # noqa: E402

import lab.nan  # noqa: E402
from lab.rooms.nan.watch import explain as totals  # noqa: E402
from lab.rooms.nan.watch.count import KINDS  # noqa: E402
from lab.rooms.nan.watch.explain import Step  # noqa: E402
from lab.rooms.nan.watch.forward import Seen  # noqa: E402
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


def test_sums_of_counts_that_are_all_known_are_those_of_a_look_at_each():
    random = np.random.default_rng(0)
    index, put_out = random.integers(-1, 6, 20), random.random(6) < 0.5
    labels, sizes = [(0, 0, "")] * 20, np.ones(20)
    forwards = [random.integers(0, 9, (6, len(KINDS))).astype(float) for _ in range(5)]

    def told(settled):
        part = totals.RunningTotals("forward", labels, ["float16"] * 20, sizes)
        steps = [Step(n, "forward", 0) for n in range(5)]
        for step, counts in zip(steps, forwards, strict=True):
            part.add(step, Seen(labels, [0] * 20, index, counts, put_out, []), None)
        settled(part)
        return [step.totals for step in steps], part.counts.tolist()

    def by_a_look_at_each(part):
        stacked = np.stack(forwards)
        for (step, *_), found in zip(part._waiting, totals._by_forward(stacked[:, put_out]), strict=True):
            step.set_totals(found)
        rows = np.concatenate([totals._summed(stacked), totals.NOT_COUNTED])
        totals.add_counts(part._counts, rows[index])
        part._waiting.clear()

    assert told(totals.RunningTotals.settle) == told(by_a_look_at_each)
