"""log Z and its derivatives for autograd: the expected counts, and how those change (`second.py`).

`LogPartition` differentiates to `ExpectedCounts`, that to `Tangents`, and that raises. Each is written as
torch.func wants it (`setup_context`, `vmap`, `jvp`) and applied the older way where no transform is active:
that costs a training step less time, and torch 1.12 knows no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import naive
from lab.rooms.semicrf.model.derivatives import second
from lab.rooms.semicrf.model.finish import finish
from lab.rooms.semicrf.model.problem import Posteriors, Problem, checked_lengths

Alarm = Callable[[Posteriors], None]


@dataclass(eq=False)
class Call:
    """What a function needs beside tensors; and in a training step (`keeps`) what its forward pass leaves.

    Under a torch.func transform nothing is left: the tensors of the backward pass have more dimensions there.
    """

    engine: Any
    alarm: Alarm | None
    names: tuple[str, ...]
    given_B: Tensor | None = None
    found: Posteriors | None = None
    keeps: bool = False
    version: int = 0
    left: Tensor | None = None

    def model(self, lengths_B: Tensor, floats: Sequence[Tensor]) -> Problem:
        """Of inputs in the order of `names`, or of what belongs to them."""
        given = dict(zip(self.names, floats, strict=True))
        return Problem(lengths_B=lengths_B, given_B=self.given_B, **given)

    def differentiated(
        self, problem: Problem, state: Any, grad_B: Tensor | None = None
    ) -> tuple[Posteriors, list[Tensor] | None]:
        """The counts; and the gradients for `grad_B` where the form made them beside sound counts."""
        own: list[Tensor] | None = None
        found: Posteriors
        if grad_B is not None and hasattr(self.engine, "differentiate"):
            found, own = self.engine.differentiate(state, grad_B)
        else:
            found = self.engine.backward(state)
        if self.alarm is not None:
            self.alarm(found)  # before what is wrong is mended: a fault is to be seen
            found = replace(found, fetched=None)  # the audit as the alarm leaves it
        mended = finish(problem, found)  # waits for a GPU, so the gradients are queued before
        return found, None if mended else own

    def again(self, found: Posteriors | None = None) -> Call:
        return Call(self.engine, self.alarm, self.names, self.given_B, found)


class Folded(torch.autograd.Function):
    """A function that torch.func.vmap takes."""

    @classmethod
    def vmap(cls, info: Any, dims: Any, call: Call, *tensors: Tensor) -> Any:
        outputs = folded(cls, info.batch_size, dims[1:], call, tensors)
        return (outputs, (0,) * len(outputs)) if cls is not LogPartition else (outputs[0], 0)


class LogPartition(Folded):
    """(call, lengths_B, *floats) -> log Z (B,)."""

    @staticmethod
    def forward(call: Call, lengths_B: Tensor, *floats: Tensor) -> Tensor:
        problem = call.model(lengths_B, [value.detach() for value in floats])
        state = call.engine.forward(problem, keep=call.keeps)
        if call.keeps:
            call.left, call.version = carrier(problem, state), state.log_z_B._version
        log_z_B: Tensor = state.log_z_B.detach()  # the output itself in ctx would keep all messages till a gc
        return log_z_B

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call = call = inputs[0]
        ctx.save_for_backward(*inputs[1:], *([] if call.left is None else [call.left]))
        ctx.save_for_forward(*inputs[1:])
        call.left = None

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor) -> Any:
        # Raises where one was changed in place since: the counts read some of them again.
        lengths_B, *floats = ctx.saved_tensors
        call = ctx.call
        kept = getattr(floats.pop(), "kept", None) if call.keeps else None
        # The output is the state's own log Z: changed in place by the caller, it says nothing of the counts.
        if kept is None or kept[1].log_z_B._version != call.version:
            problem = call.model(lengths_B, floats).detached()
            found = expected_counts(call.again(), lengths_B, floats)
        else:
            (problem, state), further = kept, torch.is_grad_enabled()
            with torch.no_grad():
                found, own = call.differentiated(problem, state, None if further else grad_B)
            if own is not None:
                return (None, None, *chosen(own, floats, ctx.needs_input_grad[2:]))
            if further:
                found = expected_counts(call.again(found), lengths_B, floats)
        return (None, None, *gradients(problem, found, grad_B, ctx.needs_input_grad[2:]))

    @staticmethod
    def jvp(ctx: Any, _call: None, _lengths: None, *moves: Tensor | None) -> Tensor:
        lengths_B, *floats = ctx.saved_tensors
        found = expected_counts(ctx.call.again(), lengths_B, floats)
        return expected(ctx.call.model(lengths_B, given(moves, floats)), found)


class ExpectedCounts(Folded):
    """(call, lengths_B, *floats) -> log Z, the counts in the order of `second.Counts`, and the mass."""

    @staticmethod
    def forward(call: Call, lengths_B: Tensor, *floats: Tensor) -> tuple[Tensor, ...]:
        found, problem = call.found, call.model(lengths_B, [value.detach() for value in floats])
        if found is None and call.engine is naive:
            found = naive.posteriors(problem)
        elif found is None:
            found, _ = call.differentiated(problem, call.engine.forward(problem, keep=True))
        return tuple(value.detach() for value in found.parts())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call = inputs[0]
        ctx.mark_non_differentiable(*output[-2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:], *output)
        ctx.save_for_forward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor | None, *grads: Tensor | None) -> Any:
        problem, found = saved(ctx)

        def moved(direction: Sequence[Tensor]) -> Sequence[Tensor]:
            return tangents(ctx.call, problem, direction)

        wanted = ctx.needs_input_grad[2:]
        return (None, None, *carried_back(problem, found, grad_B, grads[:-2], wanted, moved))

    @staticmethod
    def jvp(ctx: Any, _call: None, _lengths: None, *moves: Tensor | None) -> Any:
        problem, found = saved(ctx)
        direction = problem.with_floats(given(moves, problem.floats()))
        log_z_B = expected(direction, found)
        change = tangents(ctx.call, problem, possible(found, spread(direction, found)))
        pairs = zip(change, found.parts()[1:-2], strict=True)
        return (log_z_B, *(move.to(count.dtype) for move, count in pairs), None, None)


class Tangents(Folded):
    """(call, lengths_B, *floats, *direction) -> the derivative of the counts in that direction."""

    @staticmethod
    def forward(call: Call, lengths_B: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        problem = call.model(lengths_B, tensors[: len(call.names)]).detached()
        try:
            direction = [value.detach() for value in tensors[len(call.names) :]]
        except RuntimeError as error:  # autograd's own batched tensors have no detach, nor numbers
            raise UsageError(
                "the second derivative of log Z does not take is_grads_batched=True or vectorize=True",
                fix="torch.func.hessian or torch.func.vmap, or leave it out",
            ) from error
        return tuple(second.tangents(problem, direction))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise UsageError(
            "log Z of a semi-CRF has two derivatives here, and this would be the third",
            fix='backend="naive", which autograd differentiates as often as you like, on small inputs',
        )

    jvp = backward


def carrier(problem: Problem, state: Any) -> Tensor:
    """A tensor that autograd saves, and with it these: they go when the graph is freed, however long the loss
    is kept, and a checkpoint does not hold them.
    """
    left: Any = torch.empty(0, device="cpu")
    left.kept = problem, state
    return left  # type: ignore[no-any-return]


def given(moves: Sequence[Tensor | None], floats: Sequence[Tensor]) -> list[Tensor]:
    """0 for what does not move."""
    return [torch.zeros_like(x) if move is None else move for x, move in zip(floats, moves, strict=True)]


def applied_the_older_way(function: Any) -> Any:
    """The same function for apply() without torch.func, whose checks cost tens of microseconds a call."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    body = {"forward": forward, "backward": function.backward, "jvp": function.jvp}
    return type(function.__name__, (torch.autograd.Function,), {k: staticmethod(v) for k, v in body.items()})


OLDER = {function: applied_the_older_way(function) for function in (LogPartition, ExpectedCounts, Tangents)}
transforming = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def applied(function: Any, *inputs: Any) -> Any:
    return (function if transforming() else OLDER[function]).apply(*inputs)


def log_partition(engine: Any, alarm: Alarm | None, problem: Problem) -> Tensor:
    """log Z (B,), twice differentiable in `problem.floats()`."""
    floats = problem.floats()
    call = Call(engine, alarm, problem.names(), problem.given_B)
    log_z_B: Tensor
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in floats)
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    if not (wanted or forward_mode or transforming()):
        log_z_B = engine.forward(problem.detached(), keep=False).log_z_B.detach()
        return log_z_B
    call.keeps = wanted and not transforming()
    log_z_B = applied(LogPartition, call, problem.lengths_B, *floats)
    return log_z_B


def posteriors(engine: Any, problem: Problem) -> Posteriors:
    """log Z and the counts, differentiable in `problem.floats()`."""
    return expected_counts(Call(engine, None, problem.names()), problem.lengths_B, problem.floats())


def expected_counts(call: Call, lengths_B: Tensor, floats: Sequence[Tensor]) -> Posteriors:
    return Posteriors.of_parts(applied(ExpectedCounts, call, lengths_B, *floats))


def saved(ctx: Any) -> tuple[Problem, Posteriors]:
    (lengths_B, *tensors), count = ctx.saved_tensors, len(ctx.call.names)
    return ctx.call.model(lengths_B, tensors[:count]), Posteriors.of_parts(tensors[count:])


def tangents(call: Call, problem: Problem, direction: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`second.tangents`, whose own derivative raises."""
    found: tuple[Tensor, ...] = applied(
        Tangents, call.again(), problem.lengths_B, *problem.floats(), *direction
    )
    return found


def possible(found: Posteriors, direction: Sequence[Tensor | None]) -> list[Tensor]:
    """A direction of the counts, less what cannot happen: its count cannot move (-inf), nor any by it."""
    return [
        torch.zeros_like(count) if move is None else torch.where(count == 0, torch.zeros_like(move), move)
        for count, move in zip(found.parts()[1:-2], direction, strict=True)
    ]


def carried_back(
    problem: Problem,
    found: Posteriors,
    grad_B: Tensor | None,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    moved: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> list[Tensor | None]:
    """The gradient of log Z and counts, of which those of the counts are a product with the Hessian."""
    total: list[Tensor | None] = [None] * len(wanted)
    if grad_B is not None:
        total = gradients(problem, found, grad_B, wanted)
    if any(grad is not None for grad in grads):
        zero_B, one_B = torch.zeros_like(found.log_z_B), torch.ones_like(found.log_z_B)
        counts = Posteriors.of_parts([zero_B, *moved(possible(found, grads)), *found.parts()[-2:]])
        more = gradients(problem, counts, one_B, wanted)
        pairs = zip(total, more, strict=True)
        total = [b if a is None or b is None else a + b for a, b in pairs]
    return total


def spread(direction: Problem, found: Posteriors) -> list[Tensor]:
    """A direction of the scores as one of the counts: starts and ends move with the first and the last."""
    frame_T = torch.arange(direction.shape[1], device=direction.lengths_B.device)
    first_T1, last_BT1 = (frame_T == 0)[:, None], (frame_T == direction.lengths_B[:, None] - 1)[..., None]
    opens, closes = direction.start_C * first_T1, direction.end_C * last_BT1
    opens = opens if direction.seg_start_BTC is None else opens + direction.seg_start_BTC
    closes = closes if direction.seg_end_BTC is None else closes + direction.seg_end_BTC
    own = [] if direction.segment_BTKC is None else [direction.segment_BTKC]
    given = [direction.score_BTC, opens, closes, direction.duration_KC, direction.transition, *own]
    return [x.expand(count.shape).double() for x, count in zip(given, found.parts()[1:-2], strict=True)]


def chosen(values: Sequence[Tensor], floats: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients in their inputs' dtypes, where they are wanted."""
    triples = zip(values, floats, wanted, strict=True)
    return [
        None if not want else value if value.dtype == given.dtype else value.to(given.dtype)
        for value, given, want in triples
    ]


def gradients(
    problem: Problem, found: Posteriors, grad_B: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Counts weighted by the incoming gradient, in the dtype of each input and the order of `floats()`.

    A log Z that is NaN has the weight NaN, unless the loss leaves its sequence out.
    """
    grad_B = grad_B.double() + (found.log_z_B - found.log_z_B).masked_fill(grad_B == 0, 0.0)
    grad_B = grad_B.masked_fill(torch.isneginf(found.log_z_B), 0.0)

    def of(given: Tensor, count: Tensor) -> Tensor:
        if given.dim() < count.dim():  # shared by the sequences
            return (grad_B @ count.double().flatten(1)).reshape(count.shape[1:]).to(given.dtype)
        weight = grad_B.to(count.dtype).view(-1, *(1,) * (count.dim() - 1))
        return (count * weight).to(given.dtype)

    inputs = zip(problem.floats(), found.counts(problem), wanted, strict=True)
    return [of(given, count) if want else None for given, count, want in inputs]


ROUNDING, FAR = 1e-12, 1e4
"""What a label's count may be off by, as a difference of sums; and scores that this must not weigh."""


def expected(scores: Problem, found: Posteriors) -> Tensor:
    """<scores, counts> (B,): a score that is not used adds zero, finite or not. NaN where log Z is."""
    total_B = torch.zeros_like(found.log_z_B)
    for at, (score, count) in enumerate(zip(scores.floats(), found.counts(scores), strict=True)):
        count, none = count.double(), count == 0
        if at == 0:
            none = none | ((count < ROUNDING) & ~(score.detach().abs() <= FAR))
        value = torch.where(none, torch.zeros_like(count), score.double())
        total_B = total_B + (value * count).flatten(1).sum(1)
    return total_B.masked_fill(torch.isnan(found.log_z_B), torch.nan)


def folded(
    function: Any, size: int, dims: Sequence[Any], call: Call, tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """A vmapped call: one larger batch where only sequences differ; one call each where the parameters do."""
    values = tensors[1:]
    names = [*call.names, *(["direction"] * (len(values) - len(call.names)))]
    depth = {"score_BTC": 3, "seg_start_BTC": 3, "seg_end_BTC": 3, "segment_BTKC": 4, "transition": 4}
    own = [
        name == "direction" or value.dim() - (dim is not None) == depth.get(name)
        for name, value, dim in zip(names, values, dims[1:], strict=True)
    ]
    if any(dim is not None and not alone for dim, alone in zip(dims[1:], own, strict=True)):
        pairs = list(zip(tensors, dims, strict=True))
        each = [
            outputs_of(function, call, [x if dim is None else x.select(dim, n) for x, dim in pairs])
            for n in range(size)
        ]
        return tuple(map(torch.stack, zip(*each, strict=True)))

    def flat(value: Tensor, dim: int | None) -> Tensor:
        many = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        return many.reshape(-1, *many.shape[2:])

    joined = [
        flat(value, dim) if alone else value
        for value, dim, alone in zip(tensors, dims, [True, *own], strict=True)
    ]
    batch, frames = joined[1].shape[:2]
    joined[0], _ = checked_lengths(joined[0], batch, frames, joined[1].device)
    found = outputs_of(function, call, joined)
    return tuple(value.reshape(size, -1, *value.shape[1:]) for value in found)


def outputs_of(function: Any, call: Call, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    found: Any = applied(function, call.again(), *tensors)
    return (found,) if isinstance(found, Tensor) else found
