"""log Z and its derivatives for autograd: the expected counts, and how those change (`second.py`).

`LogPartition` differentiates to `ExpectedCounts`, that to `Tangents`, and that raises. Each is written as
torch.func wants it (`setup_context`, `vmap`, `jvp`) and applied the older way where no transform is active:
that costs a training step less time, and torch 1.12 knows no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.model import naive
from lab.rooms.semicrf.model.derivatives import second
from lab.rooms.semicrf.model.finish import finish
from lab.rooms.semicrf.model.problem import Posteriors, Problem, checked_lengths

Alarm = Callable[[Posteriors], None]


class Call:
    """What a function needs beside tensors; and in a training step what its forward pass leaves for backward.

    Under a torch.func transform nothing is left: the tensors of the backward pass have more dimensions there.
    """

    def __init__(
        self, engine: Any, alarm: Alarm | None, names: tuple[str, ...], given_B: Tensor | None = None
    ) -> None:
        self.engine, self.alarm, self.names, self.given_B = engine, alarm, names, given_B
        self.keeps = False
        self.version = 0
        self.problem: Problem | None = None
        self.state: Any = None
        self.found: Posteriors | None = None

    def problem_of(self, lengths_B: Tensor, floats: Sequence[Tensor]) -> Problem:
        given = {name: value.detach() for name, value in zip(self.names, floats, strict=True)}
        return Problem(lengths_B=lengths_B, given_B=self.given_B, **given)

    def counts(self, problem: Problem, state: Any) -> Posteriors:
        return self.differentiated(problem, state, None)[0]

    def differentiated(
        self, problem: Problem, state: Any, grad_B: Tensor | None
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

    def solved(self, problem: Problem) -> Posteriors:
        if self.engine is naive:
            return naive.posteriors(problem)
        return self.counts(problem, self.engine.forward(problem, keep=True))

    def again(self, found: Posteriors | None = None) -> Call:
        call = Call(self.engine, self.alarm, self.names, self.given_B)
        call.found = found
        return call


class LogPartition(torch.autograd.Function):
    """(call, lengths_B, *floats) -> log Z (B,)."""

    @staticmethod
    def forward(call: Call, lengths_B: Tensor, *floats: Tensor) -> Tensor:
        problem = call.problem_of(lengths_B, floats)
        state = call.engine.forward(problem, keep=call.keeps)
        if call.keeps:
            call.problem, call.state, call.version = problem, state, state.log_z_B._version
        log_z_B: Tensor = state.log_z_B.detach()  # the output itself in ctx would keep all messages till a gc
        return log_z_B

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor) -> Any:
        # Raises where one was changed in place since: the counts read some of them again.
        lengths_B, *floats = ctx.saved_tensors
        call, problem = ctx.call, ctx.call.problem
        # The output is the state's own log Z: changed in place by the caller, it says nothing of the counts.
        if problem is None or call.state.log_z_B._version != call.version:
            problem = call.problem_of(lengths_B, floats)
            found = expected_counts(call.again(), lengths_B, floats)
        else:
            further = torch.is_grad_enabled()
            with torch.no_grad():
                found, own = call.differentiated(problem, call.state, None if further else grad_B)
            if own is not None:
                return (None, None, *chosen(own, floats, ctx.needs_input_grad[2:]))
            if further:
                found = expected_counts(call.again(found), lengths_B, floats)
        return (None, None, *gradients(problem, found, grad_B, ctx.needs_input_grad[2:]))

    @staticmethod
    def jvp(ctx: Any, _call: None, _lengths: None, *moves: Tensor | None) -> Tensor:
        lengths_B, *floats = ctx.saved_tensors
        found = expected_counts(ctx.call.again(), lengths_B, floats)
        moved = dict(zip(ctx.call.names, given(moves, floats), strict=True))
        return expected_score(Problem(lengths_B=lengths_B, **moved), found)

    @staticmethod
    def vmap(info: Any, dims: Any, call: Call, *tensors: Tensor) -> Any:
        log_z, dim = folded(LogPartition, info.batch_size, dims[1:], call, tensors)
        return log_z[0], dim[0]


class ExpectedCounts(torch.autograd.Function):
    """(call, lengths_B, *floats) -> log Z, the counts in the order of `second.Counts`, and the mass."""

    @staticmethod
    def forward(call: Call, lengths_B: Tensor, *floats: Tensor) -> tuple[Tensor, ...]:
        found = call.found
        if found is None:
            found = call.solved(call.problem_of(lengths_B, floats))
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
        log_z_B = expected_score(direction, found)
        change = tangents(ctx.call, problem, possible(found, spread(direction, found)))
        pairs = zip(change, found.parts()[1:-2], strict=True)
        return (log_z_B, *(move.to(count.dtype) for move, count in pairs), None, None)

    @staticmethod
    def vmap(info: Any, dims: Any, call: Call, *tensors: Tensor) -> Any:
        return folded(ExpectedCounts, info.batch_size, dims[1:], call, tensors)


class Tangents(torch.autograd.Function):
    """(call, lengths_B, *floats, *direction) -> the derivative of the counts in that direction."""

    @staticmethod
    def forward(call: Call, lengths_B: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        problem = call.problem_of(lengths_B, tensors[: len(call.names)])
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
        raise third_derivative()

    @staticmethod
    def jvp(ctx: Any, *moves: Tensor) -> Any:
        raise third_derivative()

    @staticmethod
    def vmap(info: Any, dims: Any, call: Call, *tensors: Tensor) -> Any:
        return folded(Tangents, info.batch_size, dims[1:], call, tensors)


def given(moves: Sequence[Tensor | None], floats: Sequence[Tensor]) -> list[Tensor]:
    """0 for what does not move."""
    return [torch.zeros_like(x) if move is None else move for x, move in zip(floats, moves, strict=True)]


def third_derivative() -> UsageError:
    return UsageError(
        "log Z of a semi-CRF has two derivatives here, and this would be the third",
        fix='backend="naive", which autograd differentiates as often as you like, on small inputs',
    )


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


def no_tangents() -> bool:
    """Whether no forward-mode differentiation is going on."""
    return bool(torch.autograd.forward_ad._current_level < 0)


def log_partition(engine: Any, alarm: Alarm | None, problem: Problem) -> Tensor:
    """log Z (B,), twice differentiable in `problem.floats()`."""
    floats = problem.floats()
    call = Call(engine, alarm, problem.names(), problem.given_B)
    log_z_B: Tensor
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in floats)
    if not wanted and not transforming() and no_tangents():
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
    names = ctx.call.names
    lengths_B, *tensors = ctx.saved_tensors
    given = dict(zip(names, tensors[: len(names)], strict=True))
    return Problem(lengths_B=lengths_B, **given), Posteriors.of_parts(tensors[len(names) :])


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
        weight = grad_B.to(count.dtype).reshape(-1, *(1,) * (count.dim() - 1))
        return (count * weight).to(given.dtype)

    inputs = zip(problem.floats(), found.counts(problem), wanted, strict=True)
    return [of(given, count) if want else None for given, count, want in inputs]


def expected_score(problem: Problem, found: Posteriors) -> Tensor:
    """<theta, counts> (B,): a score of -inf, or with a count of zero, adds zero."""
    total_B = torch.zeros_like(found.log_z_B)
    for value, count in zip(problem.floats(), found.counts(problem), strict=True):
        never = (count == 0) | torch.isneginf(value)
        score = torch.where(never, torch.zeros_like(count, dtype=torch.float64), value.double())
        total_B = total_B + (score * count).flatten(1).sum(1)
    return total_B


def folded(function: Any, size: int, dims: Sequence[Any], call: Call, tensors: Sequence[Tensor]) -> Any:
    """A vmapped call: one larger batch where only sequences differ; one call each where the parameters do."""
    values = tensors[1:]
    names = [*call.names, *(["direction"] * (len(values) - len(call.names)))]
    depth = {"score_BTC": 3, "seg_start_BTC": 3, "seg_end_BTC": 3, "segment_BTKC": 4, "transition": 4}
    own = [
        name == "direction" or value.dim() - (dim is not None) == depth.get(name)
        for name, value, dim in zip(names, values, dims[1:], strict=True)
    ]
    if any(dim is not None and not alone for dim, alone in zip(dims[1:], own, strict=True)):
        each = [
            applied(
                function,
                call.again(),
                *(x if dim is None else x.select(dim, n) for x, dim in zip(tensors, dims, strict=True)),
            )
            for n in range(size)
        ]
        each = [(one,) if isinstance(one, Tensor) else one for one in each]
        outputs = tuple(torch.stack(column) for column in zip(*each, strict=True))
        return outputs, (0,) * len(outputs)

    def flat(value: Tensor, dim: int | None) -> Tensor:
        many = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        return many.reshape(-1, *many.shape[2:])

    joined = [
        flat(value, dim) if alone else value
        for value, dim, alone in zip(tensors, dims, [True, *own], strict=True)
    ]
    batch, frames = joined[1].shape[:2]
    joined[0], _ = checked_lengths(joined[0], batch, frames, joined[1].device)
    found = applied(function, call.again(), *joined)
    found = (found,) if isinstance(found, Tensor) else found
    outputs = tuple(value.reshape(size, -1, *value.shape[1:]) for value in found)
    return outputs, (0,) * len(outputs)
