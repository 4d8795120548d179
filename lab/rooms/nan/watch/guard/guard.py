"""The guard: a training job from batch to updated weights, and where in it the first bad number was made.

Stages are looked at where data passes (see `events.STAGES`): forwards by the watch, gradients at module
borders and as they accumulate (`gradients`), state and weights after the update (`updates`). Nothing is left
on the model, the optimizer or any tensor; a failure in here becomes a note.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.nan.watch.batch import Batch
from lab.rooms.nan.watch.choose import choose_counter, counter_named
from lab.rooms.nan.watch.count import Counter, beginning, bits_counts, screen_counts
from lab.rooms.nan.watch.forward import Forward, Seen
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.events import WORDS, Event, GuardStep, Op, corrected, first_of
from lab.rooms.nan.watch.guard.gradients import Collector, Taken
from lab.rooms.nan.watch.guard.headroom import Headroom
from lab.rooms.nan.watch.guard.ranks import strategy_of
from lab.rooms.nan.watch.guard.record import write
from lab.rooms.nan.watch.guard.replay import Saved, backward_op, forward_op, save
from lab.rooms.nan.watch.guard.scaling import Scaling, find_scaler
from lab.rooms.nan.watch.guard.updates import (
    Named,
    named_weights,
    negative_squares,
    parameters_of,
    parts_of,
    state_tensors,
    why_not_finite,
)
from lab.rooms.nan.watch.lane import recomputing
from lab.rooms.nan.watch.plain import as_counted, is_unbuilt
from lab.rooms.nan.watch.quiet import quiet
from lab.rooms.nan.watch.recorder import RECOMPUTE
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.shared import after_update, backwards, before_update
from lab.rooms.nan.watch.steps import Step
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on
from lab.rooms.nan.watch.watch import NonFiniteError, Watch

_OLD = not hasattr(torch._C, "_current_graph_task_id")  # such a torch may run backward in another thread
MOST_EVENTS = 24  # of one step; more are counted
WRITE_EVERY = 50  # updates between two records
MOST_STEPS = 64  # with something bad that are kept
MOST_BORDERS = 20_000  # gradients at borders that are remembered within a step
READ_SHARE = 0.03  # of the time between updates, for reading weights and state
SHARDED = ("FSDP", "tensor parallel")
GRADIENT_STAGES = ("loss", "act_grads", "param_grads", "after_reduce", "clipped")


class Unhooked(int):
    """The id of a weight whose gradient was not seen as it accumulated."""


class GuardedWatch(Watch):
    """The guard's watch over forwards: it tells the guard when they begin, pass and end."""

    def __init__(self, guard: Guard, model: nn.Module, count: Counter) -> None:
        super().__init__(model, counter=count, keep_rows=False, check_weights=True)
        self._guard = guard
        self._patient = (
            False  # each forward is counted when it ends: before the program can write to anything
        )

    def meet_new_modules(self) -> None:
        super().meet_new_modules()
        self._guard._safely(self._guard._meet_new_weights)

    def begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._guard._safely(self._guard._forward_begins, forward, module, args, kwargs)

    def take(self, forward: Forward, seen: Seen) -> None:
        if (seen.counts[:, :3] > 0).any():
            super().take(forward, seen)
        else:
            self.forwards += forward.phase != RECOMPUTE
            self.recomputed += forward.phase == RECOMPUTE
            if any(batch.fp8 for batch in seen.batches):
                self._note_saturated(seen)
        if len(seen.counts) and seen.counts[:, 4].max() > 0:
            kinds = [("forward", dtype) for _, dtype in seen.shapes()]
            self._guard._safely(self._guard.headroom.met_all, kinds, seen.counts[:, 4])

    def passing(self, forward: Forward, batch: Batch) -> None:
        if self._guard.headroom.due(self._guard.step) and len(batch.tensors) > 1:
            given_out = [one for one, out in zip(batch.tensors, batch.outputs(), strict=True) if out]
            self._guard._safely(self._guard.headroom.sample, "activation", given_out)
        self._guard._safely(self._guard.borders.attach, forward, batch)

    def ends(self, forward: Forward) -> None:
        self._guard._safely(self._guard._forward_ends, forward)

    def stepped(self, step: Step, forward: Forward) -> None:
        if step.births:
            self._guard._forward_was_bad(step, forward)
        self._steps.clear() if not step.births else None  # a training job has no end of forwards

    def react(self, forward: Forward) -> None:
        self._guard._react_if_bad()


class Guard:
    """Guards a model in training (or inference) between `__enter__` and `__exit__`.

    optimizer: one, several or none (then every optimizer that updates this model's weights is met). scaler: a
    GradScaler, whose skipped steps are no alarms. on_bad: "keep" goes on; "raise" raises NonFiniteError
    before the update that would have used it; "replay" runs a bad step again to name the operator; a function
    is called with the GuardStep. counter: as for `nan.watch`. headroom: look at ranges every that many steps
    (0: never).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        scaler: Any = None,
        *,
        on_bad: str | Callable[[GuardStep], None] = "keep",
        counter: str | None = None,
        headroom: int = 16,
        out: Any = None,
    ) -> None:
        if on_bad not in ("keep", "raise", "replay") and not callable(on_bad):
            raise UsageError(
                f"invalid on_bad: {on_bad!r}",
                fix='use "keep", "raise", "replay" or a function of a GuardStep',
            )
        self.model, self.on_bad, self.out = model, on_bad, out
        self.index, self.meets_scalers = 0, False  # for a program with several models that knows no guard
        self.step = 0  # updates so far
        self.steps: list[GuardStep] = []  # those with something bad
        self.seen: Tally[str] = Tally()  # tensors looked at, by stage
        self.notes: list[str] = []
        self.failed = 0  # times that something in here failed
        self.unknown = 0  # tensors that could not be counted in time
        self.scaling = Scaling(scaler)
        self.strategy = strategy_of(model)
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        self.headroom = Headroom(headroom)
        self.counter, self._count = self._chosen(device, counter)
        self._clock = itertools.count(1)
        self.collector = Collector(beginning(self._count), lambda: next(self._clock))
        self.borders = Borders(self.collector)
        self.watch = GuardedWatch(self, model, self._count)
        self.borders.names = self.watch._names
        self._on_gpu = device.type == "cuda"
        self._optimizers = _as_list(optimizer)
        self._names: dict[int, str] = {}
        self._owners: dict[int, list[str]] = {}
        self._handles: list[Any] = []
        self._kept_nodes: list[Any] = []
        self._hooked: set[int] = set()  # weights whose gradients are seen as they accumulate
        self._bad_weights: set[str] = set()
        self._saved: list[Saved] = []
        self._gradient_versions: dict[int, tuple[int, int]] = {}
        self._updates_since_read = 0
        self._written_before_update: dict[int, int] = {}  # weight -> step in which other code wrote it
        self._versions_after: dict[int, int] = {}  # of weights, at the end of the last update
        self._read_seconds, self._step_began, self._step_seconds = 0.0, 0.0, 0.0
        self._skipped_steps = 0
        self._events: dict[int, GuardStep] = {}
        self._dropped = 0
        self._updated_by: set[int] = set()  # the optimizers of the step that has just ended
        self._forward_since_update = False
        self._infinite_buffers: set[str] = set()  # from the start on: sentinels
        self._entered = self._ended = self._unbuilt = False  # unbuilt: some weights are lazy
        self._versions = -1  # of all weights together, for torch before 2.0
        self._looked_for_scaler = self._writing = False
        self._reacted: set[int] = set()

    def _chosen(self, device: torch.device, counter: str | None) -> tuple[str, Counter]:
        """On a CPU, unless a way of counting was asked for, magnitudes are counted only where due."""
        name = counter or choose_counter(device)[0]
        if counter is not None or name != "bits":
            return name, counter_named(name)

        def count(tensors: Sequence[Tensor]) -> np.ndarray:
            return bits_counts(tensors) if self.headroom.magnitudes_due(self.step) else screen_counts(tensors)

        return name, count

    # Entering and leaving

    def __enter__(self) -> Guard:
        if self._entered:
            raise UsageError("this guard has already been used", fix="make a new one: nan.guard(model)")
        self._entered = True
        self._name_weights()
        self._unbuilt = any(map(is_unbuilt, self.model.parameters()))
        self.watch.__enter__()
        self._safely(self._weights_at_the_start)
        self._safely(self._attach)
        self._step_began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended:
            return
        self._safely(self._last_look)
        self._ended = True
        self.borders.ended = True
        for handle in self._handles:
            self._safely(handle.remove)
        self._handles.clear()
        self._kept_nodes.clear()
        self._saved.clear()
        before_update.remove(self._before_update)
        after_update.remove(self._after_update)
        backwards.remove(self._backward_begins, self._backward_ended)
        self.watch.__exit__()
        self._safely(self.settle)
        self._safely(self._write)

    # What it found

    @property
    def status(self) -> str:
        """bad, nothing-seen (no forward, gradient or update was looked at), partly-seen or clean."""
        self._safely(self.settle)
        self._safely(self._read_what_was_updated)
        if self.steps or self.scaling.alarm():
            return "bad"
        if not self.watch.called and not any(self.seen[stage] for stage in GRADIENT_STAGES):
            return "nothing-seen"
        return "partly-seen" if self.not_seen() else "clean"

    @property
    def clean(self) -> bool:
        return self.status == "clean"

    @property
    def first(self) -> Event | None:
        """The first bad number of all: the verdict. None while there is none."""
        self._safely(self.settle)
        events = [event for step in self.steps for event in step.events]
        first = first_of(events)
        return corrected(first, self.steps) if first is not None else None

    def not_seen(self) -> list[str]:
        """What was not looked at, in sentences."""
        found = list(self.watch.not_seen())
        trained = any(self.seen[stage] for stage in GRADIENT_STAGES) or self.step
        if trained and not self.watch.called:
            found.insert(0, "gradients were seen, but no forward of this model: is it compiled?")
        if self.unknown:
            found.append(f"{plural(self.unknown, 'gradient')} overwritten before being counted")
        found += [
            f"{plural(times, 'tensor')} not counted: {why}" for why, times in self.collector.unread.items()
        ]
        if self.failed:
            found.append(f"the guard failed {plural(self.failed, 'time')}: {'; '.join(self.notes[-3:])}")
        return found

    def sentence(self) -> str:
        """The verdict in one line."""
        status, first = self.status, self.first
        if first is not None:
            op = f" ({first.op})" if first.op else ""
            doubt = (
                f"; not certain: {first.unsure}" if first.unsure and first.unsure not in first.place else ""
            )
            return f"step {first.step}: first bad number {first.place}{op}{doubt}"
        if status == "bad":
            return self.scaling.alarm()
        left_out = (
            f"; {plural(self._skipped_steps, 'step')} left out by the scaler" if self._skipped_steps else ""
        )
        return f"{status}: {plural(self.step, 'update')}{left_out}"

    def settle(self) -> None:
        """Wait for all counts so far and take them in."""
        self.watch.settle()
        for taken, rows in self.collector.settled():
            self._take_gradients(taken, rows)

    # What happens while the program runs

    def _attach(self) -> None:
        self._hook_parameters()
        if not before_update.exists:
            self.note(
                f"torch {torch.__version__} has no hooks around updates: the steps of the optimizers "
                "given are surrounded, and other updates are seen at the next forward"
            )
            self._handles += [Surrounded(kind, self) for kind in {type(one) for one in self._optimizers}]
        else:
            before_update.add(self._before_update)
            after_update.add(self._after_update)
        backwards.add(self._backward_begins, self._backward_ended)

    def _meet_new_weights(self) -> None:
        """Weights that became part of the model, or began to need gradients, after the guard began."""
        self._name_weights()
        self._hook_parameters()

    def _hook_parameters(self) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad and id(parameter) not in self._hooked and not is_unbuilt(parameter):
                self._hook_parameter(parameter)
                self._hooked.add(id(parameter))

    def _hook_parameter(self, parameter: Tensor) -> None:
        register = getattr(parameter, "register_post_accumulate_grad_hook", None)
        if register is not None:
            self._handles.append(register(self._accumulated))
            return
        with torch.enable_grad():
            expanded: Any = parameter.expand_as(parameter).grad_fn
        node = expanded.next_functions[0][0]
        self._kept_nodes.append(node)
        self._handles.append(node.register_hook(lambda *_: self._accumulated(parameter)))

    def _accumulated(self, parameter: Tensor) -> None:
        """A gradient has been added to a parameter's: this rank's own, before any reduction."""
        self._safely(self._take_gradient, parameter)

    def _take_gradient(self, parameter: Tensor) -> None:
        grad = parameter.grad
        if self._ended or grad is None:
            return
        # FSDP accumulates what has been reduced already.
        reduced = self.strategy.name == "FSDP"
        self.collector.take("after_reduce" if reduced else "param_grads", id(parameter), grad)
        self._gradient_versions[id(parameter)] = (id(grad), _version(grad))
        if self.strategy.reduces_at_once:
            self.collector.flush()

    def _forward_begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        forward.update = self.step
        if (
            self.borders.held > MOST_BORDERS and forward.phase != "recompute"
        ):  # a program without an optimizer
            self.settle()
            self.borders.step_ended()
        if forward.phase != "recompute":
            if not self._forward_since_update:
                self._forward_since_update = True
                self._gradient_versions.clear()  # of gradients that no backward has touched since
            if self.scaling.scaler is not None and self.scaling.skipped_one():
                self._left_out()
            if not before_update.exists:
                self._weights_changed_without_hooks()
        if self.on_bad == "replay" and forward.phase != "recompute":
            forward.saved = save(module, args, kwargs)
            self._saved = [*self._saved, forward.saved][-8:]

    def _forward_ends(self, forward: Forward) -> None:
        self.collector.mark()
        forward.time, forward.update = next(self._clock), self.step
        if self._unbuilt:
            self._unbuilt = any(map(is_unbuilt, self.model.parameters()))
            self._hook_parameters()

    @passes_on
    def _backward_begins(self, tensors: Any) -> tuple[int, int] | None:
        """(when, how many gradients had passed); None inside of a backward, as a checkpoint runs one."""
        found: tuple[int, int] | None = self._safely(self._passed_before)
        return found

    @passes_on
    def _backward_ended(self, tensors: Any, begun: tuple[int, int] | None) -> None:
        if begun is not None:
            self._safely(self._take_loss, tensors, begun)

    def _passed_before(self) -> tuple[int, int] | None:
        if self._ended or recomputing():
            return None
        if self.meets_scalers and self.scaling.scaler is None and not self._looked_for_scaler:
            self._looked_for_scaler = True
            self.scaling.adopt(find_scaler())
        return next(self._clock), self._passed()

    def _passed(self) -> int:
        # On a GPU gradients come in autograd's own threads.
        return self.collector.anywhere() if self._on_gpu or _OLD else self.collector.here()

    def _take_loss(self, tensors: Any, begun: tuple[int, int]) -> None:
        """The loss belongs to this model if gradients of it passed; and then all of them are counted."""
        moment, passed = begun
        if self._ended or self._passed() == passed:
            return
        for tensor in tensors if isinstance(tensors, (tuple, list)) else [tensors]:
            if isinstance(tensor, Tensor):
                made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
                self.collector.take("loss", made_by, tensor.detach(), moment)
        self.collector.flush()

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if not self._ended and self._is_ours(optimizer):
            self._goes_on(optimizer)
            self._safely(self._look_before_update, optimizer)
            self._react_if_bad()

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if not self._ended and self._is_ours(optimizer):
            self._safely(self._look_after_update, optimizer)

    def _goes_on(self, optimizer: Any) -> None:
        """Updates by several optimizers after one forward are one step."""
        if self._updated_by and not self._forward_since_update and id(optimizer) not in self._updated_by:
            self.step = self.collector.step = self.step - 1
        else:
            self._updated_by.clear()
        self._updated_by.add(id(optimizer))

    def _look_before_update(self, optimizer: Any) -> None:
        """The gradients that the update will use, where they are no longer those that were counted."""
        parameters = parameters_of(optimizer)
        for one in parameters:
            now = _version(one)
            if self._versions_after.get(id(one), now) != now:
                self._written_before_update.setdefault(id(one), self.step)
        for parameter in parameters:
            grad = parameter.grad
            if grad is None or id(parameter) not in self._names:
                continue
            known, version = self._gradient_versions.get(id(parameter)), (id(grad), _version(grad))
            if known == version and not self.strategy.reduces:
                continue
            stage = "after_reduce" if self.strategy.reduces else "clipped"
            self.collector.take(stage, id(parameter) if known else Unhooked(id(parameter)), grad)
            self._gradient_versions[id(parameter)] = version
            if id(parameter) not in self._hooked:
                self._hook_parameters()
        self.collector.flush()
        if not self._on_gpu or self.on_bad != "keep":
            self.settle()

    def _look_after_update(self, optimizer: Any) -> None:
        now = time.perf_counter()
        self._step_seconds, self._step_began = now - self._step_began, now
        self._updates_since_read += 1
        if self._read_seconds <= READ_SHARE * self._step_seconds * self._updates_since_read:
            self._safely(self._read_weights, [optimizer])
        self._versions = sum(map(_version, self.model.parameters())) if not before_update.exists else -1
        self._versions_after.update({id(one): _version(one) for one in parameters_of(optimizer)})
        # With a closure, forward and backward ran inside of the update; on a GPU the counts are ready by now.
        self.settle()
        self._react_if_bad()
        states = (one for _, one in state_tensors(optimizer, self._names) if one.dim())
        self._safely(self.headroom.step_ends, self, states)
        self.step = self.collector.step = self.step + 1
        self._forward_since_update = False
        self.scaling.stepped()
        self._saved.clear()
        self.borders.step_ended()
        self._keep()
        if self.step % WRITE_EVERY == 0:
            self._write()

    def _is_ours(self, optimizer: Any) -> bool:
        """Whether it was given to the guard, or updates one of the model's weights."""
        if any(one is optimizer or getattr(one, "optimizer", None) is optimizer for one in self._optimizers):
            return True
        return any(id(one) in self._names for one in parameters_of(optimizer))

    # Weights and state

    def _name_weights(self) -> None:
        for name, module in self.model.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                self._names.setdefault(id(parameter), f"{name}.{own}".lstrip("."))
                owners = self._owners.setdefault(id(parameter), [])
                if name not in owners:
                    owners.append(name)

    def _weights_at_the_start(self) -> None:
        self._versions_after = {id(one): _version(one) for one in self.model.parameters()}
        self._versions = sum(self._versions_after.values())
        self._infinite_buffers = set(self.watch.sentinels)
        for one in self.watch.weights:
            self._weight_was_bad(one["name"], one["nan"], one["posinf"] + one["neginf"], before=True)

    def _read_weights(self, optimizers: Iterable[Any]) -> None:
        """State and weights after the update that has just ended (`self.step` is not counted up yet)."""
        began = time.perf_counter()
        states: list[Named] = []
        for optimizer in optimizers:
            states += parts_of(state_tensors(optimizer, self._names))
        weights = parts_of(named_weights(self.model))
        rows = quiet(self._count, [one for _, one in (*states, *weights)])
        moment = next(self._clock)
        kinds = [("opt_state", one.dtype) for _, one in states] + [
            ("weights_after", one.dtype) for _, one in weights
        ]
        self.headroom.met_all(kinds, rows[:, 4])
        for (name, tensor), row in zip(states, rows, strict=False):
            if row[:3].sum() > 0:
                self._event(moment, "opt_state", _owner(name), name, row, tensor, why=self._since())
        if not self._on_gpu or self._updates_since_read > 1:
            for name in negative_squares(states):
                self._event(
                    moment, "opt_state", _owner(name), name, None, None, why="a sum of squares is below zero"
                )
        buffers = {name for name, _ in self.model.named_buffers()}
        for (name, tensor), row in zip(weights, rows[len(states) :], strict=True):
            if row[:2].sum() > 0 or (row[2] > 0 and name not in buffers):
                if name in self._bad_weights or (name in self._infinite_buffers and not row[0]):
                    continue
                self._bad_weights.add(name)
                if name in buffers:
                    self._buffer_was_bad(moment, name, row, tensor)
                else:
                    self._update_was_bad(moment, name, row, tensor, optimizers)
        self.seen["opt_state"] += len(states)
        self.seen["weights_after"] += len(weights)
        self._updates_since_read = 0
        self._written_before_update.clear()
        self._read_seconds = 0.5 * self._read_seconds + 0.5 * (time.perf_counter() - began)

    def _buffer_was_bad(self, moment: float, name: str, row: np.ndarray, tensor: Tensor) -> None:
        unsure = "a forward or other code wrote it since it was read last, and no module has used it yet"
        self._event(moment, "weights_before", _owner(name), name, row, tensor, unsure=unsure)

    def _update_was_bad(
        self, moment: float, name: str, row: np.ndarray, tensor: Tensor, optimizers: Iterable[Any]
    ) -> None:
        """A weight is bad after an update: by the update, or by code that wrote it before."""
        why = self._why(name, optimizers)
        if not why and self._was_written_before_update(name):
            why = "written by other code than the optimizer, before the update"
            self._event(moment, "weights_before", _owner(name), name, row, tensor, why=why)
            return
        if not self._updates_since_read:
            why = "written by the program: no optimizer of torch has updated weights since they were read"
            self._event(moment, "weights_before", _owner(name), name, row, tensor, why=why)
            return
        if not why and (grad := self._gradient_that_went_bad(name)) is not None:
            why = "finite when it was counted: changed since by code that torch does not see (.data, numpy)"
            rows = quiet(self._count, [grad])
            self._event(moment, "clipped", _owner(name), name, rows[0], grad, why=why)
            return
        unsure = "" if why else "its settings do not explain it: other code may have written the weight"
        self._event(
            moment, "weights_after", _owner(name), name, row, tensor, why=why or self._since(), unsure=unsure
        )

    def _gradient_that_went_bad(self, name: str) -> Tensor | None:
        """The gradient that the last update used, if it is bad though all that was counted was finite."""
        grad = getattr(dict(self.model.named_parameters()).get(name), "grad", None)
        if grad is None or self._updates_since_read != 1:
            return None
        parts = quiet(as_counted, grad)[0]
        bad = [one for one, row in zip(parts, quiet(self._count, parts), strict=True) if row[:3].sum() > 0]
        return bad[0] if bad else None

    def _since(self) -> str:
        """If weights were not read after every update: since when this may be."""
        missed = self._updates_since_read - 1
        return (
            f"made in one of the last {missed + 1} updates: weights are not read after each"
            if missed > 0
            else ""
        )

    def _why(self, name: str, optimizers: Iterable[Any]) -> str:
        parameter = dict(self.model.named_parameters()).get(name)
        found = (why_not_finite(one, parameter) for one in (*optimizers, *self._optimizers))
        return next((why for why in found if why), "")

    def _weight_was_bad(self, name: str, nan: float, inf: float, *, before: bool, moment: float = 0) -> None:
        """Bad weights that a forward met, or that were there at the start."""
        if name in self._bad_weights:
            return
        self._bad_weights.add(name)
        event = Event(
            moment, self.step, "weights_before", _owner(name), f"in the weights: {name}", name, nan, inf
        )
        spoiled = not before and self._was_written_before_update(name)
        if not before and self._updates_since_read and not spoiled and not self._written_since_update(name):
            # The forward before this one was clean, so it was the last update.
            event.stage, event.step = "weights_after", max(self.step - 1, 0)
            event.place = f"{WORDS['weights_after']} {name}"
            event.why = self._why(name, self._optimizers)
            if not event.why:
                event.unsure = (
                    "weights were not read right after the update: other code may have written them"
                )
        elif spoiled:
            event.step = self._written_before_update[id(dict(self.model.named_parameters())[name])]
            event.why = "written by other code than the optimizer, before the update"
        elif not before:
            event.why = "changed by something other than the optimizer since they were read last"
        self._add(event)

    def _was_written_before_update(self, name: str) -> bool:
        return id(dict(self.model.named_parameters()).get(name)) in self._written_before_update

    def _written_since_update(self, name: str) -> bool:
        """Whether a weight or buffer was written to after the last update, as far as torch counts."""
        tensor = dict(named_weights(self.model)).get(name)
        return tensor is not None and self._versions_after.get(id(tensor), _version(tensor)) != _version(
            tensor
        )

    def _weights_changed_without_hooks(self) -> None:
        """torch before 2.0: an update shows in the versions of the weights."""
        versions = sum(_version(one) for one in self.model.parameters())
        before, self._versions = self._versions, versions
        if before == versions or before < 0:
            return
        self._updates_since_read += 1
        self._read_weights(self._optimizers)
        self.step = self.collector.step = self.step + 1
        self.scaling.stepped()
        self._keep()

    def _read_what_was_updated(self) -> None:
        """Read weights and state that were updated since they were read last."""
        if self._ended or not self._updates_since_read:
            return
        self.step -= 1
        try:
            self._read_weights(self._optimizers)
        finally:
            self.step += 1
        self._keep()

    def _last_look(self) -> None:
        self.watch.settle()
        if self._updates_since_read:
            self._read_what_was_updated()
        elif not before_update.exists:
            self._weights_changed_without_hooks()
        elif (
            not self._events
        ):  # no optimizer of torch has run, but the program may have written weights itself
            self._read_weights(self._optimizers)
        if self.scaling.scaler is not None and self.scaling.skipped_one():
            self.settle()
            self._left_out()
        self.settle()
        self._keep()

    # Events

    def _forward_was_bad(self, step: Step, forward: Forward) -> None:
        birth = step.births[0]
        moment = forward.time - 0.5
        number = forward.update if forward.update >= 0 else self.step
        if birth.how == "weights":
            for one in self.watch._explainer.check_weights(self._count):
                self._weight_was_bad(
                    one["name"], one["nan"], one["posinf"] + one["neginf"], before=False, moment=moment - 0.25
                )
        unsure = birth.unsure or self._maybe_another_rank(birth)
        event = Event(moment, number, *_stage_and_place(birth, step.phase), name=birth.leaf, unsure=unsure)
        if forward.saved is not None:
            self._name_forward_op(event, birth, forward.saved)
        self._add(event)

    def _maybe_another_rank(self, birth: Birth) -> str:
        """Under sharded weights a module's output rests on other ranks too."""
        if (
            self.strategy.name not in SHARDED
            or birth.how != "output"
            or birth.module not in self.watch._names
        ):
            return ""
        module = self.watch._modules[self.watch._names.index(birth.module)]
        if not any(hasattr(one, "placements") for one in module.parameters()):
            return ""
        return (
            f"the weights of {_named(birth.module)} are spread over ranks: this rank's part is clean, "
            "another's may not be, or its collective brought it; see the other ranks' records"
        )

    def _name_forward_op(self, event: Event, birth: Birth, saved: Saved) -> None:
        if birth.how in ("given", "weights"):
            return
        scope = birth.module if birth.how != "unknown" else birth.module.rpartition(".")[0]
        op, missing = self._attempt(forward_op, saved, self.watch, scope)
        event.op, event.op_missing = op, missing
        if op is not None and event.unsure:
            event.module, event.place, event.unsure = op.module, f"in forward of {_named(op.module)}", ""

    def _take_gradients(self, taken: list[Taken], rows: np.ndarray) -> None:
        """Counts of one backward, in order of time."""
        self.seen.update([one.stage for one in taken])
        self.unknown += int((rows[:, 0] < 0).sum())
        self.headroom.met_all([(one.stage, one.type) for one in taken], rows[:, 4])
        bad = rows[:, :3].sum(axis=1) > 0
        if not bad.any():
            return
        self.borders.learn(taken, rows)
        for at in np.flatnonzero(bad):
            self._gradient_was_bad(taken[at], rows[at])

    def _gradient_was_bad(self, one: Taken, row: np.ndarray) -> None:
        unsure = why = ""
        if one.stage == "act_grads":
            stage, module, place, unsure = self.borders.place(one)
        elif one.stage == "loss":
            stage, module, place = "loss", "", f"in the loss ({one.key})" if one.key else "in the loss"
            unsure = "" if self.watch.called else "no forward of this model was seen, which may have made it"
        else:
            key = int(one.key)
            stage, name = one.stage, self._names.get(key, "?")
            owners = self._owners.get(key, [""])
            module, place = owners[0], f"{WORDS[stage]} {name}"
            if stage == "param_grads":
                place = f"in backward of {_named(module)}: the gradient of {name}"
                if len(owners) > 1:
                    unsure = f"{name} is shared by {', '.join(map(_named, owners))}"
            elif isinstance(one.key, Unhooked):
                stage, place = "param_grads", f"in the gradient of {name}, which the update takes"
                unsure = "it was not seen as it accumulated: backward made it, or code after backward"
            elif stage == "after_reduce" and self.strategy.name == "FSDP":
                unsure = "it was reduced over ranks: another rank's part, or this rank's own weight gradient"
            elif stage == "after_reduce":
                why = "this rank's own gradients were clean: it came with the reduction, from another rank"
            else:
                why = "finite when backward ended: unscaling, clipping or other code changed it"
        self._event(one.time, stage, module, place, row, one, unsure=unsure, why=why, whole_place=True)

    def _event(
        self,
        moment: float,
        stage: str,
        module: str,
        name: str,
        row: np.ndarray | None,
        tensor: Any,
        *,
        unsure: str = "",
        why: str = "",
        whole_place: bool = False,
    ) -> None:
        place = name if whole_place else f"{WORDS[stage]} {name}"
        number = tensor.step if isinstance(tensor, Taken) else self.step
        event = Event(
            moment, number, stage, module, place, "" if whole_place else name, unsure=unsure, why=why
        )
        if row is not None:
            event.nan, event.inf = float(row[0]), float(row[1] + row[2])
        if tensor is not None:
            event.shape = tensor.shape if isinstance(tensor.shape, str) else "x".join(map(str, tensor.shape))
            event.dtype = str(tensor.dtype).replace("torch.", "")
        self._add(event)

    def _add(self, event: Event) -> None:
        step = self._events.setdefault(event.step, GuardStep(event.step))
        if len(step.events) < MOST_EVENTS or event.time < max(one.time for one in step.events):
            step.events.append(event)
        else:
            self._dropped += 1

    def _left_out(self) -> None:
        """The scaler left the last step out: what its gradients held is expected, unless it goes on so."""
        self.settle()
        self._skipped_steps += 1
        step = self._events.get(self.step)
        if step is not None and not self.scaling.alarm():
            step.events = [one for one in step.events if not _is_expected(one)]
            step.skipped = True
            if not step.events:
                del self._events[self.step]
        self._keep()
        self.step = self.collector.step = self.step + 1
        self.borders.step_ended()

    def _keep(self) -> None:
        """Steps that are over become part of the result."""
        for number in sorted(self._events):
            step = self._events[number]
            if step in self.steps:
                continue
            if step.events and len(self.steps) < MOST_STEPS and not self._may_be_left_out(step):
                self.steps.append(step)
                self._react(step)
                self._write()

    def _may_be_left_out(self, step: GuardStep) -> bool:
        """Whether a scaler may still leave this step out: only its gradients were bad, and no update came."""
        waits = step.number >= self.step and self.scaling.active and not self._ended
        return waits and all(map(_is_expected, step.events))

    @hidden
    def _react_if_bad(self) -> None:
        """Where a reaction can still come before the update."""
        if self.on_bad == "keep" or self._ended:
            return
        self._safely(self.settle)
        step = self._events.get(self.step)
        if step is not None and step.events and not self._may_be_left_out(step):
            if step not in self.steps:
                self.steps.append(step)
            self._react(step)

    def _react(self, step: GuardStep) -> None:
        if step.number in self._reacted:
            return
        self._reacted.add(step.number)
        if self.on_bad == "replay":
            self._safely(self._replay, step)
        elif self.on_bad == "raise" and not self._ended:
            first = step.first
            assert first is not None
            raise NonFiniteError(
                f"first bad number {first.place}", where=f"step {first.step}, stage {first.stage}"
            )
        elif callable(self.on_bad):
            self.on_bad(step)

    def _replay(self, step: GuardStep) -> None:
        """Name the operator behind a step's first bad gradient."""
        first = step.first
        if first is None or first.op is not None or first.op_missing:
            return
        if first.stage == "loss":
            first.op_missing = "the loss is computed outside the model, and its inputs are not kept"
        elif first.stage not in ("act_grads", "param_grads"):
            first.op_missing = "only forwards and backwards are run again"
        elif self.strategy.no_replay:
            first.op_missing = self.strategy.no_replay
        elif not self._saved:
            first.op_missing = "the inputs of this step were not kept"
        else:
            for saved in reversed(self._saved):
                op, missing = self._attempt(backward_op, saved, self.watch, self.borders)
                first.op, first.op_missing = op, missing
                if op is not None:
                    first.module, first.unsure = op.module, ""
                    first.place = f"in backward of {_named(op.module)}"
                    if not op.node:
                        first.stage = "forward"
                        first.place = (
                            f"in forward of {_named(op.module)}, in its own code, which swallowed it"
                        )
                    break

    def _attempt(
        self, run: Callable[..., tuple[Op | None, str]], saved: Saved, *args: Any
    ) -> tuple[Op | None, str]:
        if self.strategy.no_replay:
            return None, self.strategy.no_replay
        try:
            return run(saved, *args)
        except Exception as error:
            return None, f"the replay failed: {type(error).__name__}: {str(error)[:200]}"

    def _write(self) -> None:
        """The record as it is now: a job that is killed loses little."""
        if self.out is not None and not self._writing:
            self._writing = True  # the record asks for the status, which settles, which may keep another step
            try:
                write(self, self.out)
            finally:
                self._writing = False

    def note(self, text: str) -> None:
        if len(self.notes) < 50 and text not in self.notes:
            self.notes.append(text)

    @hidden
    def _safely(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run it; a failure is a note, never an exception in the program. Reactions do pass."""
        try:
            return work(*args)
        except NonFiniteError:
            raise
        except Exception as error:
            self.failed += 1
            self.note(f"{getattr(work, '__name__', 'the guard')}: {type(error).__name__}: {str(error)[:300]}")
            return None


class Surrounded:
    """The `step` of an optimizer class with the guard's looks around it, for torch before 2.0.

    The class is patched, not the optimizer, so that copies and pickles carry nothing along.
    """

    def __init__(self, kind: type[Any], guard: Guard) -> None:
        self._kind, self._plain = kind, kind.step
        plain = self._plain

        @functools.wraps(plain)
        @passes_on
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            guard._before_update(optimizer)
            found = plain(optimizer, *args, **kwargs)
            guard._after_update(optimizer)
            return found

        self._ours = kind.step = step

    def remove(self) -> None:
        """Put the class's own step back, unless another patch lies over this one."""
        if self._kind.step is self._ours:
            self._kind.step = self._plain


def _stage_and_place(birth: Birth, phase: str) -> tuple[str, str, str]:
    """(stage, module, place in words) of a birth that the watch found."""
    if birth.how == "given":
        return "batch", birth.module, f"in the batch: {birth.leaf} of {_named(birth.module)}"
    if birth.how == "weights":
        return "forward", birth.module, f"in forward of {_named(birth.module)}, from its weights"
    if birth.how == "unknown" or birth.how == "cache":
        return "forward", birth.module, birth.place
    spots = birth.place.split(",", 1)
    again = ", in the recomputation of a checkpoint" if phase == "recompute" else ""
    return (
        "forward",
        birth.module,
        f"in forward of {_named(birth.module)}{',' + spots[1] if spots[1:] else ''}{again}",
    )


def _is_expected(event: Event) -> bool:
    """What a scaler makes that looks for its scale: bad gradients, an infinite loss; a NaN loss is none."""
    if event.stage == "loss":
        return event.nan <= 0 or event.place.startswith("in the loss: the gradient")
    return event.stage in GRADIENT_STAGES


def _named(module: str) -> str:
    return module or "the model itself"


def _owner(name: str) -> str:
    path = name.split(": ")[0]
    return path.rsplit(".", 1)[0] if "." in path else ""


def _version(tensor: Tensor) -> int:
    tensor = getattr(tensor, "_local_tensor", tensor)
    if is_unbuilt(tensor):
        return -1
    return -1 if tensor.is_inference() else tensor._version


def _as_list(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
