"""Collects the calls of every module while a model runs, and counts their tensors at the end.

Each call only appends references to a list: no kernel is launched, nothing waits. References are counted and
let go piece by piece if they would fill the memory.

What was written in place after it passed is not what passed. The first forward of a phase counts each tensor
as it passes, and looks whether anything is written in place later. If not, the next ones are counted at
their end. A tensor that was written all the same is unknown in that forward, and from the next one on each
tensor is counted as it passes.

Calls come from one patch of `nn.Module.__call__` (`seam`), so that nothing is left on the model. Torch hooks
are not used: they cost several microseconds per module, and torch 1.12 cannot give them keyword arguments.
Whatever fails in here becomes a note; the program that is watched never sees it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.count import KINDS, Counted, Counter, beginning, reads_only
from lab.rooms.nan.watch.forward import (
    ASIDE,
    AT_ONCE,
    COLLECT,
    RECOMPUTE,
    Forward,
    Lane,
    Lanes,
    Pattern,
    blind,
    phase_of,
    recomputing,
    versions_are_missing,
)
from lab.rooms.nan.watch.leaves import (
    Passed,
    arguments_as_passed,
    as_passed,
    in_transform,
    quiet,
)
from lab.rooms.nan.watch.seam import Modules
from lab.rooms.nan.watch.shared import new_module, new_parameter
from lab.rooms.nan.watch.unseen_by_compile import hidden, leave_alone

WEIGH_EVERY = 128  # values that passed between two looks at the memory that references hold
MOST_NOTES = 50
MOST_FORWARDS_WAITING = 64


class Recorder(ABC):
    """Sees the calls of a model's modules; a subclass takes each whole forward when it ends."""

    def __init__(
        self, model: nn.Module, count: Counter, budget_bytes: int, modules: Modules | None = None
    ) -> None:
        self.model, self.budget_bytes = model, budget_bytes
        self.notes: list[str] = []
        self.unseen: Tally[tuple[str, str, str]] = Tally()  # (module, leaf, why)
        self.blind: Tally[str] = Tally()  # why whole forwards were not seen
        self.direct: Tally[str] = Tally()  # sentences about modules that ran without having been called
        self.failed = self.unknown = 0  # forwards that could not be counted; leaves overwritten too early
        self.uncounted: Tally[str] = Tally()  # why tensors could not be counted
        self.called: set[int] = set()
        self.callers: set[int] = set()  # modules that called others
        self.modules = modules or Modules(model)
        self._grown = False  # a module of the model has got a new module or parameter
        self._makers: list[tuple[nn.Module, seam.Make, seam.Direct]] = []
        self._count = count
        self._begin_count, self._reads_only = beginning(count), reads_only(count)
        self._lock, self._numbers = threading.RLock(), itertools.count()
        self._lanes = Lanes(self._weigh)
        self._light: dict[str, bool] = {}  # by phase that was met: whether it held little memory
        self._patterns: dict[str, Pattern] = {}  # the last forward of each phase
        self._last_calls: list[list[Any]] = []
        self._waiting: deque[Forward] = deque()
        # Overwriting modules leave nothing to count later, so each tensor is counted at once.
        self._at_once = any(getattr(module, "inplace", False) is True for module in self.modules.all)
        self._ended = False

    @abstractmethod
    def take(self, forward: Forward) -> None:
        """A forward has ended, by an exception too, and its counts are there."""

    @abstractmethod
    def react(self, forward: Forward) -> None:
        """A forward that `take` was given ended without an exception."""

    # Hooks for the guard.

    def take_clean(self, forward: Forward) -> bool:
        """All of the forward was counted at once, and nothing is bad; whether that is all that is to know."""
        return False

    def begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward begins."""
        return None

    def passing(self, forward: Forward) -> None:
        """A part of a forward was read, and its tensors can still be reached."""
        return None

    def ends(self, forward: Forward) -> None:
        """A forward has ended and is not counted yet."""
        return None

    def takes_at_once(self, forward: Forward) -> bool:
        """Whether a forward that has ended is taken before the program goes on."""
        return True

    def attach(self) -> None:
        leave_alone()  # each time: a guard's modules may be loaded while another watch is open
        self._attach_from(0)
        for hook in (new_module, new_parameter):
            hook.add(self._something_was_registered)

    def detach(self) -> None:
        self._ended = True
        for hook in (new_module, new_parameter):
            hook.remove(self._something_was_registered)
        missed = [name for name, _ in self.modules.unmet()]
        if missed:
            self.blind[f"of {', '.join(missed[:5])}, which became part of the model inside the block"] += 1
        for module, make, _ in self._makers:
            seam.remove(module, make)
        self._makers.clear()
        self.settle()
        self._lanes = Lanes(self._weigh)

    def step_aside(self) -> None:
        """Let calls pass by until `stepping_in`; what was learnt of the model stays."""
        for module, make, _ in self._makers:
            seam.remove(module, make)

    @contextlib.contextmanager
    def stepping_in(self) -> Iterator[None]:
        """See calls again, after `step_aside`, for as long as the block lasts."""
        for module, make, direct in self._makers:
            seam.add(module, make, direct)
        try:
            yield
        finally:
            self.step_aside()

    @property
    def waits(self) -> bool:
        """Whether forwards have ended that were not taken."""
        return bool(self._waiting)

    @hidden
    def settle(self) -> None:
        """Count what waits, and take the forwards it belongs to."""
        with self._lock:
            while self._waiting:
                self._take_one(self._waiting.popleft())

    def _something_was_registered(self, module: nn.Module, *_: Any) -> None:
        """torch calls this for every module and parameter that becomes part of a module, of any model."""
        self._grown = self._grown or module in self.modules

    @hidden
    def meet_new_modules(self) -> None:
        """See modules too that became part of the model after the watch began."""
        self._grown = False
        num_before = len(self.modules.all)
        self.modules.meet()
        self._attach_from(num_before)
        self.name_anew()
        self._patterns.clear()
        self._light.clear()  # what they take may be written: a weight, as with weight norm

    def name_anew(self) -> None:
        """Give modules that have moved the names of now."""
        if self.modules.have_moved():
            self.settle()  # what waits had the names of then
            self.modules.name_anew()

    def _attach_from(self, first_number: int) -> None:
        for number, module in enumerate(self.modules.all[first_number:], first_number):
            leaf = next(module.children(), None) is None
            make, direct = self._around(number), (self._lanes, number, leaf)
            seam.add(module, make, direct)
            self._makers.append((module, make, direct))

    def _around(self, number: int) -> seam.Make:
        """What surrounds a call that begins a forward, is not only collected, or that two watches see.

        All other calls are collected in `seam`.
        """
        lanes = self._lanes

        def make(inner: seam.Call) -> seam.Call:
            def watched(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
                lane = lanes.lane
                if self._ended or lane.mode == ASIDE:
                    return (
                        inner(module, *args, **kwargs)
                        if lane.path is None
                        else _on_path(lane, number, inner, module, args, kwargs)
                    )
                if not lane.inside:
                    return self._outermost(lane, number, inner, module, args, kwargs)
                self._arrived(lane, number, args, kwargs)
                output = inner(module, *args, **kwargs)
                self._returned(lane, number, output)
                return output

            return watched

        return make

    @hidden
    def _arrived(self, lane: Lane, number: int, args: Any, kwargs: Any) -> None:
        lane.heads.append((number, len(args), *kwargs))
        lane.values += arguments_as_passed(args, kwargs)
        if lane.mode == AT_ONCE:
            self._absorb_safely(lane)

    @hidden
    def _returned(self, lane: Lane, number: int, output: Any) -> None:
        lane.heads.append(~number)
        lane.values.append(as_passed(output, "output", False))
        if lane.mode == AT_ONCE:
            self._absorb_safely(lane)
        elif len(lane.values) > lane.weigh_at:
            self._weigh(lane)

    def _outermost(
        self, lane: Lane, number: int, inner: seam.Call, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """A whole forward: its events, then its count.

        An exception of the model passes on after the count.
        """
        output, ended, collecting = None, False, False
        try:  # from its first instruction on: Ctrl-C may come at any
            if reason := self._open(lane, number, module, args, kwargs):
                return self._aside(lane, reason, inner, module, args, kwargs)
            forward = lane.forward
            collecting = forward.collecting = gc.isenabled()
            gc.disable()  # thousands of small events would set it off, over all of the program's objects
            output = inner(module, *args, **kwargs)
            ended = True
        finally:
            try:
                if lane.inside:
                    self._finish(lane, number, output, ended)
            finally:
                if lane.inside:
                    self._interrupted(lane)
                if collecting:
                    gc.enable()
        if ended:
            self.react(forward)
        return output

    def _open(self, lane: Lane, number: int, module: nn.Module, args: Any, kwargs: Any) -> str:
        """Begin a forward in this lane with its first call; why it cannot be seen, if so."""
        reason, phase, length, mode = self._way_of(number, args, kwargs)
        if reason:
            return reason
        try:
            lane.forward = Forward(-1, phase, length)
            lane.inside, lane.mode = True, mode
            # One token's activations fill no memory, nor do those of a phase that used little of it before.
            lane.weigh_at = sys.maxsize if length == 1 or self._light.get(phase) else WEIGH_EVERY
            self.begins(lane.forward, module, args, kwargs)
            self._arrived(lane, number, args, kwargs)
        except BaseException:  # a reaction stops the program here
            if lane.inside:
                self._finish(lane, number, None, False)
            raise
        return ""

    @hidden
    def _way_of(self, number: int, args: Any, kwargs: Any) -> tuple[str, str, int, int]:
        """(why it cannot be seen, phase, query length, mode) of a forward that begins."""
        if reason := blind():
            return reason, "", 0, ASIDE
        try:
            if self._grown:
                self.meet_new_modules()
            phase, length = phase_of(args, kwargs)
            phase = RECOMPUTE if recomputing() else phase
            at_once = self._at_once or phase not in self._light or in_transform()
            mode = AT_ONCE if at_once or versions_are_missing(args, kwargs) else COLLECT
        except Exception as error:
            return f"its inputs cannot be read ({type(error).__name__})", "", 0, ASIDE
        if number and phase != RECOMPUTE and (direct := self.modules.called_directly(number)):
            self.direct[direct] += 1
        return "", phase, length, mode

    def _aside(
        self, lane: Lane, reason: str, inner: seam.Call, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """A forward that cannot be seen: everything in it passes on."""
        self.blind[reason] += 1
        lane.mode = ASIDE
        try:
            return inner(module, *args, **kwargs)
        finally:
            lane.mode = AT_ONCE

    @hidden
    def _weigh(self, lane: Lane) -> None:
        """Count and let go of what is held once it fills the budget."""
        held, tensors = lane.forward, dict[int, Tensor]()  # by id: many modules may put out one dict
        for value in lane.values[held.weighed :]:
            tensors.update((id(leaf), leaf) for leaf in _dense(value))
        held.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        held.weighed = len(lane.values)
        lane.weigh_at = held.weighed + WEIGH_EVERY
        if held.bytes > self.budget_bytes:
            self._absorb_safely(lane)

    def _absorb_safely(self, lane: Lane, is_last: bool = False) -> None:
        """Begin the count of all tensors of the events so far. What cannot be counted is a note."""
        try:
            self._absorb(lane, is_last)
        except Exception as error:
            lane.forward.failed = f"{type(error).__name__}: {error}"
        if not is_last:
            lane.let_go()
            lane.weigh_at = WEIGH_EVERY

    def _absorb(self, lane: Lane, is_last: bool) -> None:
        """Unless these are the last events, the tensors are let go of."""
        forward, at_once = lane.forward, lane.mode == AT_ONCE
        is_whole = is_last and not at_once and forward.is_new()
        pattern = self._patterns.get(forward.phase) if is_whole else None
        try:
            if pattern is None or not _read_by(pattern, lane):
                forward.read(lane.heads, lane.values, at_once=at_once)
                # One of what was written before it passed would be refused at each read, and built anew.
                if is_whole and not forward.stack and forward.is_plain():
                    self._patterns[forward.phase] = Pattern(lane.heads, lane.values, forward)
            forward.take(self._begin_or_apart(forward.tensors))
        except Exception:
            forward.forget_last_part()
            raise
        self.passing(forward)
        if at_once:
            lane.counted_versions += [(t, t._version) for t in forward.tensors if not t.is_inference()]
        elif forward.overwritten and not self._at_once:
            self._at_once = True
            self.note(
                f"{plural(forward.overwritten, 'tensor')} overwritten in place before the end of a "
                f"{forward.phase}; from then on each tensor is counted at once"
            )
        if is_whole and pattern is None:
            self._light[forward.phase] = forward.num_bytes() * 16 < self.budget_bytes
        if not is_last:
            forward.let_go()

    def _begin_or_apart(self, tensors: Sequence[Tensor]) -> Counted:
        """Begin a count; if it fails, count tensor by tensor, with rows of -1 for those that cannot be."""
        try:
            return quiet(self._begin_count, tensors, reads_only=self._reads_only)
        except Exception:
            if not tensors:
                raise
            return Counted(np.concatenate([self._apart(tensor) for tensor in tensors]))

    def _apart(self, tensor: Tensor) -> np.ndarray:
        try:
            return quiet(self._count, [tensor], reads_only=self._reads_only)
        except Exception as error:
            self.uncounted[f"{type(error).__name__}: {str(error)[:200]}"] += 1
            return np.full((1, len(KINDS)), -1.0)

    def note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES and text not in self.notes:
            self.notes.append(text)

    @hidden
    def _finish(self, lane: Lane, number: int, output: Any, returned: bool) -> None:
        """Whatever happens in here, the program goes on as it would have."""
        try:
            self._count_in_full(lane, number, output, returned)
        except BaseException:
            self._interrupted(lane)
            raise

    def _interrupted(self, lane: Lane) -> None:
        """By Ctrl-C, or what a signal raises. A lane left open would take all later forwards for this one."""
        self.blind["it was interrupted while it was counted"] += 1
        lane.close()

    def _count_in_full(self, lane: Lane, number: int, output: Any, returned: bool) -> None:
        forward = lane.forward
        if returned:
            try:
                self._returned(lane, number, output)
            except Exception as error:  # an output that refuses to be asked for its class
                forward.failed = f"{type(error).__name__}: {error}"
        self._absorb_safely(lane, is_last=True)
        self._learn(lane)
        if forward.untracked and not (self._at_once or torch.is_inference_mode_enabled()):
            self._at_once = True
            self.note(
                "some tensors were made in inference mode, where torch counts no writes; "
                "each tensor is counted as it passes"
            )
        lane.close()
        with self._lock:
            self.ends(forward)
            forward.number = next(self._numbers) if forward.phase != RECOMPUTE else -1
            self._waiting.append(forward)
            if len(self._waiting) >= MOST_FORWARDS_WAITING or self.takes_at_once(forward):
                self.settle()

    def _learn(self, lane: Lane) -> None:
        """After a forward that was counted at once: was anything written in place after it passed?"""
        phase = lane.forward.phase
        later = sum(tensor._version != version for tensor, version in lane.counted_versions)
        if later and not self._at_once:
            self._at_once = True
            self.note(
                f"{plural(later, 'tensor')} of a {phase} overwritten in place after passing; "
                "each tensor is counted as it passes"
            )
        self._light.setdefault(phase, False)

    def _take_one(self, forward: Forward) -> None:
        try:
            self._tally(forward)
            if not (forward.known_clean() and self.take_clean(forward)):
                forward.read_out()
                self.unknown += forward.unknown()
                self.take(forward)
        except Exception as error:
            forward.failed = forward.failed or f"{type(error).__name__}: {error}"
        forward.tensors = ()  # their shapes are not asked for any more
        if forward.failed:
            self.failed += 1
            self.note(f"a {forward.phase} could not be counted: {forward.failed[:300]}")

    def _tally(self, forward: Forward) -> None:
        for (number, _, leaf, reason), times in forward.unseen.items():
            self.unseen[self.modules.names[number], leaf, reason] += times
        if forward.calls is not self._last_calls:  # equal forwards share theirs
            self._last_calls = forward.calls
            self.called.update(number for number, _, _ in forward.calls)
            self.callers.update(forward.calls[parent][0] for _, parent, _ in forward.calls if parent >= 0)


def _read_by(pattern: Pattern, lane: Lane) -> bool:
    try:
        return pattern.read(lane.heads, lane.values, lane.forward)
    except Exception:  # what fails again when it is read one by one is noted there
        return False


def _dense(value: Any) -> list[Tensor]:
    """The tensors of what passed that have memory of their own."""
    values = value if type(value) is tuple else [value]
    inside = [leaf for _, leaf, _ in value.leaves] if type(value) is Passed else values
    return [leaf for leaf in inside if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def _on_path(lane: Lane, number: int, inner: seam.Call, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A call of a forward that is run again: only the stack of modules is kept."""
    assert lane.path is not None
    lane.path.append(number)
    try:
        return inner(module, *args, **kwargs)
    finally:
        lane.path.pop()
