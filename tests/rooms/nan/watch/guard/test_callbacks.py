"""The guard as a callback: Hugging Face's own events, and Lightning's hooks as its documentation has them."""

from __future__ import annotations

import gc
import sys
import types

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab import nan  # noqa: E402
from lab.errors import MissingError  # noqa: E402
from lab.rooms.nan.watch import seam  # noqa: E402
from lab.rooms.nan.watch.watch import NonFiniteError  # noqa: E402
from tests.rooms.nan.watch.zoo_clean import x  # noqa: E402

NAN = float("nan")


class Divides(nn.Module):
    on = False

    def forward(self, given):
        return given / 0 if self.on else given


def model():
    return nn.Sequential(nn.Linear(4, 4), Divides(), nn.Linear(4, 4))


def patched():
    return seam.is_open()


class Trainer:
    """The loop of transformers' Trainer, with its real table of callbacks."""

    def __init__(self, model, callback, accumulate=1):
        trainer = pytest.importorskip("transformers.trainer_callback")
        self.model, self.accumulate = model, accumulate
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        self.state, self.control = trainer.TrainerState(), trainer.TrainerControl()
        self.handler = trainer.CallbackHandler([callback], model, None, self.optimizer, None)
        self.handler.train_dataloader = self.handler.eval_dataloader = None

    def train(self, steps=6, bad_at=None, breaks=False):
        self.control = self.handler.on_train_begin(None, self.state, self.control)
        for step in range(steps):
            self.control = self.handler.on_step_begin(None, self.state, self.control)
            self.model[1].on = step == bad_at
            for _ in range(self.accumulate):
                self.model(x(8, 4)).square().mean().backward()
            if breaks:
                raise KeyboardInterrupt
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.control = self.handler.on_step_end(None, self.state, self.control)
        self.control = self.handler.on_train_end(None, self.state, self.control)


@pytest.fixture
def hugging_face():
    pytest.importorskip("transformers")
    return nan.hugging_face_callback


def test_trainer_is_guarded_from_begin_to_end(hugging_face):
    callback = hugging_face()
    assert callback.guard is None
    Trainer(model(), callback, accumulate=2).train()
    assert callback.guard.status == "clean" and callback.guard.step == 6 and not patched()


def test_trainer_gets_the_first_producer(hugging_face):
    callback = hugging_face(on_bad="replay")
    Trainer(model(), callback).train(bad_at=3)
    first = callback.guard.first
    assert (first.stage, first.module, first.step) == ("forward", "1", 3)


def test_a_second_training_has_a_guard_of_its_own(hugging_face):
    callback = hugging_face()
    trainer = Trainer(model(), callback)
    trainer.train()
    before = callback.guard
    trainer.train(bad_at=2)
    assert callback.guard is not before and before.status == "clean" and callback.guard.first.step == 2


def test_raising_through_trainer_leaves_no_patch(hugging_face):
    callback = hugging_face(on_bad="raise")
    with pytest.raises(NonFiniteError, match="forward of 1"):
        Trainer(model(), callback).train(bad_at=2)
    assert not patched() and callback.guard.status == "bad"


def test_a_training_that_breaks_off_leaves_no_patch_once_it_is_gone(hugging_face):
    trainer = Trainer(model(), hugging_face())
    with pytest.raises(KeyboardInterrupt):
        trainer.train(breaks=True)
    assert patched()  # Trainer tells nobody
    del trainer
    gc.collect()
    assert not patched()


@pytest.fixture
def lightning(monkeypatch):
    """Lightning's module with the one class that the callback takes from it."""

    class Callback:
        """The hooks that a training calls, all without effect, as in lightning.pytorch.callbacks.Callback."""

        def setup(self, trainer, pl_module, stage): ...
        def on_train_start(self, trainer, pl_module): ...
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx): ...
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): ...
        def on_train_end(self, trainer, pl_module): ...
        def on_exception(self, trainer, pl_module, exception): ...
        def teardown(self, trainer, pl_module, stage): ...

    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lightning.pytorch"].Callback = Callback
    return nan.lightning_callback


def fit(module, callback, *, scaler=None, bad_at=None, fails=None):
    """The order of hooks of Lightning's fit with automatic optimization: the update runs a closure."""
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    trainer = types.SimpleNamespace(
        optimizers=[optimizer], precision_plugin=types.SimpleNamespace(scaler=scaler)
    )
    callback.setup(trainer, module, "fit")
    try:
        callback.on_train_start(trainer, module)
        for step in range(6):
            callback.on_train_batch_start(trainer, module, None, step)
            module[1].on = step == bad_at
            if step == fails:
                raise RuntimeError("out of memory")

            def closure():
                optimizer.zero_grad()
                loss = module(x(8, 4)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            callback.on_train_batch_end(trainer, module, None, None, step)
        callback.on_train_end(trainer, module)
    except BaseException as error:
        callback.on_exception(trainer, module, error)
        raise
    finally:
        callback.teardown(trainer, module, "fit")


def test_lightning_is_guarded_from_begin_to_end(lightning):
    callback = lightning()
    fit(model(), callback)
    assert callback.guard.status == "clean" and callback.guard.step == 6 and not patched()
    fit(model(), callback, bad_at=2)
    assert (callback.guard.first.module, callback.guard.first.step) == ("1", 2)


def test_lightnings_scaler_is_the_guards(lightning):
    scaler = types.SimpleNamespace(
        _per_optimizer_states={}, is_enabled=lambda: True, get_scale=lambda: 1024.0
    )
    callback = lightning()
    fit(model(), callback, scaler=scaler)
    assert callback.guard.training.scaling.scaler is scaler


@pytest.mark.parametrize(
    "options, fails, error", [({}, 3, RuntimeError), ({"on_bad": "raise"}, None, NonFiniteError)]
)
def test_a_lightning_training_that_breaks_off_leaves_no_patch(lightning, options, fails, error):
    callback = lightning(**options)
    with pytest.raises(error):
        fit(model(), callback, bad_at=4, fails=fails)
    assert not patched() and callback.guard.status == ("clean" if fails else "bad")


def test_a_missing_library_is_named(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingError, match=r"lightning\.pytorch, pytorch_lightning"):
        nan.lightning_callback()
