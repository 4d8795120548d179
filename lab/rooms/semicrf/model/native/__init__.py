"""The compiled forms: C++ on a CPU (cpu.py), CUDA C on a GPU (cuda.py).

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
    kind = score_BTC.device.type
    if kind == "cpu":
        return native_cpu
    reason = missing_reason(kind)
    if reason:
        raise MissingError(f"no compiled form for {kind}: {reason}", fix="backend='torch' or 'auto'")
    from lab.rooms.semicrf.model.native import cuda as native_cuda

    return native_cuda


@functools.cache
def missing_reason(kind: str) -> str | None:
    """Why a kind of device lacks a compiled form, or None; compiles that for a CPU if necessary."""
    reason: str | None = None
    if kind == "cuda":
        from lab.rooms.semicrf.model.native import cuda as native_cuda

        reason = native_cuda.available()
    elif kind == "cpu":
        try:
            native_cpu.library()
        except MissingError as error:
            reason = str(error)
    else:
        reason = "there is none for it"
    if reason:
        level = logging.WARNING if kind in ("cpu", "cuda") else logging.DEBUG
        log.log(
            level, "no compiled form of the semi-CRF for %s, using torch, which is slower: %s", kind, reason
        )
    return reason
