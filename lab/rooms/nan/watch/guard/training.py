"""One training step, top to bottom: what each stage looks at, and when.

Batch and forward, loss, backward, gradients, scaling, clipping, state and weights. Each stage has a class
with `enter` before it, `look` at what passes and `leave` after it; all of them write into one `StepState`,
and `reactions` makes the result of it. Nothing is left on the model, the optimizer or any tensor; a failure
in here becomes a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.count import all_clean
from lab.rooms.nan.watch.explain import Judged, Step
from lab.rooms.nan.watch.forward import RECOMPUTE, Forward, Lane
from lab.rooms.nan.watch.guard.borders import Borders, Losses
from lab.rooms.nan.watch.guard.gradients import Collector, ParameterHooks
from lab.rooms.nan.watch.guard.reactions import GradientEvents, OnBad, Reactions
from lab.rooms.nan.watch.guard.replay import local
from lab.rooms.nan.watch.guard.scaling import found_infinity_of, leaves_out, scalers
from lab.rooms.nan.watch.guard.step import StepState
from lab.rooms.nan.watch.guard.weights import Weights, parameters_of
from lab.rooms.nan.watch.leaves import is_unbuilt
from lab.rooms.nan.watch.shared import after_update, asked, backwards, before_update
from lab.rooms.nan.watch.unseen_by_compile import hidden
from lab.rooms.nan.watch.watch import Watch

WRITE_EVERY = 50  # updates between two records
FIRST_ASKED, ASK_EVERY = 2, 64  # updates, before and between looks at a GPU's free memory
MOST_BORDERS = 20_000  # gradients at borders that are remembered within a step
MOST_LOST = 10_000  # steps with forwards that could not be counted, of which the reason is kept
FREE_PART = 4  # one part in so many of it may be held
OVERWRITTEN = "tensors were overwritten in place before being counted"


class Forwards(Watch):
    """The batch and the forwards of a step: the watch, which tells the training when they begin and end."""

    def __init__(self, state: StepState, training: Training, allow: Sequence[str]) -> None:
        super().__init__(
            state.model, counter=state.count, keep_rows=False, modules=state.modules, allow=allow
        )
        self._state, self._training = state, training
        self._least_budget, self._ask_at = self.budget_bytes, FIRST_ASKED

    def meet_new_modules(self) -> None:
        super().meet_new_modules()
        self._state.safely(self._training.weights.learn_names)
        self._state.safely(self._training.parameters.enter)

    def begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._state.on_gpu and self._state.step >= self._ask_at:
            self._ask_at = self._state.step + ASK_EVERY
            self._state.within(self._ask_for_memory)
        self._state.within(self._training.forward_begins, forward, module, args, kwargs)

    def _take_one(self, forward: Forward) -> None:
        unknown = self.unknown
        super()._take_one(forward)
        reason = forward.failed or (OVERWRITTEN if self.unknown > unknown else "")
        if reason and len(self._state.lost) < MOST_LOST:
            self._state.lost[forward.update] = reason[:200]

    def _aside(
        self, lane: Lane, reason: str, inner: seam.Call, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if len(self._state.lost) < MOST_LOST:
            self._state.lost[self._state.step] = reason
        return super()._aside(lane, reason, inner, module, args, kwargs)

    def take_clean(self, forward: Forward) -> bool:
        if not forward.fp8:
            self._add(forward)
        return not forward.fp8

    def _add(self, forward: Forward) -> None:
        self.forwards += forward.phase != RECOMPUTE
        self.recomputed += forward.phase == RECOMPUTE

    def take(self, forward: Forward) -> None:
        rows, clean = forward.rows, all_clean(forward.rows)
        is_bad = not clean and bool((rows[:, :3] > 0).any())
        if is_bad and not (self.has_loss(forward) and self._explainer.all_absorbed(forward)):
            self.name_anew()  # torch does not tell of all that leave the model or move in it
            super().take(forward)
        else:
            self._add(forward)
            if forward.fp8:
                self._note_saturated(forward)
        if not clean and len(rows) and rows[:, 4].max() > 0:
            dtypes = [dtype for _, dtype in forward.shapes()]
            self._state.within(self._state.headroom.met, "forward", dtypes, rows[:, 4])

    def has_loss(self, forward: Forward) -> bool:
        return forward.passage is not None

    def wait_for_loss(self, forward: Forward, judged: Judged) -> None:
        def reached(nan: bool) -> None:
            bad = judged.bad
            if (bad is None or not bad.any()) and not nan:
                bad = judged.masks
            if bad is not None and bad.any():
                step = Step(forward.number, forward.phase, forward.query_length, int(bad.sum()))
                self._explainer.explain(step, forward, bad, self._count)
                self._training.forward_was_bad(step, forward)

        forward.let_go()  # shapes stay: they are asked for when the loss is known
        waiting = self._state.waiting.setdefault(forward.update, [])
        waiting.append((reached, partial(self.absorb, judged)))

    def passing(self, forward: Forward) -> None:
        self._state.within(self._training.borders.enter, forward)

    def ends(self, forward: Forward) -> None:
        self._state.within(self._training.forward_ends, forward)

    def _ask_for_memory(self) -> None:
        """After whole steps, a forward may hold more of what the driver has free.

        One that is counted as a whole is read by a few comparisons (`Pattern`), in less time.
        """
        free = torch.cuda.mem_get_info(self._state.device)[0]
        self.budget_bytes = max(self._least_budget, free // FREE_PART)

    def stepped(self, step: Step, forward: Forward) -> None:
        if step.births:
            self._training.forward_was_bad(step, forward)
        else:
            self._steps.clear()  # a training job has no end of forwards

    def react(self, forward: Forward) -> None:
        if not self._waiting:  # else it is clean
            self._training.react_if_bad()
        self._training.forward_over()

    @property
    def is_inside(self) -> bool:
        """Whether this thread runs a forward of the model."""
        return self._lanes.lane.inside


class Training:
    """The stages of one model's training steps."""

    def __init__(
        self,
        state: StepState,
        optimizers: list[Any],
        on_bad: OnBad,
        *,
        allow: Sequence[str],
        write: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        """`write` brings the record up to date; `stop` is called before a reaction raises in the program."""
        self.state, self.scaling, self._write = state, state.scaling, write
        self.reacts = on_bad != "keep"
        self._replays = on_bad in ("replay", "break") and not state.strategy.no_replay
        self.collector = Collector(state)
        self.borders = Borders(state, self.collector)
        self.watch = Forwards(state, self, allow)
        self.losses = Losses(state, self.collector, self.borders)
        self.weights = Weights(state, optimizers)
        self.parameters = ParameterHooks(state, self.collector, self.weights)
        self.reactions = Reactions(state, on_bad, self.watch, self.weights, write, stop)
        self.gradients = GradientEvents(state, self.collector, self.borders, self.weights, self.watch)
        self.unseen_forwards = 0  # updates whose gradients came from no forward that was seen
        self._backwards_before = 0  # when the last step by hand was counted
        self._may_be_by_hand = not optimizers  # that the program updates weights itself
        self._unbuilt = False  # some weights are lazy

    def begin(self) -> None:
        self.weights.learn_names()
        self._unbuilt = any(map(is_unbuilt, self.state.model.parameters()))
        self.watch.__enter__()
        self.state.safely(self.weights.begin, self.watch.weights, self.watch.sentinels)
        self.state.safely(self._attach)

    def _attach(self) -> None:
        self.parameters.enter()
        before_update.add(self.update_begins)
        after_update.add(self.update_ends)
        if not before_update.exists:
            self.state.note(
                f"torch {torch.__version__} has no hooks around updates: the steps of the optimizers "
                "given are surrounded, and other updates are seen at the next forward"
            )
            for optimizer in self.weights.optimizers:
                after_update.surround(type(optimizer))
        backwards.add(self.losses.enter, self.losses.leave)
        asked.add(self.losses.look)
        scalers.add(self)
        if self.scaling.scaler is not None:
            scalers.meet([type(self.scaling.scaler)])

    # Batch and forward

    def forward_begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The outermost module is called."""
        forward.update = self.state.step
        if forward.phase == RECOMPUTE:
            return
        local.between.end()
        if self.losses.asked_waits:
            self._take_what_was_asked()
        if len(self.borders.entered) > MOST_BORDERS:  # a program without an optimizer
            self._settle_safely()
            self.borders.leave()
        if not self.state.forward_since_update:
            self.state.forward_since_update = True
            self.parameters.leave()
        if self.scaling.active:
            self.decide()
        if not before_update.exists:
            self._look_for_update()
        elif self._may_be_by_hand and self.borders.num_taken > self._backwards_before:
            self._step_by_hand()
        if self._replays:
            forward.saved = self.reactions.save(module, args, kwargs)

    def forward_ends(self, forward: Forward) -> None:
        """It returned or raised; its tensors are not counted yet."""
        forward.time, forward.update = self.state.now(), self.state.step
        if self._unbuilt:
            self._hook_what_is_built()

    def forward_over(self) -> None:
        """The program goes on behind a forward that returned: of what it does now a loss is made."""
        if self._replays and self.state.model.training and torch.is_grad_enabled():
            local.between.begin()

    def forward_was_bad(self, step: Step, forward: Forward) -> None:
        """It was counted, and something bad was made in it."""
        self.reactions.forward_was_bad(step, forward)
        if self.state.ended:  # inside of this forward: nothing comes that would keep it
            self.reactions.keep()

    @hidden
    def _hook_what_is_built(self) -> None:
        self._unbuilt = any(map(is_unbuilt, self.state.model.parameters()))
        self.parameters.enter()

    # Loss, backward and gradients pass by the hooks of `losses`, `borders` and `parameters`

    @hidden
    def _take_what_was_asked(self) -> None:
        self.losses.asked_waits = False
        self._settle_safely()
        self.reactions.keep()

    # Scaling

    def scaler_scales(self, scaler: Any) -> None:
        self.scaling.scaled = True

    def scaler_begins(self, scaler: Any, optimizer: Any) -> None:
        if not self.state.ended and self._is_ours(optimizer, parameters_of(optimizer)):
            self.scaling.enter(scaler, optimizer, self.state.step)

    @hidden
    def scaler_ended(self, scaler: Any, optimizer: Any, returned: bool) -> None:
        is_ours = self._is_ours(optimizer, parameters_of(optimizer))
        try:
            if returned and not self.state.ended:
                self.state.within(self._scaler_ended, scaler, optimizer, is_ours)
        finally:
            if is_ours:
                self.scaling.running = None

    def _scaler_ended(self, scaler: Any, optimizer: Any, is_ours: bool) -> None:
        if is_ours:
            if self.scaling.leave(scaler, optimizer):
                self._left_out(scaler, id(optimizer))
        elif found_infinity_of(scaler, optimizer):
            # Of another model: what the same loss made of this one is not used either.
            self.settle()
            self.reactions.expect_since(self.scaling.decided)

    @hidden
    def scaler_updates(self, scaler: Any) -> None:
        if not self.state.ended:
            self.state.within(self._scaler_updates, scaler)

    def _scaler_updates(self, scaler: Any) -> None:
        """The program, and not the scaler, may have left out what the scaler had found infinities in."""
        optimizers = self.scaling.forgotten(scaler)
        if optimizers:
            self.settle()
        for optimizer in optimizers if self.reactions.waiting() else ():  # else it is another model's
            self._left_out(scaler, optimizer)

    def _left_out(self, scaler: Any, optimizer: int) -> None:
        """A scaler left out the update of an optimizer, in a step of its own or in one of several."""
        self.settle()
        number = self.state.left_out(optimizer)
        self.borders.leave()
        self.reactions.leave_out(self.scaling.left_out(optimizer, scaler, number))

    def decide(self) -> None:
        """A forward begins, or the block ends: the steps before are left out by no scaler."""
        self.scaling.decides(self.state.step)
        if self.state.open:
            self.reactions.keep()

    def _decide_by(self, optimizer: Any, step: int) -> None:
        """An optimizer updates, or has, in this step: what is bad and it takes is left out by no scaler."""
        if step not in self.state.open or not self.scaling.active:
            return
        takes_bad = self.weights.would_take_bad(parameters_of(optimizer))
        if takes_bad and (self.scaling.running is None or not leaves_out(optimizer)):
            self.scaling.decides(step + 1)

    # Clipping: gradients before the update

    @hidden
    def update_begins(self, optimizer: Any, *_: Any) -> None:
        if self.state.ended:
            return
        parameters, state = parameters_of(optimizer), self.state
        local.between.end()
        if not self._is_ours(optimizer, parameters):
            state.begun_at.pop(id(optimizer), None)  # never returned: another optimizer had this id
            state.within(self.weights.met_another, optimizer, parameters)
            return
        if state.counted_by == "backward":
            self._settle_safely()
        state.count_by_optimizer()
        if state.update_begins(id(optimizer)):  # if backward made gradients, a forward was compiled
            self.unseen_forwards += bool(self.borders.losses) and not self.borders.entered
        state.updating, state.updating_weights = optimizer, parameters
        state.within(self._look_before_update, parameters)
        if self.reacts:
            state.within(self._decide_by, optimizer, state.step)
            self.reactions.before_update(state.open.get(state.step))

    def _look_before_update(self, parameters: list[Tensor]) -> None:
        self.weights.enter(parameters)
        self.parameters.look_before_update(parameters)
        if not self.state.on_gpu or (self.reacts and not self.collector.turned_out_clean()):
            self.settle()

    def _is_ours(self, optimizer: Any, parameters: Sequence[Tensor]) -> bool:
        """Whether it was given to the guard, or updates one of the model's weights."""
        for candidate in self.weights.optimizers:
            if candidate is optimizer or getattr(candidate, "optimizer", None) is optimizer:
                return True
        return any(map(self.weights.is_one_of, parameters))

    # State and weights: after the update

    @hidden
    def update_ends(self, optimizer: Any, *_: Any) -> None:
        state = self.state
        if state.ended:
            return
        updating, parameters = state.updating, state.updating_weights
        state.updating, state.updating_weights = None, []
        if updating is not optimizer:  # another one ran inside of its update
            parameters = parameters_of(optimizer)
            if not (id(optimizer) in state.begun_at or self._is_ours(optimizer, parameters)):
                return
        state.within(self._look_after_update, optimizer, parameters)

    def _look_after_update(self, optimizer: Any, parameters: list[Tensor]) -> None:
        self.state.update_returns(id(optimizer))
        if self.state.on_gpu and self.collector.turned_out_clean():
            self.settle()  # while the GPU updates: reading weights waits for it
        self.weights.leave(optimizer, parameters)
        if not before_update.exists:
            self.weights.changed_without_hooks()  # from here on
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

    def _end_step(self, optimizer: Any) -> None:
        self.state.step_ends()
        self.state.infinities_are_gone(self.state.step)
        self.borders.leave()
        self.scaling.update_was_made(optimizer)
        if self.state.open:
            self.state.within(self._decide_by, optimizer, self.state.step - 1)
            self.reactions.keep()
        if self.state.step % WRITE_EVERY == 0:
            self._write()

    # Updates that no optimizer of torch makes

    @hidden
    def _step_by_hand(self) -> None:
        """A forward after a backward without an optimizer of torch: has the program written weights?"""
        self._backwards_before, state = self.borders.num_taken, self.state
        if state.counted_by == "optimizer" or self.scaling.active:
            self._may_be_by_hand = state.counted_by != "optimizer"
            return
        changed = self.weights.changed_without_hooks()
        if changed or state.counted_by != "weights":
            state.counted_by = "weights" if changed else "backward"
            self._settle_safely()
            self._update_without_hooks()
            self.borders.leave()

    @hidden
    def _look_for_update(self) -> None:
        if not after_update.running and self.weights.changed_without_hooks():
            self._update_without_hooks()

    def _update_without_hooks(self) -> None:
        """An update shows in the versions of the weights."""
        self.weights.updated_by(*self.weights.optimizers)
        self.weights.look()
        self.state.step += 1
        self.state.infinities_are_gone(self.state.step)
        self.reactions.keep()
        if self.state.step % WRITE_EVERY == 0:
            self._write()

    # What was found so far

    @hidden
    def settle(self) -> None:
        """Wait for all counts so far and take them in."""
        if self.watch.waits:
            self.watch.settle()
        if self.collector.waits:
            self.gradients.settle()

    def _settle_safely(self) -> None:
        self.state.within(self.settle)

    @hidden
    def react_if_bad(self) -> None:
        """Where a reaction can still come before the update."""
        if not self.reacts or self.state.ended:
            return
        self.state.within(self.settle)
        self.reactions.before_update(self.state.open.get(self.state.step))

    def read_what_was_updated(self) -> None:
        if not self.state.ended:
            self.weights.read_what_was_updated()
            self.reactions.keep()

    def last_look(self) -> None:
        self.watch.settle()
        if not before_update.exists and self.weights.changed_without_hooks():
            self._update_without_hooks()
        elif self.weights.since_read:
            self.read_what_was_updated()
        elif not self.state.open:  # no optimizer of torch has run, but the program may have written weights
            self.weights.look()
        self.settle()
        self.state.infinities_stay()
        self.state.infinities_are_gone(self.state.step + 1)
        self.decide()

    def end(self) -> None:
        local.between.end()
        self.state.ended = True
        self.state.updating, self.state.updating_weights = None, []
        self.parameters.remove()
        self.reactions.forget()
        self._take_off()
        self.watch.__exit__()
        self.state.safely(self.settle)
        local.between.forget()

    def abandon(self) -> None:
        """In a forked child: end without a look, for the parent has it all."""
        self.state.ended = True
        self.watch.step_aside()
        self._take_off()

    def _take_off(self) -> None:
        before_update.remove(self.update_begins)
        after_update.remove(self.update_ends)
        backwards.remove(self.losses.enter, self.losses.leave)
        asked.remove(self.losses.look)
        scalers.remove(self)
