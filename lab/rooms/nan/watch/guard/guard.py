"""The guard: a training job from batch to updated weights, and where in it the first bad number was made.

Stages are looked at where data passes (see `events.STAGES`): forwards by the watch (`forwards`), losses and
gradients as backward makes them (`losses`, `borders`, `parameters`), state and weights after the update
(`weights`). All of them write into one `state`; `reactions` makes the result of it. Nothing is left on the
model, the optimizer or any tensor; a failure in here becomes a note.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.nan.watch.forward import Forward
from lab.rooms.nan.watch.guard.asked import asked
from lab.rooms.nan.watch.guard.between import local
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.forwards import MOST_BORDERS, BadForwards, GuardedWatch
from lab.rooms.nan.watch.guard.gradient_events import GradientEvents
from lab.rooms.nan.watch.guard.gradients import Collector
from lab.rooms.nan.watch.guard.losses import Losses
from lab.rooms.nan.watch.guard.parameters import ParameterHooks
from lab.rooms.nan.watch.guard.reactions import Reactions
from lab.rooms.nan.watch.guard.record import number_of_guard, write
from lab.rooms.nan.watch.guard.scalers import scalers
from lab.rooms.nan.watch.guard.scaling import is_enabled, leaves_out
from lab.rooms.nan.watch.guard.state import GRADIENT_STAGES, Event, GuardStep, StepState, corrected, first_of
from lab.rooms.nan.watch.guard.updates import parameters_of, state_tensors
from lab.rooms.nan.watch.guard.weights import Weights
from lab.rooms.nan.watch.lane import RECOMPUTE
from lab.rooms.nan.watch.plain import is_unbuilt
from lab.rooms.nan.watch.shared import Surrounded, after_update, backwards, before_update, rehooked
from lab.rooms.nan.watch.steps import Step
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

STEPS_BY = {
    "optimizer": "counted by the optimizer",
    "weights": "counted by writes to the weights, for no optimizer of torch has run",
    "backward": "counted by calls of backward, for no optimizer of torch has run",
}
WRITE_EVERY = 50  # updates between two records


class Guard:
    """Guards a model in training (or inference) between `__enter__` and `__exit__`.

    optimizer: one, several or none (then every optimizer that updates this model's weights is met). scaler: a
    GradScaler, whose skipped steps are no alarms. on_bad: "keep" goes on; "raise" raises NonFiniteError
    before the update that would have used it; "replay" runs a bad step again to name the operator; "break"
    does that and stops at the operator: a debugger stands there; a function is called with the GuardStep.
    counter: as for `nan.watch`. headroom: look at ranges every that many steps
    (0: never). allow: as for `nan.watch`.
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
        allow: Sequence[str] = (),
        out: Any = None,
    ) -> None:
        if on_bad not in ("keep", "raise", "replay", "break") and not callable(on_bad):
            raise UsageError(
                f"invalid on_bad: {on_bad!r}",
                fix='use "keep", "raise", "replay", "break" or a function of a GuardStep',
            )
        self.model, self.on_bad, self.out = model, on_bad, out
        self.reacts = on_bad != "keep"
        self.index = number_of_guard()
        self.state = state = StepState(model, scaler, headroom=headroom, counter=counter)
        self.scaling, self.strategy = state.scaling, state.strategy
        self.headroom, self.counter = state.headroom, state.counter
        self.collector = collector = Collector(state)
        self.borders = borders = Borders(state, collector)
        self.watch = watch = GuardedWatch(state, borders, self, allow)
        self.losses = Losses(state, collector, borders)
        self.weights = weights = Weights(state, _as_list(optimizer))
        self.parameters = ParameterHooks(state, collector, weights)
        self.gradients = GradientEvents(state, collector, borders, weights, watch)
        self.reactions = reactions = Reactions(
            state, on_bad, borders, watch, result_grew=self._write, stops=self.stops_the_program
        )
        self._bad_forwards = BadForwards(state, watch, weights, reactions)
        self._replays = on_bad in ("replay", "break") and not state.strategy.no_replay
        self._handles: list[Any] = []
        self.unseen_forwards = 0  # updates whose gradients came from no forward that was seen
        self._backwards_before = 0  # when the last step by hand was counted
        self._may_be_by_hand = not weights.optimizers  # that the program updates weights itself
        self._entered = self._unbuilt = self._writing = False  # unbuilt: some weights are lazy

    # Entering and leaving

    def __enter__(self) -> Guard:
        if self._entered:
            raise UsageError("this guard has already been used", fix="make a new one: nan.guard(model)")
        self._entered = True
        self.weights.learn_names()
        self._unbuilt = any(map(is_unbuilt, self.model.parameters()))
        self.watch.__enter__()
        self.state.safely(self._write)
        self.state.safely(self.weights.begin, self.watch.weights, self.watch.sentinels)
        self.state.safely(self._attach)
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if self.state.ended:
            return
        try:
            self.state.safely(self._last_look)
        except Exception:  # a reaction's; the program's own exception, if there is one, is the one to pass on
            if kind is None:
                raise
        finally:
            self._end()

    def _end(self) -> None:
        local.between.end()
        self.state.ended = True
        for handle in self._handles:
            self.state.safely(handle.remove)
        self._handles.clear()
        self.state.updating, self.state.updating_weights = None, []
        self.parameters.remove()
        self.reactions.forget()
        before_update.remove(self._before_update)
        after_update.remove(self._after_update)
        rehooked.take_off()
        backwards.remove(self.losses.begins, self.losses.ended)
        asked.remove(self.losses.asked)
        scalers.remove(self)
        self.watch.__exit__()
        self.state.safely(self.settle)
        self.state.safely(self._write)
        local.between.forget()

    def abandon(self) -> None:
        """In a forked child: end without a look or a record, for the parent has both."""
        self.out, self.state.ended = None, True
        self.watch.step_aside()
        before_update.remove(self._before_update)
        after_update.remove(self._after_update)
        backwards.remove(self.losses.begins, self.losses.ended)
        asked.remove(self.losses.asked)
        scalers.remove(self)

    @property
    def is_inside(self) -> bool:
        """Whether this thread runs a forward of the model."""
        return self.watch._lanes.lane.inside

    def has(self, tensor: Tensor) -> bool:
        """Whether this is one of the model's weights."""
        return self.weights.is_one_of(tensor)

    @property
    def losses_taken(self) -> int:
        """Backwards that made gradients of this model."""
        return self.borders.num_taken

    def _attach(self) -> None:
        self.parameters.attach()
        if before_update.exists:
            before_update.add(self._before_update)
            after_update.add(self._after_update)
            rehooked.put_on()
        else:
            self.note(
                f"torch {torch.__version__} has no hooks around updates: the steps of the optimizers "
                "given are surrounded, and other updates are seen at the next forward"
            )
            kinds = {type(optimizer) for optimizer in self.weights.optimizers}
            self._handles += [Surrounded(kind, self._before_update, self._after_update) for kind in kinds]
        backwards.add(self.losses.begins, self.losses.ended)
        asked.add(self.losses.asked)
        scalers.add(self, self.scaling.scaler)

    # What it found

    @property
    def step(self) -> int:
        """Updates so far."""
        return self.state.step

    @property
    def steps(self) -> list[GuardStep]:
        """Those with something bad."""
        return self.state.steps

    @property
    def seen(self) -> Tally[str]:
        """Tensors looked at, by stage."""
        return self.state.looked_at

    @property
    def notes(self) -> list[str]:
        return self.state.notes

    @property
    def failed(self) -> int:
        """How often something in the guard itself failed."""
        return self.state.failed

    @property
    def unknown(self) -> int:
        """Gradients that could not be counted in time."""
        return self.gradients.unknown

    @property
    def skipped_steps(self) -> int:
        """Steps that the scaler left out."""
        return self.scaling.skipped

    @property
    def ended(self) -> bool:
        return self.state.ended

    @property
    def status(self) -> str:
        """bad, nothing-seen (no forward, gradient or update was looked at), partly-seen or clean."""
        self.state.safely(self.settle)
        self.state.safely(self._read_what_was_updated)
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
        self.state.safely(self.settle)
        earliest = first_of(event for step in self.steps for event in step.events)
        if earliest is None or (sure := corrected(earliest, self.steps)) is earliest:
            return earliest
        return replace(sure, step=earliest.step, time=earliest.time)  # a later step shows where, not when

    def not_seen(self) -> list[str]:
        """What was not looked at, in sentences."""
        sentences = list(self.watch.not_seen())
        trained = any(self.seen[stage] for stage in GRADIENT_STAGES) or self.step
        if trained and not self.watch.called:
            sentences.insert(0, "gradients were seen, but no forward of this model: is it compiled?")
        elif self.unseen_forwards:
            times = plural(self.unseen_forwards, "update")
            sentences.insert(0, f"{times} took gradients of no forward that was seen: is it compiled?")
        sentences += [reason] if (reason := self._waits()) else []
        if losses := self.borders.unseen_losses:
            sentences.append(
                f"{plural(losses, 'forward')} in training met no backward, "
                "and no number made of it was asked about"
            )
        if self.unknown:
            sentences.append(f"{plural(self.unknown, 'gradient')} overwritten before being counted")
        sentences += [
            f"{plural(times, 'tensor')} not counted: {reason}"
            for reason, times in self.collector.unread.items()
        ]
        sentences += sorted(self.weights.unread_state)
        if self.failed:
            sentences.append(f"the guard failed {plural(self.failed, 'time')}: {'; '.join(self.notes[-3:])}")
        return sentences

    def __str__(self) -> str:
        """The verdict in five lines."""
        looked_at, absorbed = self.seen, self.watch.absorbed
        counted = STEPS_BY.get(self.state.counted_by, "no update")
        places = ", ".join([*absorbed][:3]) or "none"
        gaps = self.not_seen()
        further = f" and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        lines = (
            f"guard of {type(self.model).__name__}: {self.status}",
            self.sentence(),
            f"looked at: {plural(self.step, 'step')} ({counted}), {plural(self.watch.forwards, 'forward')}, "
            f"{plural(looked_at['loss'], 'loss', 'losses')}",
            f"infinities that did no harm: {places}",
            f"not seen: {gaps[0] + further if gaps else 'nothing'}",
        )
        return "\n".join(lines)

    def sentence(self) -> str:
        """The verdict in one line."""
        status, event = self.status, self.first
        if event is not None:
            op = f" ({event.op})" if event.op else ""
            unsure = event.unsure if event.unsure not in event.place else ""
            doubt = f"; not certain: {unsure}" if unsure else ""
            by = self.state.counted_by
            counted = f"; steps are {STEPS_BY[by]}" if by in ("weights", "backward") else ""
            return f"step {event.step}: first bad number {event.place}{op}{doubt}{counted}"
        if status == "bad":
            return self.scaling.alarm()
        skipped = self.skipped_steps
        left_out = f"; {plural(skipped, 'step')} left out by the scaler" if skipped else ""
        reads, unread = self.weights.reads, self.weights.unread
        read = f"; weights, buffers and state read after {reads} of them" if unread else ""
        waits = f"; {reason}" if (reason := self._waits()) else ""
        return f"{status}: {plural(self.step, 'update')}{left_out}{waits}{read}"

    def _waits(self) -> str:
        """Whether bad gradients were met that a scaler has not decided on."""
        steps = [one.number for one in self.reactions.waiting()]
        if not steps:
            return ""
        numbers = f"step {steps[0]}" + (f" and {len(steps) - 1} more" if steps[1:] else "")
        return f"bad gradients in {numbers} wait for the scaler: its step, or its update, did not come"

    def settle(self) -> None:
        """Wait for all counts so far and take them in."""
        if self.watch.waits:
            self.watch.settle()
        if self.collector.waits:
            self.gradients.settle()

    def note(self, text: str) -> None:
        self.state.note(text)

    # Forwards

    def new_modules(self) -> None:
        """Weights became part of the model, or began to need gradients, after the guard began."""
        self.weights.learn_names()
        self.parameters.attach()

    @passes_on
    def forward_begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        forward.update = self.state.step
        if forward.phase == RECOMPUTE:
            return
        local.between.end()
        if self.losses.asked_waits:
            self._take_what_was_asked()
        if len(self.borders.entered) > MOST_BORDERS:  # a program without an optimizer
            self._settle_safely()
            self.borders.step_ended()
        if not self.state.forward_since_update:
            self.state.forward_since_update = True
            self.parameters.forget()
        if self.scaling.scaler is not None:
            self._decide()
        if not before_update.exists:
            self._look_for_update()
        elif self._may_be_by_hand and self.borders.num_taken > self._backwards_before:
            self._step_by_hand()
        if self._replays:
            forward.saved = self.reactions.save(module, args, kwargs)

    @passes_on
    def forward_ends(self, forward: Forward) -> None:
        if self.collector.waits:
            self.collector.mark()
        forward.time, forward.update = self.state.now(), self.state.step
        if self._unbuilt:
            self._hook_what_is_built()

    @passes_on
    def forward_over(self) -> None:
        if self._replays and self.model.training and torch.is_grad_enabled():
            local.between.begin()

    @hidden
    def _take_what_was_asked(self) -> None:
        self.losses.asked_waits = False
        self._settle_safely()
        self.reactions.keep()

    @hidden
    def _hook_what_is_built(self) -> None:
        self._unbuilt = any(map(is_unbuilt, self.model.parameters()))
        self.parameters.attach()

    def forward_was_bad(self, step: Step, forward: Forward) -> None:
        self._bad_forwards.take(step, forward)
        if self.ended:  # inside of this forward: nothing comes that would keep it
            self.reactions.keep()

    # Updates

    @passes_on
    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if self.state.ended:
            return
        self._before_step(optimizer)

    @hidden
    def _before_step(self, optimizer: Any) -> None:
        parameters = parameters_of(optimizer)
        local.between.end()
        if self._is_ours(optimizer, parameters):
            if self.state.counted_by == "backward":
                self.state.step = 0  # those backwards were parts of this first update
            self.state.counted_by = "optimizer"
            self._goes_on(optimizer)
            self.state.updating, self.state.updating_weights = optimizer, parameters
            self.state.within(self._look_before_update, parameters)
            if self.reacts:
                self.state.within(self._decide_by, optimizer, self.step)
                self.reactions.before_update(self.state.open.get(self.step))
        else:
            self.state.forget_update(id(optimizer))
            self.scaling.met_stranger(optimizer)

    @passes_on
    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if self.state.ended:
            return
        updating, parameters = self.state.updating, self.state.updating_weights
        self.state.updating, self.state.updating_weights = None, []
        if updating is optimizer:
            self.state.within(self._look_after_update, optimizer, parameters)
        else:
            self._after_another(optimizer)

    @hidden
    def _after_another(self, optimizer: Any) -> None:
        parameters = parameters_of(optimizer)
        if self.state.began(id(optimizer)) or self._is_ours(optimizer, parameters):
            self.state.within(self._look_after_update, optimizer, parameters)

    def _is_ours(self, optimizer: Any, parameters: Sequence[Tensor]) -> bool:
        """Whether it was given to the guard, or updates one of the model's weights."""
        for candidate in self.weights.optimizers:
            if candidate is optimizer or getattr(candidate, "optimizer", None) is optimizer:
                return True
        return any(map(self.weights.is_one_of, parameters))

    @passes_on
    def _goes_on(self, optimizer: Any) -> None:
        if self.state.update_begins(id(optimizer)):
            self._without_forward()

    @hidden
    def _without_forward(self) -> None:
        """No forward was seen since the last update: if backward made gradients, one was compiled."""
        self.unseen_forwards += bool(self.borders.losses) and not self.borders.entered

    def _look_before_update(self, parameters: list[Tensor]) -> None:
        self.weights.before_update(parameters)
        self.parameters.before_update(parameters)
        if not self.state.on_gpu or (self.reacts and not self.collector.turned_out_clean()):
            self.settle()

    @passes_on
    def _look_after_update(self, optimizer: Any, parameters: list[Tensor]) -> None:
        self.state.update_returns(id(optimizer))
        if self.state.on_gpu and self.collector.turned_out_clean():
            self.settle()  # while the GPU updates: reading weights waits for it
        self.weights.after_update(optimizer, parameters)
        if not before_update.exists:
            self.weights.note_versions()
        # With a closure, forward and backward ran inside of the update; on a GPU the counts are ready by now.
        if self.collector.waits:
            self._settle_safely()
        if self.state.open and self.scaling.running is not None and leaves_out(optimizer):
            return  # a fused one, which runs in any case
        if not self.reacts:
            self._end_step(optimizer)
            return
        try:
            self.react_if_bad()
        finally:  # the update is over, whatever the reaction raises
            self.reactions.forget()
            self._end_step(optimizer)

    @passes_on
    def _end_step(self, optimizer: Any) -> None:
        if self.headroom.has_points(self.state.step):
            self._note_magnitudes(optimizer)
        self.state.step_ends()
        self.state.infinities_are_gone(self.state.step)
        self.scaling.stepped(optimizer)
        self.borders.step_ended()
        if self.state.open:
            self.state.within(self._decide_by, optimizer, self.state.step - 1)
            self._keep()
        if self.state.step % WRITE_EVERY == 0:
            self._write()

    @hidden
    def _note_magnitudes(self, optimizer: Any) -> None:
        states = (one for _, one in state_tensors(optimizer) if one.dim())
        self.state.within(self.headroom.step_ends, self, states)

    @hidden
    def _settle_safely(self) -> None:
        self.state.within(self.settle)

    @hidden
    def _keep(self) -> None:
        self.reactions.keep()

    # Scalers

    @passes_on
    def scaler_scales(self, scaler: Any) -> None:
        self.losses.scaled_by(scaler)

    @passes_on
    def scaler_begins(self, scaler: Any, optimizer: Any) -> bool:
        if self.state.ended or not is_enabled(scaler):
            return False
        return bool(self.state.within(self._scaler_begins, scaler, optimizer))

    @passes_on
    def scaler_ended(self, scaler: Any, optimizer: Any, belongs: bool, returned: bool) -> None:
        try:
            if returned and not self.state.ended and is_enabled(scaler):
                self.state.within(self._scaler_ended, scaler, optimizer, belongs)
        finally:
            if belongs:
                self.scaling.running = None

    @passes_on
    def scaler_updates(self, scaler: Any) -> None:
        if not self.state.ended and is_enabled(scaler):
            self.state.within(self._scaler_updates, scaler)

    @passes_on
    def _scaler_begins(self, scaler: Any, optimizer: Any) -> bool:
        belongs = self._is_ours(optimizer, parameters_of(optimizer))
        self.scaling.begins(scaler, optimizer, self.state.step if belongs else None)
        return belongs

    @passes_on
    def _scaler_ended(self, scaler: Any, optimizer: Any, belongs: bool) -> None:
        if not belongs:
            self.scaling.ended_other(scaler, optimizer, self.state.step)
        elif self.scaling.ended(scaler, optimizer):
            self._left_out(scaler, id(optimizer))

    @passes_on
    def _scaler_updates(self, scaler: Any) -> None:
        if untold := self.scaling.untold(scaler):
            self._left_out_by_itself(scaler, untold)

    @hidden
    def _left_out_by_itself(self, scaler: Any, untold: list[int]) -> None:
        """The program, and not the scaler, left out what the scaler had found infinities in."""
        self.settle()
        for optimizer in untold if self.reactions.waiting() else ():  # else it is another model's
            self._left_out(scaler, optimizer)

    @hidden
    def _left_out(self, scaler: Any, optimizer: int) -> None:
        """A scaler left out the update of an optimizer, in a step of its own or in one of several."""
        self.settle()
        number = self.state.left_out(optimizer)
        self.borders.step_ended()
        self.reactions.leave_out(self.scaling.left_out(optimizer, scaler, number))

    @passes_on
    def _decide(self) -> None:
        """A forward begins, or the block ends."""
        if self.state.open and self.scaling.left_others_out():
            self.reactions.expect_since(self.scaling.decided)
        self.scaling.decides(self.state.step)
        if self.state.open:
            self._keep()

    @hidden
    def _decide_by(self, optimizer: Any, step: int) -> None:
        """An optimizer updates, or has, in this step: what is bad and it takes is left out by no scaler."""
        if step not in self.state.open or not self.scaling.active:
            return
        takes_bad = self.weights.would_take_bad(parameters_of(optimizer))
        if self.scaling.running is None or (takes_bad and not leaves_out(optimizer)):
            self.scaling.past(step, takes_bad)

    def _is_updating(self) -> bool:
        """Whether an optimizer given runs this forward in its own step, and writes weights in between."""
        return any(getattr(handle, "running", 0) for handle in self._handles)

    @hidden
    def _step_by_hand(self) -> None:
        """A forward after a backward without an optimizer of torch: has the program written weights?"""
        self._backwards_before, state = self.borders.num_taken, self.state
        if state.counted_by == "optimizer" or self.scaling.scaler is not None:
            self._may_be_by_hand = False
            return
        changed = self.weights.changed_without_hooks()
        if changed or state.counted_by != "weights":
            state.counted_by = "weights" if changed else "backward"
            self._settle_safely()
            self._update_without_hooks()
            self.borders.step_ended()

    @hidden
    def _look_for_update(self) -> None:
        if not self._is_updating() and self.weights.changed_without_hooks():
            self._update_without_hooks()

    def _update_without_hooks(self) -> None:
        """torch before 2.0: an update shows in the versions of the weights."""
        self.weights.updated_by(*self.weights.optimizers)
        self.weights.read()
        self.state.step += 1
        self.state.infinities_are_gone(self.state.step)
        self.scaling.stepped(None)
        self.reactions.keep()
        if self.state.step % WRITE_EVERY == 0:
            self._write()

    def _read_what_was_updated(self) -> None:
        if not self.ended:
            self.weights.read_what_was_updated()
            self.reactions.keep()

    def _last_look(self) -> None:
        self.watch.settle()
        if not before_update.exists and self.weights.changed_without_hooks():
            self._update_without_hooks()
        elif self.weights.unread_now:
            self._read_what_was_updated()
        elif not self.state.open:  # no optimizer of torch has run, but the program may have written weights
            self.weights.read()
        self.settle()
        self.state.infinities_stay()
        self.state.infinities_are_gone(self.state.step + 1)
        self._decide()

    def stops_the_program(self) -> None:
        """A reaction is about to raise in the program; a `with` block ends by that alone."""

    @hidden
    def react_if_bad(self) -> None:
        """Where a reaction can still come before the update."""
        if not self.reacts or self.ended:
            return
        self.state.within(self.settle)
        self.reactions.before_update(self.state.open.get(self.step))

    @hidden
    def _write(self, ended: bool | None = None) -> None:
        """The record as it is now: a job that is killed loses little."""
        if self.out is not None and not self._writing:
            self._writing = True  # the record asks for the status, which settles, which may keep another step
            try:
                write(self, self.out, ended=ended)
            finally:
                self._writing = False

    def write_now(self, *, ended: bool) -> None:
        """Write the record as if the process ended here, or to say that it did not."""
        self.state.safely(self._write, ended)


def _as_list(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
