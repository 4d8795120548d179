"""What is bad as events (stage, module, how sure its place is), and what follows from a bad step.

It becomes part of the result, and the guard's `on_bad` is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from lab.rooms.nan.guarded.read import Event, Op
from lab.rooms.nan.watch.explain import NOT_CALLED, Step
from lab.rooms.nan.watch.forward import RECOMPUTE, Forward
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.gradients import AskedLoss, Collector, Taken, Unhooked
from lab.rooms.nan.watch.guard.replay import HOOK, Saved, backward_op, forward_op, local, save, stop_at
from lab.rooms.nan.watch.guard.step import (
    FROM_WEIGHTS,
    GRADIENT_STAGES,
    WORDS,
    GuardStep,
    StepState,
    named,
)
from lab.rooms.nan.watch.guard.weights import Weights, row_of
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.unseen_by_compile import hidden
from lab.rooms.nan.watch.watch import NonFiniteError, Watch

MOST_STEPS = 64  # with something bad that are kept
MOST_EXPECTED = 128  # steps whose bad gradients may turn out to be an alarm
MOST_SAVED = 8  # forwards of a step that can be run again
OnBad = str | Callable[[GuardStep], None]
SHARDED = ("FSDP", "tensor parallel")
OUTSIDE = "the program itself calls it: the batch held it, or code between the model's modules made it"


class Reactions:
    """Keeps bad steps and reacts to each once.

    `result_grew` is called when it has, `stops` before a reaction raises in the program.
    """

    def __init__(
        self,
        state: StepState,
        on_bad: OnBad,
        watch: Watch,
        weights: Weights,
        result_grew: Callable[[], None],
        stops: Callable[[], None],
    ) -> None:
        self._state, self.on_bad = state, on_bad
        self._strategy, self._scaling = state.strategy, state.scaling
        self._watch, self._weights, self._result_grew, self._stops = watch, weights, result_grew, stops
        self._expected: list[tuple[int, list[Event]]] = []  # of the last steps that were left out
        self._saved: list[Saved] = []
        self._named: list[tuple[Event, Saved, str]] = []  # whose operator is known, and how to run it

    @hidden
    def save(self, module: nn.Module, args: Any, kwargs: Any) -> Saved:
        """What it takes to run this forward again, for as long as the step lasts."""
        saved = save(module, args, kwargs)
        self._saved = [*self._saved, saved][-MOST_SAVED:]
        return saved

    def forget(self) -> None:
        """The step is over: its weights have changed since its forwards."""
        self._saved.clear()
        self._named.clear()

    @hidden
    def keep(self) -> None:
        """Steps with something bad become part of the result, as soon as no scaler may leave them out."""
        for number in sorted(self._state.open):
            step = self._state.open[number]
            if step in self._state.steps:
                continue
            if step.events and len(self._state.steps) < MOST_STEPS and not self._may_be_left_out(step):
                self._state.steps.append(step)
                self._react(step)
                self._result_grew()

    def leave_out(self, since: int) -> None:
        """A scaler left a step out: what its gradients held is expected, unless it goes on so.

        since: the first step of the row that it belongs to.
        """
        state = self._state
        if self._scaling.alarm():
            for step_number, events in self._expected:
                if step_number >= since:  # the first of the row is the first that was bad
                    state.open.setdefault(step_number, GuardStep(step_number)).events += events
            self._expected.clear()
            self._scaling.decided = state.step
        else:
            self.expect_since(self._scaling.decided)
        self.keep()

    def expect_since(self, number: int) -> None:
        """Bad gradients of this step and those after it are expected: by them a scaler finds its scale."""
        for step_number in sorted(self._state.open):
            if step_number >= number:
                self._expect(self._state.open[step_number])

    def _expect(self, step: GuardStep) -> None:
        expected = [event for event in step.events if _is_expected(event)]
        if not expected:
            return
        self._expected = [*self._expected, (step.number, expected)][-MOST_EXPECTED:]
        step.events = [event for event in step.events if not _is_expected(event)]
        if not step.events:
            del self._state.open[step.number]
            if step in self._state.steps:  # asked for before the scaler was known
                self._state.steps.remove(step)

    def waiting(self) -> list[GuardStep]:
        """Steps with something bad that a scaler has not decided on."""
        undecided = [step for _, step in sorted(self._state.open.items()) if step not in self._state.steps]
        return [step for step in undecided if step.events and self._may_be_left_out(step)]

    def before_update(self, step: GuardStep | None) -> None:
        """React where it can still come before the update."""
        if step is not None and step.events and not self._may_be_left_out(step):
            if step not in self._state.steps:
                self._state.steps.append(step)
            self._react(step)

    def _may_be_left_out(self, step: GuardStep) -> bool:
        """Whether a scaler may still leave this step out: only its gradients were bad."""
        is_decided = not self._scaling.active or step.number < self._scaling.decided
        return not is_decided and all(map(_is_expected, step.events))

    def _react(self, step: GuardStep) -> None:
        if step.reacted:
            return
        step.reacted = True
        try:
            self._do(step)
        except BaseException as error:
            self._state.reaction = error
            self._stops()
            raise

    def _do(self, step: GuardStep) -> None:
        if self.on_bad in ("replay", "break"):
            self._state.safely(self._replay, step)
            if self.on_bad == "break" and not self._state.ended:
                self._break(step)
        elif self.on_bad == "raise" and not self._state.ended:
            event = step.first
            assert event is not None
            raise NonFiniteError(str(event), location=f"step {event.step}, stage {event.stage}")
        elif callable(self.on_bad):
            self.on_bad(step)

    def _replay(self, step: GuardStep) -> None:
        """Name the operator behind a step's first bad gradient."""
        event = step.first
        if event is None or event.op is not None or event.op_missing:
            return
        if event.stage == "loss":
            event.op, event.op_missing = local.between.first_bad()
            return
        if self._strategy.no_replay:
            event.op_missing = self._strategy.no_replay
        elif event.stage not in ("act_grads", "param_grads"):
            event.op_missing = "only forwards and backwards are run again"
        elif not self._saved:
            event.op_missing = "the inputs of this step were not kept"
        for saved in reversed(self._saved if not event.op_missing else []):
            op, event.op_missing = self._attempt(backward_op, saved, self._watch)
            if op is not None:
                self._named.append((event, saved, ""))
                _name_backward_op(event, op)
                return

    def _break(self, step: GuardStep) -> None:
        """Stop at the operator of the step's first bad number, or here if it cannot be reached again."""
        event = step.first
        assert event is not None
        for named_event, saved, scope in self._named:
            if named_event is event and event.op is not None:
                stop_at(event.op, saved, self._watch, scope)
        raise NonFiniteError(str(event), location=f"step {event.step}")

    def forward_was_bad(self, step: Step, forward: Forward) -> None:
        """Turn a bad forward into events, after what weights held before it."""
        birth, moment, watch = step.births[0], forward.time - 0.5, self._watch
        self._weights.read_what_was_updated(moment=moment)
        for weight in watch.bad_weights(read=birth.kind == "weights"):
            self._weights.was_bad(weight["name"], row_of(weight), moment=moment - 0.25)
        outside = OUTSIDE if birth.kind == "given" and birth.module else ""
        unsure = birth.unsure or outside or self._maybe_another_rank(birth)
        number = forward.update if forward.update >= 0 else self._state.step
        stage, place = _stage_and_place(birth, step.phase)
        event = Event(number, stage, place, moment, birth.module, birth.leaf, unsure=unsure)
        event.extremes = tuple(step.extremes)
        if forward.saved is not None and birth.kind not in ("given", "weights"):
            self._name_forward_op(event, birth, forward.saved)
        self._state.add(event)

    def _maybe_another_rank(self, birth: Birth) -> str:
        """Under sharded weights a module's output rests on other ranks too."""
        module = self._watch.modules.named(birth.module)
        if self._strategy.name not in SHARDED or birth.kind != "output" or module is None:
            return ""
        if not any(hasattr(parameter, "placements") for parameter in module.parameters()):
            return ""
        return (
            f"the weights of {named(birth.module)} are spread over ranks: this rank's part is clean, "
            "another's may not be, or its collective brought it; see the other ranks' records"
        )

    def _name_forward_op(self, event: Event, birth: Birth, saved: Saved) -> None:
        scope = birth.module if birth.kind != "unknown" else birth.module.rpartition(".")[0]
        op, missing = self._attempt(forward_op, saved, self._watch, scope)
        event.op, event.op_missing = op, missing
        if op is not None:
            self._named.append((event, saved, scope))
        if op is not None and event.unsure and NOT_CALLED not in event.unsure:  # which it does not see either
            event.module, event.place, event.unsure = op.module, f"in forward of {named(op.module)}", ""

    def _attempt(
        self, run: Callable[..., tuple[Op | None, str]], saved: Saved, *args: Any
    ) -> tuple[Op | None, str]:
        if self._strategy.no_replay:
            return None, self._strategy.no_replay
        try:
            return run(saved, *args)
        except Exception as error:
            return None, f"the replay failed: {type(error).__name__}: {str(error)[:200]}"


def _name_backward_op(event: Event, op: Op) -> None:
    event.op = op
    if op.node == HOOK:  # its place is where its tensor is, whatever code put it there
        event.unsure = "a hook of the program's made it, which any code may have put there"
        return
    event.module, event.unsure = op.module, ""
    event.place = f"in backward of {named(op.module)}"
    if not op.node:
        event.stage = "forward"
        event.place = f"in forward of {named(op.module)}, in its own code, which swallowed it"


def _is_expected(event: Event) -> bool:
    """What a scaler makes that looks for its scale: bad gradients, an infinite loss; a NaN loss is none."""
    if event.stage == "loss":
        return event.nan <= 0 or event.place.startswith("in the loss: the gradient")
    return event.stage in GRADIENT_STAGES


def _stage_and_place(birth: Birth, phase: str) -> tuple[str, str]:
    """(stage, place) of a birth that the watch found."""
    whose = named(birth.module)
    if birth.kind == "given" and birth.module:
        return "forward", f"before forward of {whose}: in {birth.leaf}, which it was given"
    if birth.kind == "given":
        return "batch", f"in the batch: {birth.leaf} of {whose}"
    if birth.kind == "weights":
        return "forward", f"in forward of {whose}, {FROM_WEIGHTS}"
    if birth.kind == "unknown":
        return "forward", birth.place
    spots = birth.place.split(",", 1)
    between = f",{spots[1]}" if spots[1:] else ""
    again = ", in the recomputation of a checkpoint" if phase == RECOMPUTE else ""
    return "forward", f"in forward of {whose}{between}{again}"


class GradientEvents:
    """Takes in the counts of gradients."""

    def __init__(
        self,
        state: StepState,
        collector: Collector,
        borders: Borders,
        weights: Weights,
        watch: Watch,
    ) -> None:
        self._state, self._collector, self._borders = state, collector, borders
        self._weights, self._watch = weights, watch
        self.unknown = 0  # tensors that could not be counted in time

    def settle(self) -> None:
        """Wait for all counts so far, and take them in in order of time."""
        for taken, rows in self._collector.settled():
            self._take(taken, rows)

    def _take(self, taken: list[Taken], rows: np.ndarray) -> None:
        self.unknown += int((rows[:, 0] < 0).sum())
        for stage in {entry.stage for entry in taken} if rows[:, 4].max(initial=-1) > 0 else ():
            of_stage = [n for n, entry in enumerate(taken) if entry.stage == stage]
            self._state.headroom.met(stage, [taken[n].dtype for n in of_stage], rows[of_stage, 4])
        bad = rows[:, :3].sum(axis=1) > 0
        if not bad.any():
            return
        self._watch.name_anew()  # events take the present names
        self._weights.name_anew()
        self._weights.read_what_was_updated(moment=taken[0].time)
        for index in np.flatnonzero(bad):
            self._was_bad(taken[index], rows[index])

    def _was_bad(self, taken: Taken, row: np.ndarray) -> None:
        stage, module, place, unsure, reason = self._place(taken)
        words = {"module": module, "place": place, "unsure": unsure, "reason": reason}
        self._state.event(stage, row, taken, step=taken.step, time=taken.time, **words)

    def _place(self, taken: Taken) -> tuple[str, str, str, str, str]:
        """(stage, module, place, why unsure, why)"""
        if taken.stage == "act_grads":
            return (*self._borders.place(taken), "")
        if taken.stage == "loss":
            place = f"in the loss ({taken.key})" if taken.key else "in the loss"
            reason = "seen where the program asked about it" if isinstance(taken.key, AskedLoss) else ""
            return "loss", "", place, self._forward_doubt(taken.step), reason
        name = self._weights.names.get(int(taken.key), "?")
        owners = self._weights.owners.get(int(taken.key), [""])
        module = owners[0]
        if taken.stage == "param_grads":
            unsure = f"{name} is shared by {', '.join(map(named, owners))}" if len(owners) > 1 else ""
            unsure = unsure or self._weight_doubt(module)
            if outside := self._borders.outside_use(self._weights.parameter(name)):
                unsure = outside
            if self._weights.has_hooks(name):
                unsure = f"the program has a hook on {name}, which may have made it"
            place = f"in backward of {named(module)}: the gradient of {name}"
            return "param_grads", module, place, unsure, ""
        if isinstance(taken.key, Unhooked):
            unsure = "it was not seen as it accumulated: backward made it, or code after backward"
            place = f"in the gradient of {name}, which the update takes"
            return "param_grads", module, place, unsure, ""
        place = f"{WORDS[taken.stage]} {name}"
        if taken.stage == "after_reduce" and self._state.strategy.name == "FSDP":
            unsure = "it was reduced over ranks: another rank's part, or this rank's own weight gradient"
            return taken.stage, module, place, unsure, ""
        if taken.stage == "after_reduce":
            reason = (
                "this rank's own gradients were clean: the reduction brought it from another rank, or "
                "made it (a sum that overflows, a communication hook)"
            )
            return taken.stage, module, place, "", reason
        reason = "finite when backward ended: unscaling, clipping or other code changed it"
        return taken.stage, module, place, "", reason

    def _forward_doubt(self, step: int) -> str:
        """Why a bad loss of this step may have come from a forward that was not seen; "" if it did not."""
        if reason := self._state.lost.get(step):
            return f"a forward of this step could not be counted in full, and may have made it: {reason}"
        unseen = step == self._state.step and not self._state.forward_since_update
        if not self._watch.called or unseen:
            return "no forward of this model was seen before it, which may have made it"
        return ""

    def _weight_doubt(self, module: str) -> str:
        """Why a bad gradient of a module's weight may be of other code than its own; "" if it is not."""
        number = self._state.modules.number_of(module)
        if number not in self._watch.called:
            return f"{named(module)} was not called: other code that uses its weights may have made it"
        if number in self._watch.callers:
            return f"what {named(module)} called may have made it; a replay names the operator"
        return ""
