"""What watching costs a forward, and which kernels run."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter as Tally
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.watch import Watch
from lab.rooms.nan.workload.generate import forward

DECODE_STEPS = 8  # timed per repeat: one alone is too short


@torch.no_grad()
def overhead(model: Any, ids: Tensor, mask: Tensor, repeats: int, counter: str) -> dict[str, Any]:
    """Prefill and decode with and without the watch, in turns; medians in ms, after a warm-up of each."""
    watch = Watch(model, counter=counter, keep_rows=False, check_weights=False)
    times: dict[tuple[str, bool], list[float]] = {}
    for repeat in range(repeats + 1):
        for watched in (False, True):
            with (
                Watch(model, counter=counter, keep_rows=False, check_weights=False)
                if watched
                else contextlib.nullcontext() as now
            ):
                _one_round(model, ids, mask, times if repeat else {}, watched, now)
    found: dict[str, Any] = {"repeats": repeats, "counter": watch.counter, "prompt_tokens": int(ids.shape[1])}
    for phase in ("prefill", "decode"):
        plain, seen = (statistics.median(times[phase, watched]) for watched in (False, True))
        found[phase] = {"plain_ms": plain, "watched_ms": seen, "overhead_percent": 100 * (seen / plain - 1)}
    return found


def _one_round(
    model: Any,
    ids: Tensor,
    mask: Tensor,
    times: dict[tuple[str, bool], list[float]],
    watched: bool,
    _watch: Any,
) -> None:
    """Time one prefill and some decode steps by the host's clock, waiting for the GPU each time."""
    began = _now(ids)
    out = forward(model, ids, mask)
    times.setdefault(("prefill", watched), []).append(1e3 * (_now(ids) - began))
    token = torch.ones_like(ids[:, :1])
    for at in range(DECODE_STEPS + 2):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        began = _now(ids)
        out = forward(model, token, mask, out.past_key_values)
        if at >= 2:  # the first decode steps learn where things lie
            times.setdefault(("decode", watched), []).append(1e3 * (_now(ids) - began))


def _now(near: Tensor) -> float:
    if near.is_cuda:
        torch.cuda.synchronize(near.device)
    return time.perf_counter()


@torch.no_grad()
def kernel_set(model: Any, ids: Tensor, mask: Tensor) -> dict[str, Any] | None:
    """The kernels of one prefill and one decode step with their launches; None on a CPU."""
    if not ids.is_cuda:
        return None
    found: dict[str, Any] = {}
    state = forward(model, ids, mask).past_key_values
    grown = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    runs: dict[str, Callable[[], Any]] = {
        "prefill": lambda: forward(model, ids, mask),
        "decode": lambda: forward(model, torch.ones_like(ids[:, :1]), grown, state),
    }
    for phase, work in runs.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            torch.cuda.synchronize()
        names = Tally(event.name for event in profile.events() if "CUDA" in str(event.device_type))
        found[phase] = {name: count for name, count in names.most_common() if not name.startswith("Mem")}
    return found
