"""The compiled forms: C++ on a CPU (cpu.py), CUDA C through NVRTC on a GPU (cuda.py).

The scores' device chooses between them. `missing_reason` says why neither is available; "auto" asks once per
process and device.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from torch import Tensor

from lab.errors import MissingError
from lab.rooms.semicrf.model.native import cpu as native_cpu

log = logging.getLogger("lab.semicrf")


def engine_for(score_BTC: Tensor) -> Any:
    """The module with `forward(problem, keep)` and `backward(state)`. Raises MissingError."""
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
