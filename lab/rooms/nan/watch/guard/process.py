"""Every model and optimizer of a process, and the mark by which it is known whether all was recorded.

A process that imports torch leaves `process_HOST_PID_START.json` at once, and one `guard_..._N.json` per
model. Both are written again as it goes on and when it ends: at exit, before `os._exit` (by which forked
children end) and before another program takes its place (`exec`). What is killed leaves no end.
A forked child begins anew, with a mark of its own. Optimizers whose tensors belong to no watched model, and
losses of no watched model, are looked at here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.nan.guarded.read import Event, Mark, Record, Step
from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.count import plain_counts
from lab.rooms.nan.watch.forward import blind, recomputing
from lab.rooms.nan.watch.guard.guard import Guard, identity, write_record
from lab.rooms.nan.watch.guard.step import bad_event, rank, world
from lab.rooms.nan.watch.guard.weights import parameters_of
from lab.rooms.nan.watch.leaves import as_counted, quiet
from lab.rooms.nan.watch.shared import after_update, backwards, surrounded
from lab.rooms.nan.watch.unseen_by_compile import hidden

MOST_GUARDS = 64  # at a time: the one that was met first is recorded, and watched anew if it is called again
BY_BACKWARDS = "its step is counted by calls of backward"
READ_FIRST, READ_EVERY = 8, 8  # updates of an optimizer, after which its own tensors are read
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_processes: list[Process] = []  # the one of this process, after a fork the child's


class ModelGuard(Guard):
    """The guard of one model of this process."""

    ends_by_raising = True

    def write_now(self, *, ended: bool) -> None:
        """Write the record as if the process ended here, or to say that it did not."""
        self._state.safely(self._write, ended)

    def abandon(self) -> None:
        """In a forked child: end without a record, for the parent has it."""
        self._out = None
        self.training.abandon()

    def _strangers(self) -> int:
        """None: the process looks at what belongs to no model (`OwnTensors`)."""
        return 0


class OwnTensors:
    """An optimizer's tensors that belong to no watched model."""

    def __init__(self, optimizer: Any, is_watched: Any) -> None:
        self.kind, self.updates, self.read_at = type(optimizer).__name__, 0, -1
        self.labelled = [
            (f"tensor {index} of group {number}", weakref.ref(tensor))
            for number, group in enumerate(optimizer.param_groups)
            for index, tensor in enumerate(group["params"])
            if not is_watched(tensor)
        ]
        self.event: Event | None = None

    def updated(self) -> None:
        self.updates += 1
        if self.updates <= READ_FIRST or self.updates % READ_EVERY == 0:
            self.read()

    @hidden
    def read(self) -> None:
        """Look for the first bad number in these tensors."""
        if self.event is not None or self.read_at == self.updates:
            return
        self.read_at = self.updates
        alive = [(label, tensor) for label, reference in self.labelled if (tensor := reference()) is not None]
        parts = [(label, part) for label, tensor in alive for part in quiet(as_counted, tensor)[0]]
        rows = quiet(plain_counts, [part for _, part in parts])
        for (label, part), row in zip(parts, rows, strict=True):
            if row[:3].sum() > 0:
                place = (
                    f"in the optimizer's update of {label} ({self.kind}), which belongs to no watched model"
                )
                step = max(self.updates - 1, 0)
                self.event = bad_event(step, "weights_after", place, row, part, name=label)
                return


class Process:
    """All guards of this process, and its mark."""

    def __init__(self, out: Path, on_bad: str, *, forked: bool) -> None:
        self.out, self.on_bad, self.forked = out, on_bad, forked
        self.guards: list[ModelGuard] = []
        self._own_tensors: dict[int, OwnTensors] = {}  # by the id of the optimizer
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._models = self._backwards = self._updates = 0
        self._loss: Event | None = None  # the first bad loss of no watched model
        self._unwatched: dict[str, str] = {}  # class of a model with weights -> why it is not watched
        self._ignored: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._lock, self._busy = threading.RLock(), threading.local()
        self._ended = False
        self.mark()

    # The mark

    def mark(self, ended: str = "") -> None:
        """Write the mark: what was met so far, and whether and how the process has ended."""
        entry = sys.argv[0] if sys.argv else ""
        with contextlib.suppress(Exception):  # a full disk is not the program's problem; no mark is not clean
            mark = Mark(
                pid=os.getpid(),
                command=" ".join(sys.argv[:8])[:300],
                forked=self.forked,
                helper=os.path.abspath(entry).startswith(_TORCH) if entry else False,
                rank=rank(),
                world=world(),
                ended=ended,
                models=self._models,
                optimizers=len(self._optimizers),
                backwards=self._backwards,
                updates=self._updates,
                unwatched=self._unwatched,
            )
            write_record(self.out / f"process_{identity()}.json", mark)

    def end(self, manner: str) -> None:
        """Write all records, newest guard first so that patches are taken back in order, then the mark."""
        if self._ended:
            return
        self._ended = True
        seam.meet_strangers(None)
        try:
            with contextlib.ExitStack() as stack:  # one whose reaction raises keeps no other from its record
                for guard in self.guards:
                    stack.push(guard)
        finally:
            self._write_own(ended=True)
            self.mark(manner)

    def leave(self, manner: str) -> None:
        """Write all as it is now, as the end of this process, while everything goes on."""
        for guard in self.guards:
            guard.write_now(ended=True)
        self._write_own(ended=True)
        self.mark(manner)

    def stay(self) -> None:
        """The process did not leave after all: `exec` failed."""
        for guard in self.guards:
            guard.write_now(ended=False)
        self.mark()

    # Models

    @hidden
    def meet(self, module: nn.Module) -> seam.Call | None:
        """A module that is not watched is called; it becomes a model with a guard if it should be one."""
        if module in self._ignored or getattr(self._busy, "on", False) or self._inside_a_model():
            return None
        if next(module.parameters(), None) is None:
            self._ignored.add(module)
            return None
        if reason := blind():
            self._unwatched.setdefault(type(module).__name__, reason)
            return None
        with self._lock:
            if seam.known(module) is None:
                self._guard(module)
        return seam.known(module)

    def _guard(self, module: nn.Module) -> None:
        self._busy.on, name = True, type(module).__name__
        try:
            if len(self.guards) >= MOST_GUARDS:
                self.guards.pop(0).__exit__()
            guard = ModelGuard(module, None, None, on_bad=self.on_bad, out=self.out)
            guard.__enter__()
            self.guards.append(guard)
            self._unwatched.pop(name, None)
        except Exception as error:  # the program goes on; that it is not watched is part of the verdict
            self._ignored.add(module)
            self._unwatched[name] = f"{type(error).__name__}: {str(error)[:200]}"
        finally:
            self._busy.on = False
        self._models += 1
        self.mark()

    def _inside_a_model(self) -> bool:
        """Modules that a model's own code makes and calls belong to that model."""
        return any(guard.training.watch.is_inside for guard in self.guards)

    # Optimizers and losses

    def updated(self, optimizer: Any, *_: Any) -> None:
        """An optimizer made an update."""
        reference = self._optimizers.get(id(optimizer))
        if reference is None or reference() is not optimizer:
            self._meet_optimizer(optimizer)
        self._updates += 1
        if (tensors := self._own_tensors.get(id(optimizer))) is not None:
            tensors.updated()

    @hidden
    def _meet_optimizer(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        if any(not self._is_watched(tensor) for tensor in parameters_of(optimizer)):
            self._own_tensors[id(optimizer)] = OwnTensors(optimizer, self._is_watched)
        else:
            self._own_tensors.pop(id(optimizer), None)
        self.mark()

    def _is_watched(self, tensor: Tensor) -> bool:
        return any(guard.training.weights.is_one_of(tensor) for guard in self.guards)

    def _losses_taken(self) -> int:
        """Backwards that made gradients of watched models."""
        return sum([guard.training.borders.num_taken for guard in self.guards])

    def backward_begins(self, tensors: Any) -> int | None:
        return None if recomputing() else self._losses_taken()

    def backward_ended(self, tensors: Any, taken: int | None) -> None:
        """A loss that no guard took is looked at here."""
        if taken is None:
            return
        self._backwards += 1
        if self._loss is None and self._losses_taken() == taken:
            self._look_at(tensors)

    @hidden
    def _look_at(self, tensors: Any) -> None:
        losses = [*tensors] if isinstance(tensors, (tuple, list)) else [tensors]
        parts = [part for loss in losses if isinstance(loss, Tensor) for part in quiet(as_counted, loss)[0]]
        rows = quiet(plain_counts, parts)
        if rows[:, :3].sum() > 0:
            place, row = "in a loss that belongs to no watched model", rows.sum(axis=0)
            self._loss = bad_event(self._backwards - 1, "loss", place, row, reason=BY_BACKWARDS)

    def _write_own(self, *, ended: bool) -> None:
        """One record for what belongs to no watched model, if there is any."""
        for tensors in self._own_tensors.values():
            with contextlib.suppress(Exception):
                tensors.read()
        found_bad = [*(tensors.event for tensors in self._own_tensors.values()), self._loss]
        events = [event for event in found_bad if event is not None]
        if not self._own_tensors and not events:
            return
        first_event = min(events, key=lambda event: event.step, default=None)
        kinds = ", ".join(sorted({tensors.kind for tensors in self._own_tensors.values()}))
        record = Record(
            ended=ended,
            process=identity(),
            model=f"tensors of {kinds}, of no watched model" if kinds else "a loss of no watched model",
            rank=rank(),
            world=world(),
            status="bad" if first_event else "clean",
            updates=max((tensors.updates for tensors in self._own_tensors.values()), default=0),
            first=first_event,
            sentence=f"step {first_event.step}: {first_event}" if first_event else "clean",
            steps=tuple(Step(event.step, (event,)) for event in events),
            looked_at={"weights_after": sum(len(own.labelled) for own in self._own_tensors.values())},
        )
        with contextlib.suppress(OSError):
            write_record(self.out / f"guard_{identity()}_own.json", record)

    def abandon(self) -> None:
        """In a forked child: the parent's guards are the parent's."""
        for guard in self.guards:
            guard.abandon()
        self.guards.clear()
        after_update.remove(self.updated)
        backwards.remove(self.backward_begins, self.backward_ended)

    def begin(self) -> None:
        seam.meet_strangers(self.meet)
        after_update.add(self.updated)
        backwards.add(self.backward_begins, self.backward_ended)


def _current_ends() -> None:
    if _processes:
        _processes[-1].end("at exit")


def _forked() -> None:
    """In a child that `fork` has made: it starts with a mark and without guards."""
    if _processes:
        parent = _processes.pop()
        parent.abandon()
        _start(parent.out, parent.on_bad, forked=True)


def _leaving(name: str) -> None:
    """Surround a function of `os` after which this program has ended, with the writing of all records."""

    def leave(*_: Any, **__: Any) -> Process | None:
        process = _processes[-1] if _processes and not _processes[-1]._ended else None
        if process is not None:
            with contextlib.suppress(Exception):
                process.leave(name)
        return process

    def stay(process: Process | None, _: bool) -> None:  # only if it failed
        if process is not None:
            process.stay()

    setattr(os, name, surrounded(getattr(os, name), leave, stay))


def _start(out: Path, on_bad: str, *, forked: bool) -> Process:
    process = Process(out, on_bad, forked=forked)
    _processes.append(process)
    process.begin()
    return process


def start_from_env() -> Process:
    """Guard every model from now on, in a program that `lab run nan train` began, by its environment."""
    process = _start(
        Path(os.environ["LAB_NAN_GUARD"]), os.environ.get("LAB_NAN_ON_BAD", "keep"), forked=False
    )
    atexit.register(_current_ends)
    for name in ("_exit", "execv", "execve"):
        _leaving(name)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    return process
