"""The guard: a training job from batch to updated weights, and where in it the first bad number was made.

With its record, which `lab nan analyze` joins into one page, and as a callback of Hugging Face's Trainer and
of PyTorch Lightning. Lightning says when training breaks off; Trainer does not, so there the guard ends
when it raises, when the next training begins, and with the callback. Neither library is imported before its
callback is made.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from lab.core.words import plural
from lab.errors import MissingError, UsageError
from lab.rooms.nan.guarded.read import STEPS_BY, Event, Mark, Record, Step
from lab.rooms.nan.watch.guard.step import GRADIENT_STAGES, GuardStep, StepState, first_of, rank, world
from lab.rooms.nan.watch.guard.training import Training
from lab.rooms.nan.watch.watch import printed

_numbers = itertools.count()  # each guard of a process has a record of its own
_identity: dict[int, str] = {}  # by pid: a forked child is another process


def record(guard: Guard) -> Record:
    """The guard's findings as plain values. Raises nothing that the guard itself does not."""
    status, event, training = guard.status, guard.first, guard.training
    state, watch = training.state, training.watch
    return Record(
        ended=state.ended,
        process=identity(),
        model=type(state.model).__name__,
        rank=rank(),
        world=world(),
        host=socket.gethostname(),
        torch=str(torch.__version__),
        strategy=state.strategy.name,
        counter=state.counter,
        status=status,
        updates=state.step,
        skipped_steps=state.scaling.skipped,
        unread_updates=training.weights.unread,
        first=event,
        sentence=guard.sentence(),
        steps=tuple(Step(step.number, tuple(step.events)) for step in state.steps[:16]),
        looked_at=dict(state.looked_at) | {"forwards": watch.forwards, "modules_called": len(watch.called)},
        not_seen=tuple(guard.not_seen()[:50]),
        alarm=state.scaling.alarm(),
        notes=tuple([*state.notes, *watch.notes][:50]),
        headroom=tuple(
            {"class": kind, "dtype": dtype, "largest": peak}
            for (kind, dtype), peak in state.headroom.peaks.items()
        ),
        headroom_sentences=tuple(state.headroom.sentences(0.5)),
        absorbed=dict(watch.absorbed.most_common(20)),
        steps_by=state.counted_by,
    )


def identity() -> str:
    """This process among all of all machines, past and to come: HOST_PID_START."""
    pid = os.getpid()
    if pid not in _identity:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
        _identity[pid] = f"{host}_{pid}_{time.time_ns() // 1_000_000}"
    return _identity[pid]


def write_record(path: Path, record: Record | Mark) -> None:
    """Write a record as JSON, whole or not at all; nothing waits for the disk. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = msgspec.to_builtins(record, enc_hook=_plain)
    # Paths and command lines may hold bytes that no UTF-8 text has.
    text = json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text + b"\n")
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> str | int | float:
    """A number of numpy's, or another subclass, as Python's own type."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError(f"not a plain value for a record: {type(value).__name__}")


class Guard:
    """Guards a model in training (or inference) between `__enter__` and `__exit__`.

    optimizer: one, several or none (then every optimizer that updates this model's weights is met). scaler: a
    GradScaler, whose skipped steps raise no alarm. on_bad: "keep" goes on; "raise" raises NonFiniteError
    before the update that would have used it; "replay" runs a bad step again to name the operator; "break"
    does that and stops at the operator: a debugger stands there; a function is called with the GuardStep.
    counter: as for `nan.watch`. headroom: count magnitudes every that many steps, where that costs extra (0:
    never). allow: as for `nan.watch`.
    """

    ends_by_raising = False  # True where no `with` block ends by that itself

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        scaler: Any = None,
        *,
        on_bad: str | Callable[[GuardStep], None] = "keep",
        counter: str | None = None,
        headroom: int = 16,
        allow: Sequence[str] = (),
        out: Any = None,
    ) -> None:
        if on_bad not in ("keep", "raise", "replay", "break") and not callable(on_bad):
            raise UsageError(
                f"invalid on_bad: {on_bad!r}",
                fix='use "keep", "raise", "replay", "break" or a function of a GuardStep',
            )
        self._out, self._index = out, next(_numbers)
        self._state = StepState(model, scaler, headroom=headroom, counter=counter)
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        optimizers = [given for given in optimizers if given is not None]
        self.training = Training(
            self._state, optimizers, on_bad, allow=allow, write=self._write, stop=self._stop
        )
        self._entered = self._writing = False

    def __enter__(self) -> Guard:
        if self._entered:
            raise UsageError("this guard has already been used", fix="make a new one: nan.guard(model)")
        self._entered = True
        self.training.begin()
        self._state.safely(self._write)
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if self._state.ended:
            return
        try:
            self._state.safely(self.training.last_look)
        except Exception:  # a reaction's; the program's own exception, if there is one, is the one to pass on
            if kind is None:
                raise
        finally:
            self.training.end()
            self._state.safely(self._write)

    def _stop(self) -> None:
        """A reaction is about to raise in the program."""
        if self.ends_by_raising:
            self.__exit__()

    def _write(self, ended: bool | None = None) -> None:
        """Bring the record up to date: a job that is killed loses little."""
        if self._out is not None and not self._writing:
            self._writing = True  # the record asks for the status, which settles, which may keep another step
            try:
                values = record(self)
                values.ended = values.ended if ended is None else ended
                write_record(Path(self._out) / f"guard_{identity()}_{self._index}.json", values)
            finally:
                self._writing = False

    @property
    def step(self) -> int:
        """Updates so far."""
        return self._state.step

    @property
    def steps(self) -> list[GuardStep]:
        """Those with something bad."""
        return self._state.steps

    @property
    def skipped_steps(self) -> int:
        """Steps that the scaler left out."""
        return self._state.scaling.skipped

    @property
    def headroom(self) -> Any:
        """The largest magnitudes by class: `headroom.sentences()`."""
        return self._state.headroom

    @property
    def notes(self) -> list[str]:
        return self._state.notes

    @property
    def status(self) -> str:
        """bad, nothing-seen (no forward, gradient or update was looked at), partly-seen or clean."""
        self._state.safely(self.training.settle)
        self._state.safely(self.training.read_what_was_updated)
        if self.steps or self._state.scaling.alarm():
            return "bad"
        if not self.training.watch.called and not self._saw_gradients():
            return "nothing-seen"
        return "partly-seen" if self.not_seen() else "clean"

    @property
    def first(self) -> Event | None:
        """The first bad number of all: the verdict. None while there is none."""
        self._state.safely(self.training.settle)
        return first_of(event for step in self.steps for event in step.events)

    def not_seen(self) -> list[str]:
        """What was not looked at, in sentences."""
        training = self.training
        sentences = list(training.watch.not_seen())
        if (self._saw_gradients() or self.step) and not training.watch.called:
            sentences.insert(0, "gradients were seen, but no forward of this model: is it compiled?")
        elif training.unseen_forwards:
            times = plural(training.unseen_forwards, "update")
            sentences.insert(0, f"{times} took gradients of no forward that was seen: is it compiled?")
        sentences += [reason] if (reason := self._waits()) else []
        if losses := training.borders.unseen_losses:
            sentences.append(
                f"{plural(losses, 'forward')} in training met no backward, "
                "and no number made of it was asked about"
            )
        if unknown := training.gradients.unknown:
            sentences.append(f"{plural(unknown, 'gradient')} overwritten before being counted")
        sentences += [
            f"{plural(times, 'tensor')} not counted: {reason}"
            for reason, times in training.collector.unread.items()
        ]
        sentences += sorted(training.weights.unread_state)
        if strangers := self._strangers():
            sentences.append(
                f"{plural(strangers, 'tensor')} of the optimizer not looked at: of no module of this model"
            )
        if failed := self._state.failed:
            sentences.append(f"the guard failed {plural(failed, 'time')}: {'; '.join(self.notes[-3:])}")
        return sentences

    def _strangers(self) -> int:
        """How many tensors of the model's optimizers nothing looks at."""
        return self.training.weights.strangers()

    def _saw_gradients(self) -> bool:
        return any(self._state.looked_at[stage] for stage in GRADIENT_STAGES)

    def __str__(self) -> str:
        """The verdict in five lines."""
        watch = self.training.watch
        counted = STEPS_BY.get(self._state.counted_by, "no update")
        looked_at = (
            f"looked at: {plural(self.step, 'step')} ({counted}), {plural(watch.forwards, 'forward')}, "
            f"{plural(self._state.looked_at['loss'], 'loss', 'losses')}"
        )
        return printed("guard", self, watch, looked_at)

    def sentence(self) -> str:
        """The verdict in one line."""
        status, event = self.status, self.first
        if event is not None:
            unsure = event.unsure if event.unsure not in event.place else ""
            doubt = f"; not certain: {unsure}" if unsure else ""
            by = self._state.counted_by
            counted = f"; steps are {STEPS_BY[by]}" if by in ("weights", "backward") else ""
            return f"step {event.step}: {event}{doubt}{counted}"
        if status == "bad":
            return self._state.scaling.alarm()
        skipped = self.skipped_steps
        left_out = f"; {plural(skipped, 'step')} left out by the scaler" if skipped else ""
        reads, unread = self.training.weights.reads, self.training.weights.unread
        read = f"; weights, buffers and state read after {reads} of them" if unread else ""
        waits = f"; {reason}" if (reason := self._waits()) else ""
        return f"{status}: {plural(self.step, 'update')}{left_out}{waits}{read}"

    def _waits(self) -> str:
        """Whether bad gradients were met that a scaler has not decided on."""
        steps = [step.number for step in self.training.reactions.waiting()]
        if not steps:
            return ""
        numbers = f"step {steps[0]}" + (f" and {len(steps) - 1} more" if steps[1:] else "")
        return f"bad gradients in {numbers} wait for the scaler: its step, or its update, did not come"


class _Guards:
    """One guard per training; `guard` is the last one."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.guard: Guard | None = None

    def begin(self, model: Any, optimizers: Any, scaler: Any) -> None:
        self.end()
        if model is not None:
            self.guard = Guard(model, optimizers or None, scaler, **self.options)
            self.guard.ends_by_raising = True
            self.guard.__enter__()

    def end(self, kind: type[BaseException] | None = None) -> None:
        """Training has ended, by an exception of this kind if there is one, which passes on."""
        if self.guard is not None:
            self.guard.__exit__(kind)


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
