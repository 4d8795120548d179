"""Collects the calls of every module while a model runs, and counts their tensors at the end.

Each module only appends references to a list: no kernel is launched, nothing waits. References are counted
and let go piece by piece if they would fill the memory.

What was written in place after it passed is not what passed. The first forward of a phase notes the versions
of what was written before (`batch`). If there was nothing to note, the next ones note nothing: a tensor of
version 0 was never written. A tensor that has another version all the same is unknown in that forward, and
from the next one on versions are noted.

A module's `forward` is replaced by a wrapper for as long as the watch lasts and put back afterwards. Torch
hooks are not used: they would cost several microseconds per module, and torch 1.12 cannot give them keyword
arguments.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.nan.watch.batch import Batch, Written
from lab.rooms.nan.watch.count import Counted, Counter, beginning
from lab.rooms.nan.watch.forward import Forward, Seen
from lab.rooms.nan.watch.leaves import is_skipped, leaves
from lab.rooms.nan.watch.pool import PASSED
from lab.rooms.nan.watch.roles import IN, OUT
from lab.rooms.nan.watch.template import Template

# What wrappers do beside appending: nothing, note versions, or count at once (the mode outside of a forward
# too).
NOTHING, VERSIONS, EVERYTHING = range(3)
WEIGH_EVERY = 3 * 64  # entries of the list between two looks at the memory that references hold


class Recorder(ABC):
    """Replaces the forwards of a model's modules; a subclass takes each whole forward when it ends.

    Events lie flat in one list, three entries each: (module, args, kwargs) for a call, (~module, output,
    None) for its return, and for a module without children that takes one value both in one: (module +
    PASSED, input, output).
    """

    def __init__(self, model: nn.Module, count: Counter, budget_bytes: int) -> None:
        self.model, self.budget_bytes = model, budget_bytes
        self.notes: list[str] = []
        named = dict(model.named_modules())
        self._names, self._modules = list(named), list(named.values())
        self._begin_count = beginning(count)
        self._plain = [((at, IN, "args[0]"), (at, OUT, "output")) for at in range(len(self._names))]
        self._events: list[Any] = []
        self._written: Written = {}
        self._never_written: dict[str, bool] = {}  # by phase; once False it stays so
        self._templates: dict[str, Template | None] = {}
        self._forward = Forward()
        self._replaced: list[tuple[nn.Module, Any, Any]] = []
        # Overwriting modules leave nothing to count later, so each tensor is counted at once.
        self._at_once = any(getattr(module, "inplace", False) is True for module in self._modules)
        self._weigh_at = WEIGH_EVERY
        self._mode = EVERYTHING  # the wrappers' one test
        self._inside = self._ended = False

    @abstractmethod
    def next_number(self) -> int:
        """The number of the forward that begins."""

    @abstractmethod
    def take(self, forward: Forward, seen: Seen) -> None:
        """A forward has ended, by an exception too."""

    @abstractmethod
    def react(self) -> None:
        """The forward that `take` was given ended without an exception."""

    def refuse_second_use(self) -> None:
        if self._replaced or self._ended:
            raise UsageError("this watch has already been used", fix="make a new one: watch(model)")

    def attach(self) -> None:
        for at, module in enumerate(self._modules):
            own = module.__dict__.get("forward")
            wrapper = self._wrap(at, module.forward, next(module.children(), None) is None)
            module.__dict__["forward"] = wrapper
            self._replaced.append((module, own, wrapper))

    def detach(self) -> None:
        self._ended, self._mode = True, EVERYTHING
        for module, own, wrapper in self._replaced:
            if module.__dict__.get("forward") is not wrapper:
                continue  # wrapped again meanwhile: this wrapper only passes calls on from now
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own
        self._replaced.clear()

    def _wrap(self, at: int, forward: Callable[..., Any], leaf: bool) -> Callable[..., Any]:
        """The wrapper of a module's forward: all that happens for every call of every module."""
        extend, events, gone, passed = self._events.extend, self._events, ~at, at + PASSED

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._mode:
                return self._carefully(at, forward, args, kwargs)
            extend((at, args, kwargs))
            output = forward(*args, **kwargs)
            extend((gone, output, None))
            if len(events) > self._weigh_at:
                self._weigh()
            return output

        def watched_leaf(*args: Any, **kwargs: Any) -> Any:
            # Nothing happens inside, so call and return are one event.
            if kwargs or len(args) != 1:
                return watched(*args, **kwargs)
            return watched_input(args[0])

        def watched_input(input: Any) -> Any:
            if self._mode:
                return self._carefully_passed(at, forward, input)
            output = forward(input)
            extend((passed, input, output))
            return output

        # No arguments to pack if a module takes one of this name, as torch's own layers do: half of the
        # price.
        one = leaf and _parameters(forward) == ["input"]
        return functools.wraps(forward)(watched_input if one else watched_leaf if leaf else watched)

    def _carefully(self, at: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call whose tensors' versions are noted, or that is counted at once, or that begins a forward."""
        if self._ended:
            return forward(*args, **kwargs)
        if not self._inside:
            return self._outermost(at, forward, args, kwargs)
        self._arrived(at, args, kwargs)
        output = forward(*args, **kwargs)
        self._returned(at, output)
        if len(self._events) > self._weigh_at:
            self._weigh()
        return output

    def _carefully_passed(self, at: int, forward: Callable[..., Any], taken: Any) -> Any:
        if self._mode == EVERYTHING:
            return self._carefully(at, forward, (taken,), {})
        before: Written = {}
        _note(taken, "args[0]", 0, before)
        output = forward(taken)
        index = len(self._events)
        self._events.extend((at + PASSED, taken, output))
        self._written.update({(index + 1, leaf): version for (_, leaf), version in before.items()})
        _note(output, "output", index + 2, self._written)
        return output

    def _arrived(self, at: int, args: Any, kwargs: Any) -> None:
        index = len(self._events)
        self._events.extend((at, args, kwargs))
        if self._mode == EVERYTHING:
            self._absorb()
        elif self._mode == VERSIONS:
            for number, value in enumerate(args):
                _note(value, f"args[{number}]", index + 1, self._written)
            for name, value in kwargs.items():
                if not is_skipped(name):
                    _note(value, name, index + 2, self._written)

    def _returned(self, at: int, output: Any) -> None:
        index = len(self._events)
        self._events.extend((~at, output, None))
        if self._mode == EVERYTHING:
            self._absorb()
        elif self._mode == VERSIONS:
            _note(output, "output", index + 1, self._written)

    def _outermost(self, at: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A whole forward: its events, then its count.

        An exception of the model passes on after the count.
        """
        self._forward = Forward(self.next_number(), *_phase(args, kwargs))
        self._inside, self._mode = True, self._mode_for(self._forward.phase, args, kwargs)
        # One token's activations fill no memory.
        self._weigh_at = sys.maxsize if self._forward.query_length == 1 else WEIGH_EVERY
        collecting = gc.isenabled()
        gc.disable()  # thousands of small events at once would set it off, over all of the program's objects
        try:
            self._arrived(at, args, kwargs)
            output = forward(*args, **kwargs)
            self._returned(at, output)
        finally:
            try:
                self._finish()
            finally:
                if collecting:
                    gc.enable()
        self.react()
        return output

    def _mode_for(self, phase: str, args: Any, kwargs: Any) -> int:
        if self._at_once or _without_versions(args, kwargs):
            return EVERYTHING
        return NOTHING if self._never_written.get(phase) else VERSIONS

    def _weigh(self) -> None:
        """Count and let go of what is held once it fills the budget."""
        held, events = self._forward, self._events
        for index in range(held.weighed, len(events), 3):
            at = events[index]
            value = events[index + 2] if at >= PASSED else events[index + 1] if at < 0 else None
            for one in (value,) if isinstance(value, Tensor) else value if isinstance(value, tuple) else ():
                if isinstance(one, Tensor):
                    held.bytes += one.numel() * one.element_size()
        held.weighed = len(events)
        self._weigh_at = held.weighed + WEIGH_EVERY
        if held.bytes > self.budget_bytes:
            self._absorb()

    def _absorb(self, last: bool = False) -> None:
        """Begin the count of all tensors of the events so far.

        Unless these are the `last`, let go of the tensors.
        """
        forward, at_once = self._forward, self._mode == EVERYTHING
        whole = last and forward.empty() and not at_once
        found = self._absorb_by_template() if whole else None
        if found is None:
            batch = self._read(self._events, forward)
            if whole and not forward.stack:
                self._templates[forward.phase] = Template.of(self._events, forward, batch)
            counted = self._begin_count(batch.tensors)
            found = batch, Counted(counted.rows()) if at_once else counted
        forward.take(*found)
        if not at_once and found[0].ever_written:
            self._note_writes(found[0])
        if not last:
            found[0].let_go()
            self._let_go()
            self._weigh_at = WEIGH_EVERY

    def _absorb_by_template(self) -> tuple[Batch, Counted] | None:
        """A whole forward by the template of its phase; None if it differs from it."""
        template = self._templates.get(self._forward.phase)
        values = template.read(self._events) if template is not None else None
        if template is None or values is None:
            return None
        tensors = template.distinct(values)
        counted = self._begin_count(tensors)  # first, so that the GPU counts what is being looked at
        batch = template.confirm(values, tensors, self._written)
        if batch is None:
            return None
        self._forward.calls, self._forward.cache = template.calls, template.cache(self._events)
        return batch, counted

    def _let_go(self) -> None:
        self._events.clear()
        self._written.clear()
        self._forward.weighed = self._forward.bytes = 0

    def _note_writes(self, batch: Batch) -> None:
        """Some tensors were written in place; say so, and choose how closely to look from now on."""
        first = self._never_written.get(self._forward.phase) is not False
        self._never_written[self._forward.phase] = False
        where = f"forward {self._forward.number}"
        if batch.overwritten and self._mode == VERSIONS and not self._at_once:
            self._at_once = True
            self.notes.append(
                f"{plural(batch.overwritten, 'tensor')} overwritten in place before the end of {where}; "
                "from then on each tensor is counted at once"
            )
        elif batch.overwritten and first:
            self.notes.append(
                f"{plural(batch.overwritten, 'tensor')} of {where} written in place, for the first time; "
                "from then on it is noted whether that was after the tensor passed"
            )

    def _read(self, events: list[Any], forward: Forward) -> Batch:
        """Read events one by one: any model, any structure."""
        batch = Batch(None if self._mode == EVERYTHING else self._written)
        for index in range(0, len(events), 3):
            at, first, second = events[index : index + 3]
            if at >= PASSED:
                at -= PASSED
                call = forward.pass_through(at)
                batch.add(first, self._plain[at][0], call, (index + 1,))
                batch.add_output(at, second, call, self._plain[at][1], (index + 2,))
            elif at >= 0:
                call = forward.enter(at, second)
                batch.add_inputs(at, first, second, call, self._plain[at][0], index)
            else:
                call = forward.leave(~at)
                batch.add_output(~at, first, call, self._plain[~at][1], (index + 1,))
        return batch

    def _finish(self) -> None:
        forward = self._forward
        try:
            self._absorb(last=True)
            seen = forward.read_out()
            if self._mode == VERSIONS:
                self._never_written.setdefault(forward.phase, True)
            self.take(forward, seen)
        finally:
            self._inside, self._mode = False, EVERYTHING
            self._let_go()
            self._forward = Forward()


def _parameters(forward: Callable[..., Any]) -> list[str]:
    """Names of the arguments of a module's forward; none if Python cannot tell."""
    try:
        return list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):
        return []


def _note(value: Any, leaf: str, index: int, written: Written) -> None:
    """Note how often tensors had been written when they passed, if ever."""
    if isinstance(value, Tensor):
        if value._version:
            written[index, leaf] = value._version
    elif value is not None:
        name = "" if isinstance(value, Mapping) and leaf == "output" else leaf
        for inner, tensor in leaves(value, name):
            if tensor is not None and tensor._version:
                written[index, inner] = tensor._version


def _phase(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
    """(phase, query length): prefill or decode by the length; `forward` and 0 for a model without a query."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids"):
        if isinstance(kwargs.get(name), Tensor):
            return _by_length(kwargs[name])
    if args and isinstance(args[0], Tensor) and args[0].dim() == 2 and not args[0].is_floating_point():
        return _by_length(args[0])
    return "forward", 0


def _by_length(tensor: Tensor) -> tuple[str, int]:
    length = int(tensor.shape[1]) if tensor.dim() > 1 else 1
    return ("prefill" if length > 1 else "decode"), length


def _without_versions(args: Any, kwargs: Any) -> bool:
    """Whether tensors are or were made in inference mode, where torch counts no writes."""
    given = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return bool(torch.is_inference_mode_enabled()) or any(map(Tensor.is_inference, given))
