"""log Z for autograd: its first derivative from the counts of a fast form, further ones from the log domain.

A training step goes through `LogPartition`. Wherever more than a first derivative may be wanted (with
create_graph, in torch.func, in forward mode) autograd differentiates the torch form itself.

A fast form can lose mass without a NaN: a product that underflows, a message that is stale. What is lost is
missing from an identity that all counts obey, so each result is held to those identities, whichever form made
it (`finish`). Sequences that break one are redone in the log domain, float64, which is slower and does not
underflow.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.model import log_domain, naive
from lab.rooms.semicrf.model.ledger import beyond, imbalance, tolerance_of
from lab.rooms.semicrf.model.problem import Posteriors, Problem, admitted, transforming

Alarm = Callable[[Posteriors], None]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(eq=False)
class Call:
    """Arguments of `LogPartition` beside tensors."""

    engine: Any
    alarm: Alarm | None
    names: tuple[str, ...]

    def model(self, lengths_B: Tensor, floats: Sequence[Tensor]) -> Problem:
        return Problem(lengths_B=lengths_B, **dict(zip(self.names, floats, strict=True)))

    def counts(self, problem: Problem, state: Any, grad_B: Tensor) -> tuple[Posteriors, list[Tensor] | None]:
        """The counts, and the gradients for `grad_B` where the form made them beside sound counts."""
        gradients: list[Tensor] | None = None
        if hasattr(self.engine, "differentiate"):
            posteriors, gradients = self.engine.differentiate(state, grad_B)
        else:
            posteriors = self.engine.backward(state)
        if self.alarm is not None:
            self.alarm(posteriors)  # before what is wrong is mended: a fault is to be seen
            posteriors = replace(posteriors, fetched=None)  # the audit as the alarm leaves it
        mended = finish(problem, posteriors)  # waits for a GPU, so the gradients are queued before
        return posteriors, None if mended else gradients


class LogPartition(torch.autograd.Function):
    """(call, lengths_B, *floats) -> log Z (B,)."""

    @staticmethod
    def forward(ctx: Any, call: Call, lengths_B: Tensor, *floats: Tensor) -> Tensor:
        problem = call.model(lengths_B, [value.detach() for value in floats])
        state = call.engine.forward(problem, keep=True)
        ctx.call = call
        # Autograd saves this tensor, and with it the messages: they go when the graph is freed, however long
        # the loss is kept.
        carrier: Any = torch.empty(0, device="cpu")
        carrier.passed = problem, state
        ctx.save_for_backward(lengths_B, *floats, carrier)
        log_z_B: Tensor = state.log_z_B.clone()  # a caller may change it in place
        return log_z_B

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor) -> Any:
        # Raises where an input was changed in place since: the counts read some of them again.
        lengths_B, *floats, carrier = ctx.saved_tensors
        call, wanted = ctx.call, ctx.needs_input_grad[2:]
        problem, state = carrier.passed
        if torch.is_grad_enabled():  # create_graph
            if call.alarm is not None:
                with torch.no_grad():
                    call.alarm(call.engine.backward(state))
            return (None, None, *graph_gradients(call.model(lengths_B, floats), grad_B, wanted))
        with torch.no_grad():
            posteriors, fast = call.counts(problem, state, grad_B)
            values = gradients(problem, posteriors, grad_B, wanted) if fast is None else fast
        return (None, None, *(x if want else None for x, want in zip(values, wanted, strict=True)))


def graph_gradients(problem: Problem, grad_B: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients that can be differentiated again."""
    inputs = [value for value, want in zip(problem.floats(), wanted, strict=True) if want]
    log_z_B = log_domain.log_partition(problem)
    derivatives = torch.autograd.grad(log_z_B, inputs, grad_B.double(), create_graph=True, allow_unused=True)
    remaining = iter(derivatives)
    return [next(remaining) if want else None for want in wanted]


def traced() -> bool:
    """Whether torch.func or forward mode follows each operation."""
    return transforming() or torch.autograd.forward_ad._current_level >= 0


def wants_gradient(problem: Problem) -> bool:
    return torch.is_grad_enabled() and any(value.requires_grad for value in problem.floats())


def log_partition(engine: Any, alarm: Alarm | None, problem: Problem) -> Tensor:
    """Differentiable in `problem.floats()`."""
    if traced():
        return log_domain.log_partition(problem)
    if not wants_gradient(problem):
        return cast(Tensor, engine.forward(problem.detached(), keep=False).log_z_B)
    call = Call(engine, alarm, problem.names())
    return cast(Tensor, LogPartition.apply(call, problem.lengths_B, *problem.floats()))  # type: ignore[no-untyped-call]


def posteriors(engine: Any, problem: Problem) -> Posteriors:
    """log Z and the counts; by the log domain where derivatives are wanted."""
    if traced() or wants_gradient(problem):
        return log_domain.derived_posteriors(problem)
    if engine is naive:
        return naive.posteriors(problem)
    with torch.no_grad():
        counted: Posteriors = engine.backward(engine.forward(problem.detached(), keep=True))
        finish(problem, counted)
    return counted


def gradients(
    problem: Problem, posteriors: Posteriors, grad_B: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Counts weighted by the incoming gradient, in the dtype of each input."""
    # An infeasible sequence has counts of zero and may have an infinite gradient: 0 * inf is NaN.
    grad_B = grad_B.double().masked_fill(torch.isneginf(posteriors.log_z_B), 0.0)

    def of(value: Tensor, count: Tensor) -> Tensor:
        if value.dim() < count.dim():  # shared by the sequences
            return (grad_B @ count.double().flatten(1)).reshape(count.shape[1:]).to(value.dtype)
        weight = grad_B.to(count.dtype).view(-1, *(1,) * (count.dim() - 1))
        return (count * weight).to(value.dtype)

    inputs = zip(problem.floats(), posteriors.counts(problem), wanted, strict=True)
    return [of(value, count) if want else None for value, count, want in inputs]


class MendedCounts(RuntimeWarning):
    """What a fast form computed did not add up. The result is right; the form or the GPU is not."""


def finish(problem: Problem, posteriors: Posteriors) -> bool:
    """Compute the counts of unsound sequences again, in `posteriors`, with a warning; whether there were any.

    Their mass error stays what the fast form computed, so that a watch can stop a training over it: a form
    that is sound marks its underflow itself, and never comes here.
    """
    worst_B = audited(problem, posteriors)
    allowed = tolerance_of(posteriors.label_BTC.dtype, posteriors.label_BTC.shape[1])
    # The one wait.
    error_B = worst_B.cpu().numpy() if posteriors.fetched is None else posteriors.fetched.numpy()
    sound_B = error_B <= allowed  # NaN is not sound
    if sound_B.all():
        return False
    rows = torch.from_numpy((~sound_B).nonzero()[0]).to(worst_B.device)
    counts = log_domain.posteriors(admitted(problem.rows(rows)))
    wrong_B = beyond(posteriors.log_z_B[rows], counts.log_z_B, posteriors.label_BTC.dtype)
    posteriors.replace_rows(rows, counts)
    posteriors.mass_error_B[rows] = torch.maximum(worst_B[rows], wrong_B)
    worst = int(posteriors.mass_error_B[rows].argmax())
    text = (
        f"expected counts of {plural(len(rows), 'sequence')} did not add up and were computed again "
        f"in the log domain; worst: sequence {int(rows[worst])}, off by {float(worst_B[rows[worst]]):.3g}"
    )
    if wrong_B[worst] > 0:
        text += f", and its log Z is off by a factor {1 + float(wrong_B[worst]):.6g}"
    warnings.warn(text, MendedCounts, stacklevel=2)
    return True


def audited(problem: Problem, posteriors: Posteriors) -> Tensor:
    """The worst error of what each sequence's counts must add up to; 0 where nothing is feasible."""
    if posteriors.imbalance_B is not None:  # the CUDA form computes it itself
        return posteriors.imbalance_B
    worst_B = imbalance(problem, posteriors)
    return torch.where(torch.isfinite(posteriors.log_z_B), worst_B, torch.zeros_like(worst_B))


def uncompiled(function: F) -> F:
    """Decorate a function that torch.compile leaves to Python.

    torch.compiler.disable alone would import the compiler, a second and more, wherever this package is.
    """
    apart = functools.cache(lambda: cast(Any, torch.compiler).disable(function))

    @functools.wraps(function)
    def called(*inputs: Any, **options: Any) -> Any:
        return (apart() if "torch._dynamo" in sys.modules else function)(*inputs, **options)

    return cast(F, called)
