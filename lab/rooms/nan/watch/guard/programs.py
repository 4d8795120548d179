"""The guard as a callback of Hugging Face's Trainer and of PyTorch Lightning.

    Trainer(..., callbacks=[hugging_face_callback()])
    lightning.Trainer(..., callbacks=[lightning_callback()])

Both begin when training begins and end when it ends, or when it breaks off: Lightning says so; Trainer does
not, so there the guard ends when it raises, when the next training begins, and with the callback. Neither
library is imported before its callback is made; what the callback needs of it is a class to inherit from, and
names of events.
"""

from __future__ import annotations

import importlib
import weakref
from typing import Any

from lab.errors import MissingError
from lab.rooms.nan.watch.guard.guard import Guard


class _Guards:
    """One guard per training; `guard` is the last one."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.guard: Guard | None = None

    def begin(self, model: Any, optimizers: Any, scaler: Any) -> None:
        self.end()
        if model is not None:
            self.guard = EndsByRaising(model, optimizers or None, scaler, **self.options).__enter__()

    def end(self, kind: type[BaseException] | None = None) -> None:
        """Training has ended, by an exception of this kind if there is one, which passes on."""
        if self.guard is not None:
            self.guard.__exit__(kind)


class EndsByRaising(Guard):
    """A guard in a program that has no `with` block around it."""

    def stops_the_program(self) -> None:
        self.__exit__()


def hugging_face_callback(**options: Any) -> Any:
    """A `TrainerCallback`; its `guard` has the findings. Options as for `nan.guard`.

    Raises MissingError without transformers.
    """
    base = _base(("transformers",), "TrainerCallback")

    class GuardCallback(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self._guards = _Guards(options)
            weakref.finalize(self, self._guards.end)

        @property
        def guard(self) -> Guard | None:
            return self._guards.guard

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # The optimizer is met by the weights it updates: accelerate wraps it, and may do so later.
            self._guards.begin(kwargs.get("model"), None, None)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._guards.end()

    return GuardCallback()


def lightning_callback(**options: Any) -> Any:
    """A Lightning `Callback`; its `guard` has the findings. Options as for `nan.guard`.

    Raises MissingError without lightning or pytorch_lightning.
    """
    base = _base(("lightning.pytorch", "pytorch_lightning"), "Callback")

    class GuardCallback(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self._guards = _Guards(options)

        @property
        def guard(self) -> Guard | None:
            return self._guards.guard

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            plugin = getattr(trainer, "precision_plugin", None) or getattr(trainer, "precision", None)
            self._guards.begin(
                pl_module, list(getattr(trainer, "optimizers", ())), getattr(plugin, "scaler", None)
            )

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._guards.end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._guards.end(type(exception))

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self._guards.end()

    return GuardCallback()


def _base(modules: tuple[str, ...], name: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise MissingError(
        f"none of {', '.join(modules)} is installed here", fix=f"pip install {modules[0].split('.')[0]}"
    )
