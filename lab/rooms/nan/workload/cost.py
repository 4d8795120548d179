"""What watching costs a forward."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.watch import Watch
from lab.rooms.nan.workload.generate import forward, state_of

DECODE_STEPS = 8  # timed per repeat: one alone is too short
WARM_UP_STEPS = 2  # the watch makes its templates in the first decode steps


@torch.no_grad()
def overhead(model: Any, ids: Tensor, mask: Tensor, repeats: int, counter: str) -> dict[str, Any]:
    """Prefill and decode with and without the watch, in turns; medians in ms, after a warm-up of each.

    low_percent and high_percent are the quartiles of the neighbours' ratios.
    """
    plain, watched = Times(), Times()
    with Watch(model, counter=counter, keep_rows=False, check_weights=False) as watch:
        watch.step_aside()
        for repeat in range(repeats + 1):
            _one_round(model, ids, mask, plain if repeat else Times())
            with watch.stepping_in():
                _one_round(model, ids, mask, watched if repeat else Times())
    summary: dict[str, Any] = {"repeats": repeats, "counter": counter, "prompt_tokens": int(ids.shape[1])}
    for phase in ("prefill", "decode"):
        plain_ms, watched_ms = (statistics.median(getattr(times, phase)) for times in (plain, watched))
        pairs = zip(getattr(plain, phase), getattr(watched, phase), strict=True)
        ratios = sorted(100 * (one / other - 1) for other, one in pairs)
        summary[phase] = {
            "plain_ms": plain_ms,
            "watched_ms": watched_ms,
            "overhead_percent": 100 * (watched_ms / plain_ms - 1),
            "low_percent": ratios[len(ratios) // 4],
            "high_percent": ratios[-1 - len(ratios) // 4],
        }
    return summary


@dataclass
class Times:
    """Milliseconds of each timed forward."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def _one_round(model: Any, ids: Tensor, mask: Tensor, times: Times) -> None:
    """Time one prefill and some decode steps by the host's clock, waiting for the GPU each time."""
    began = _now(ids)
    out = forward(model, ids, mask)
    times.prefill.append(1e3 * (_now(ids) - began))
    token = torch.ones_like(ids[:, :1])
    for step in range(WARM_UP_STEPS + DECODE_STEPS):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        began = _now(ids)
        out = forward(model, token, mask, state_of(out))
        if step >= WARM_UP_STEPS:
            times.decode.append(1e3 * (_now(ids) - began))


def _now(near: Tensor) -> float:
    if near.is_cuda:
        torch.cuda.synchronize(near.device)
    return time.perf_counter()
