"""log Z with its hand-written gradient: the expected counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.rooms.semicrf.model.finish import finish
from lab.rooms.semicrf.model.problem import Posteriors, Problem

Alarm = Callable[[Posteriors], None]


class LogPartition(torch.autograd.Function):
    """log Z of `problem`, whose values are `floats` without their graph."""

    @staticmethod
    def forward(ctx: Any, engine: Any, alarm: Alarm | None, problem: Problem, *floats: Tensor) -> Tensor:
        state = engine.forward(problem, keep=any(ctx.needs_input_grad[3:]))
        ctx.engine, ctx.state, ctx.problem, ctx.alarm = engine, state, problem, alarm
        ctx.save_for_backward(*floats)
        log_z_B: Tensor = state.log_z_B.detach()  # the output itself in ctx would keep all messages till a gc
        return log_z_B

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> Any:
        # Raises where one was changed in place since: the counts read some of them again.
        _ = ctx.saved_tensors
        found = ctx.engine.backward(ctx.state)
        if ctx.alarm is not None:
            ctx.alarm(found)  # before what is wrong is mended: a fault is to be seen
        found = finish(ctx.problem, found)
        return (None, None, None, *gradients(ctx.problem, found, grad_B, ctx.needs_input_grad[3:]))


def gradients(
    problem: Problem, found: Posteriors, grad_B: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Counts weighted by the incoming gradient, in the dtype of each input and the order of `floats()`."""
    grad_B = torch.where(found.log_z_B.abs() < torch.inf, grad_B.double(), 0.0)

    def of(given: Tensor, count: Tensor) -> Tensor:
        if given.dim() < count.dim():  # shared by the sequences
            return (grad_B @ count.double().flatten(1)).view(count.shape[1:]).to(given.dtype)
        weight = grad_B.to(count.dtype).view(-1, *(1,) * (count.dim() - 1))
        return (count * weight).to(given.dtype)

    inputs = zip(problem.floats(), found.counts(problem), wanted, strict=True)
    return [of(given, count) if want else None for given, count, want in inputs]
