"""log Z and its counts as operators, which torch.compile takes whole (torch 2.4 or newer).

Only for code that is being compiled: through an operator a call costs tens of microseconds more. Where a
gradient will be wanted the counts are computed with log Z, and the compiled backward pass only weighs them.
Inputs are checked when an operator runs. Its second derivative is an operator too, but torch.compile itself
has no backward pass of a backward pass.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lab.rooms.semicrf.model.derivatives import autograd, second
from lab.rooms.semicrf.model.log_domain import crossed_shape
from lab.rooms.semicrf.model.problem import Posteriors, Problem, make_problem, onto

compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
INPUTS = tuple(field.name for field in fields(Problem) if field.name != "given_B")
SCHEMA = (
    ", ".join(f"Tensor{'' if at < 3 else '?'} {name}" for at, name in enumerate(INPUTS)) + ", str backend"
)
"""The arguments of `make_problem`, in its order."""
F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(reason: str) -> Callable[[F], F]:
    """For a function that the compiler leaves to Python; with fullgraph=True that is an error that says why.

    torch.compiler.disable alone would import the compiler, a second and more, wherever this package is.
    """

    def decorate(function: F) -> F:
        apart = functools.cache(lambda: cast(Any, torch.compiler).disable(function))

        @functools.wraps(function)
        def called(*inputs: Any, **more: Any) -> Any:
            if compiling():
                raise RuntimeError(reason)  # the tracer can follow no class of errors but Python's own
            if "torch._dynamo" in sys.modules:
                return apart()(*inputs, **more)
            return function(*inputs, **more)

        return cast(F, called)

    return decorate


def log_partition(backend: str, *model: Any, **terms: Any) -> Tensor:
    """As in api.py."""
    inputs = in_order(*model, **terms)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        log_z_B: Tensor = torch.ops.lab.semicrf_counts(*inputs, backend)[0]
        return log_z_B
    log_z_B = torch.ops.lab.semicrf_log_z(*inputs, backend)
    return log_z_B


def posteriors(backend: str, *model: Any, **terms: Any) -> Posteriors:
    """As in api.py."""
    return Posteriors.of_parts(torch.ops.lab.semicrf_counts(*in_order(*model, **terms), backend))


def in_order(
    score_BTC: Any, transition_CC: Any, duration_KC: Any, lengths_B: Any = None, **terms: Any
) -> list[Tensor | None]:
    """A model as the operators take it."""
    unknown = [name for name in terms if name not in INPUTS[4:]]
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(unknown)}")
    return [score_BTC, transition_CC, duration_KC, lengths_B, *map(terms.get, INPUTS[4:])]


def register(log_z: Callable[[Problem, str], Tensor], counts: Callable[[Problem, str], Posteriors]) -> None:
    """Define the operators by the functions that solve a checked problem; nothing where torch is too old."""
    if not hasattr(getattr(torch, "library", None), "custom_op"):
        return

    def counts_of(*inputs: Any) -> list[Tensor]:
        found = counts(checked(inputs), inputs[-1])
        *values, frame_B = found.parts()
        return [*(owned(value.double()) for value in values), owned(frame_B)]

    def tangents_of(direction: list[Tensor], *inputs: Any) -> list[Tensor]:
        return [owned(value) for value in second.tangents(checked(inputs), direction)]

    def define(name: str, schema: str, function: Any, fake: Any) -> Any:
        operator = torch.library.custom_op(f"lab::{name}", function, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        return operator

    define(
        "semicrf_log_z",
        f"({SCHEMA}) -> Tensor",
        lambda *inputs: owned(log_z(checked(inputs), inputs[-1])),
        lambda *inputs: shapes(inputs)[0],
    )
    define(
        "semicrf_tangents",
        f"(Tensor[] direction, {SCHEMA}) -> Tensor[]",
        tangents_of,
        lambda direction, *inputs: [x.new_empty(x.shape, dtype=torch.float64) for x in direction],
    )
    # A compiled backward pass refuses a second derivative only where it reads an input that has one.
    depends = define(
        "semicrf_depends",
        "(Tensor grad_B, Tensor[] inputs) -> Tensor",
        lambda grad_B, inputs: owned(grad_B),
        lambda grad_B, inputs: grad_B.new_empty(grad_B.shape),
    )
    depends.register_autograd(
        lambda ctx, grad_B: (grad_B, [None] * ctx.inputs),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "inputs", len(inputs[1])),
    )
    operator = define("semicrf_counts", f"({SCHEMA}) -> Tensor[]", counts_of, lambda *inputs: shapes(inputs))
    operator.register_autograd(backward, setup_context=setup_context)


def checked(inputs: Sequence[Any]) -> Problem:
    return make_problem(*inputs[: len(INPUTS)]).detached()


def unchecked(inputs: Sequence[Any]) -> Problem:
    """The problem of inputs that were checked, without a look at their values."""
    score_BTC, transition, duration_KC, lengths_B, *ends, opens, closes, segment = inputs[: len(INPUTS)]
    zero_C = score_BTC.new_zeros(score_BTC.shape[2])
    start_C, end_C = (zero_C if value is None else value for value in ends)
    if lengths_B is None:
        lengths_B = score_BTC.new_full(score_BTC.shape[:1], score_BTC.shape[1], dtype=torch.int64)
    lengths_B = onto(lengths_B, score_BTC.device).to(torch.int64)
    extras = (opens, closes, segment)
    return Problem(score_BTC, transition, duration_KC, lengths_B, start_C, end_C, *extras)


def owned(value: Tensor) -> Tensor:
    """A copy: what an operator returns shares no memory and is laid out as `shapes` says."""
    return value.clone(memory_format=torch.contiguous_format)


def shapes(inputs: Sequence[Any]) -> list[Tensor]:
    """Empty outputs: log Z, counts and mass."""
    problem = unchecked(inputs)
    batch, frames, longest, labels = problem.shape
    per_frame = (batch, frames, labels)
    own = [] if problem.segment_BTKC is None else [(batch, frames, longest, labels)]
    counts = [*[per_frame] * 3, (batch, longest, labels), (batch, *crossed_shape(problem)), *own]
    new = problem.score_BTC.new_empty
    values = [new(shape, dtype=torch.float64) for shape in ((batch,), *counts, (batch,))]
    return [*values, new((batch,), dtype=torch.int64)]


def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.backend, ctx.given = inputs[-1], [value is not None for value in inputs[:-1]]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*(value for value in inputs[:-1] if value is not None), *output)


def backward(ctx: Any, grads: Sequence[Tensor | None]) -> Any:
    tensors = list(ctx.saved_tensors)
    inputs = [tensors.pop(0) if given else None for given in ctx.given]
    problem, found = unchecked(inputs), Posteriors.of_parts(tensors)

    def moved(direction: Sequence[Tensor]) -> list[Tensor]:
        moved_counts: list[Tensor] = torch.ops.lab.semicrf_tangents(list(direction), *inputs, ctx.backend)
        return moved_counts

    wanted = [True] * len(problem.names())
    grad_B = grads[0]
    if grad_B is not None:
        grad_B = torch.ops.lab.semicrf_depends(grad_B, problem.floats())
    total = autograd.carried_back(problem, found, grad_B, grads[1:-2], wanted, moved)
    by_name = dict(zip(problem.names(), total, strict=True))
    return (
        *(by_name.get(name) if given else None for name, given in zip(INPUTS, ctx.given, strict=True)),
        None,
    )
