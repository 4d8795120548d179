"""torch.compile compiles a program's frames under a watch, and none of the watch's own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
convert_frame = pytest.importorskip("torch._dynamo.convert_frame")
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402

STEPS = 12  # more than the versions of one frame that dynamo compiles


class Broken(nn.Module):
    """Part of it is compiled, part is not: the calls of its parts go through the watch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        hidden = self.first(x)
        torch._dynamo.graph_break()
        return self.last(torch.relu(hidden))


def losses(way, guarded):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Broken()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = (
        torch.amp.GradScaler("cpu", enabled=way == "scaled") if hasattr(torch.amp, "GradScaler") else None
    )
    forward = torch.compile(model, backend="eager") if way == "forward" else model
    update = torch.compile(optimizer.step, backend="eager") if way == "update" else optimizer.step

    def step(x):
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        if way == "scaled" and scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            update()
        return loss.detach()

    if way in ("whole", "scaled"):
        step = torch.compile(step, backend="eager")
    guard = nan.guard(model, optimizer) if guarded else contextlib.nullcontext()
    with guard as g:
        found = [float(step(torch.randn(4, 8))) for _ in range(STEPS)]
    if guarded:
        assert g.step == STEPS and g.status in ("clean", "partly-seen") and not g.notes
    return found


def own_frames():
    """The files of lab of which dynamo has compiled frames since it was reset."""
    package = str(Path(nan.__file__).parent)  # a clone may lie in a folder of that name, too
    files = {code.co_filename for ref in convert_frame.input_codes.seen if (code := ref()) is not None}
    return sorted(file for file in files if file.startswith(package))


@pytest.mark.parametrize("way", ["whole", "scaled", "update", "forward"])
def test_nothing_of_the_guard_is_compiled(way):
    with warnings.catch_warnings(record=True) as usual:
        warnings.simplefilter("always")
        expected = losses(way, guarded=False)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        assert losses(way, guarded=True) == expected
    assert own_frames() == []
    texts = {str(one.message) for one in usual}
    assert [
        str(one.message) for one in met if "Dynamo" in str(one.message) and str(one.message) not in texts
    ] == []


LOADED_LATER = """
import torch
from torch import nn
from lab import nan
from tests.rooms.nan.watch import test_unseen_by_compile as tests
with nan.watch(nn.Linear(2, 2)):
    tests.losses("forward", guarded=True)
print(tests.own_frames())
"""


def test_a_guard_whose_code_is_loaded_while_a_watch_is_open_is_not_compiled():
    """In a process of its own: here the guard's modules are loaded already."""
    done = subprocess.run([sys.executable, "-c", LOADED_LATER], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return torch.relu(x @ self.weight)


@pytest.mark.parametrize("compiled_before", [True, False])
def test_a_module_that_compiles_itself_runs_compiled_while_it_is_watched(compiled_before):
    """The watch calls a leaf past torch's own wrapper, in which a compiled module takes its turn."""
    calls = []

    def backend(graph, _):
        return lambda *args: calls.append("compiled") or graph(*args)

    model, x = nn.Sequential(Product(), nn.Linear(4, 4)), torch.ones(2, 4)
    if compiled_before:
        model[0].compile(backend=backend)
    with torch.no_grad(), nan.watch(model) as watch:
        model(x), model(x)
        if not compiled_before:
            model[0].compile(backend=backend)
        model(x), model(x)
    assert len(calls) == (4 if compiled_before else 2) and watch.forwards == 4
