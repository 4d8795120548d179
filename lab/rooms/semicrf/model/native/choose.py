"""The compiled forms: C++ on a CPU (cpu.py), CUDA C through NVRTC on a GPU (cuda.py).

The scores' device chooses between them. `missing_reason` says why neither is available; "auto" asks once per
process and device.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lab.errors import MissingError
from lab.rooms.semicrf.model.native import cpu as native_cpu
from lab.rooms.semicrf.model.problem import Posteriors, Problem

log = logging.getLogger("lab.semicrf")


@dataclass
class State:
    """A form's own state, and the form."""

    engine: Any
    own: Any
    log_z_B: Tensor


def forward(problem: Problem, keep: bool = True, **more: bool) -> State:
    """log Z and what `backward` needs. Raises MissingError if the form is not available."""
    engine = engine_for(problem.score_BTC)
    own = engine.forward(problem, keep, **more)
    return State(engine, own, own.log_z_B)


def backward(state: State) -> Posteriors:
    found: Posteriors = state.engine.backward(state.own)
    return found


def differentiate(state: State, grad_B: Tensor) -> tuple[Posteriors, list[Tensor] | None]:
    """The counts, and the gradients for `grad_B` if the form makes them beside."""
    if hasattr(state.engine, "differentiate"):
        found: tuple[Posteriors, list[Tensor] | None] = state.engine.differentiate(state.own, grad_B)
        return found
    return backward(state), None


def engine_for(score_BTC: Tensor) -> Any:
    """The module for these scores."""
    if not score_BTC.is_cuda:
        return native_cpu
    reason = reason_without_gpu_form()
    if reason:
        raise MissingError(f"no compiled form on this GPU: {reason}", fix="backend='torch' or 'auto'")
    from lab.rooms.semicrf.model.native import cuda as native_cuda

    return native_cuda


def missing_reason(score_BTC: Tensor) -> str | None:
    """Why there is no compiled form for these scores, or None."""
    kind = score_BTC.device.type
    if kind not in ("cpu", "cuda"):
        return f"no compiled form for {kind}"
    return reason_without_gpu_form() if kind == "cuda" else reason_without_cpu_form()


@functools.cache
def reason_without_cpu_form() -> str | None:
    """Compiles the library if necessary."""
    try:
        native_cpu.library()
    except MissingError as error:
        log.debug("no C++ form of the semi-CRF, using torch: %s", error)
        return str(error)
    return None


@functools.cache
def reason_without_gpu_form() -> str | None:
    from lab.rooms.semicrf.model.native import cuda as native_cuda

    reason = native_cuda.available()
    if reason:
        log.debug("no CUDA form of the semi-CRF, using torch: %s", reason)
    return reason
