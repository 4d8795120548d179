"""A forward is counted before the program can write to it, and what failed is said."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.count import beginning  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import small, x  # noqa: E402

NAN = float("nan")


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()

    def forward(self, given):
        return self.inner(given[1:])


@pytest.mark.parametrize("model", [small, Views], ids=["itself", "a part"])
@pytest.mark.parametrize("how", ["numpy", "data", "copied to"])
def test_an_input_that_is_filled_anew_is_counted_before_it_is(how, model):
    numbers = np.zeros((9, 4), np.float32)
    buffer = torch.from_numpy(numbers)
    with nan.watch(model()) as w, torch.no_grad():
        for number in range(10):
            values = x(9, 4) * (NAN if number == 5 else 1)
            if how == "numpy":
                numbers[:] = values.numpy()
            else:
                (buffer.data if how == "data" else buffer).copy_(values)
            w.model(buffer)
    assert w.status == "bad" and w.first.kind == "given" and w.first_step.number == 5
    assert [step.number for step in w.steps if step.bad_leaves] == [5] and w.not_seen() == []


def test_what_the_program_writes_into_an_output_is_not_the_models():
    with nan.watch(small()) as w, torch.no_grad():
        for _ in range(10):
            w.model(x(8, 4)).numpy().fill(NAN)
    assert w.status == "clean"


class Last(nn.Module):
    def forward(self, hidden):
        return hidden[:, -1]


class Spoils(nn.Module):
    bad = False

    def forward(self, hidden):
        last = torch.tensor([1.0, 1.0, NAN if self.bad else 1.0])
        return hidden * last[:, None]


@pytest.mark.parametrize("written", [NAN, 0.0])
def test_what_the_output_is_a_part_of_does_not_wait_either(written):
    """The program writes to its part by numpy, which no version shows."""
    model = nn.Sequential(nn.Linear(4, 4), Spoils(), Last())
    with nan.watch(model) as w, torch.no_grad():
        for number in range(8):
            model[1].bad = number == 6 and written == 0
            out = model(x(2, 3, 4))
            if number == 6:
                out.numpy()[:] = written
    assert w.first is None if written else w.first.module == "1"


def test_a_tensor_written_before_it_came_is_no_overwritten_one():
    model = small()
    with nan.watch(model) as w, torch.no_grad():
        model(x(8, 4))
        model((x(8, 4) * 1).mul_(2))
    assert w.status == "clean", w.not_seen()


def test_a_watch_says_why_tensors_were_not_counted():
    model = small()
    with nan.watch(model) as w, torch.no_grad():
        count = w._count
        w._count = lambda tensors: count(tensors) if len(tensors) < 3 and tensors[0].shape[-1] < 8 else 1 / 0
        w._begin_count = beginning(w._count)
        for _ in range(4):
            model(x(2, 4))
    assert w.status == "partly-seen" and any("ZeroDivisionError" in one for one in w.not_seen())


@pytest.mark.parametrize("observer", [nan.watch, nan.guard])
def test_a_program_may_free_and_resize_what_its_modules_gave(observer):
    model = small()
    with observer(model) as w:
        for _ in range(5):
            hidden = model[0](x(8, 4))
            model[2](model[1](hidden)).sum().backward()
            hidden = hidden.detach()
            (hidden.untyped_storage() if hasattr(hidden, "untyped_storage") else hidden.storage()).resize_(0)
    assert w.status == "clean"  # neither is, if a forward or a step could not be counted


def test_memory_that_is_freed_inside_a_forward_is_not_clean_and_not_read():
    class Frees(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, given):
            hidden = self.first(given)
            out = self.second(hidden)
            kept = hidden.untyped_storage() if hasattr(hidden, "untyped_storage") else hidden.storage()
            kept.resize_(0)
            return out

    model = Frees()
    for observer in (nan.watch, nan.guard):
        with observer(model) as w, torch.no_grad():
            for _ in range(5):
                model(x(8, 4))
        assert w.status == "partly-seen" and "freed before" in " ".join(w.not_seen())
