"""A forward read by its template gives what reading event by event gives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

import lab.nan  # noqa: E402
from lab.rooms.nan.workload.generate import generate  # noqa: E402
from tests.rooms.nan.watch.models import prompt, tiny  # noqa: E402
from tests.rooms.nan.watch.test_recorder import NoTemplates  # noqa: E402


def test_a_forward_read_by_its_template_gives_what_reading_event_by_event_gives():
    model = tiny("auto")
    ids, mask = prompt()
    slow, fast = lab.nan.watch(model), lab.nan.watch(model)
    slow._templates = NoTemplates()
    generate(model, ids, mask, 5, slow)
    generate(model, ids, mask, 5, fast)
    assert fast._templates["decode"] is not None
    assert [step.totals for step in fast.steps] == [step.totals for step in slow.steps]
    sums = [
        [(t.module, t.side, t.leaf, t.phase, t.calls, t.counts.tolist()) for t in w.totals()]
        for w in (slow, fast)
    ]
    assert sums[0] == sums[1]


def test_a_tensor_that_was_one_and_is_two_now_is_not_read_by_the_old_template():
    model = nn.Sequential(nn.Hardtanh(), nn.Dropout(0.5))
    fast, slow = lab.nan.watch(model), lab.nan.watch(model)
    slow._templates = NoTemplates()
    for w in (slow, fast):
        with torch.no_grad(), w:
            for training in (True, False, False, True, True):
                model.train(training)
                torch.manual_seed(0)
                model(torch.full((1, 16), 1e-41))
    assert [step.totals for step in fast.steps] == [step.totals for step in slow.steps]
    assert [step.totals["subnormal"] for step in fast.steps[1:3]] == [16, 16], (
        "one tensor, put out by two modules"
    )


def test_a_forward_with_another_structure_is_read_one_by_one_and_becomes_the_next_template():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.more = nn.Linear(2, 2), False

        def forward(self, x, extra=None):
            y = self.first(x)
            return (y, self.first(y)) if self.more else (y,)

    model = Grows()
    with torch.no_grad(), lab.nan.watch(model, counter="plain") as w:
        for model.more, extra in [
            (False, None),
            (False, None),
            (True, None),
            (True, torch.ones(2)),
            (False, (torch.ones(2), 1)),
        ]:
            model(torch.ones(1, 2), extra=extra)
        one, whole = torch.ones(2), torch.ones(2, dtype=torch.long)
        for extra in [(one,), (one,), (one, torch.ones(2)), whole, whole, one]:
            model(torch.ones(1, 2), extra=extra)
    leaves = {(t.module, t.side, t.leaf): t.calls for t in w.totals()}
    given = [leaves["", "in", leaf] for leaf in ("extra", "extra[0]", "extra[1]")]
    assert given == [2, 4, 1]
    assert leaves["first", "in", "args[0]"] == 13
