"""Running the model: greedy tokens one by one, what watching costs, which kernels run, how good the tokens are."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from lab.core.files import replacing
from lab.errors import BadDataError
from lab.rooms.nan.config import RESULT
from lab.rooms.nan.watch.watch import Watch

DECODE_STEPS = 8  # timed per repeat: one alone is too short
TEACHER = "logits.npy"


@dataclass
class Generated:
    """tokens: one list a prompt; logits: (batch, vocabulary) a step, those that the tokens were chosen from."""

    tokens: list[list[int]]
    logits: list[Tensor]


@torch.no_grad()
def generate(model: Any, ids: Tensor, mask: Tensor, num_tokens: int, watch: Watch | None) -> Generated:
    """Exactly `num_tokens` greedy tokens a prompt; an end token does not end it, so that counts compare.

    One prefill, then one decode step a token. Nothing of the logits is masked. All-NaN logits choose token 0 for ever.
    """
    with watch if watch is not None else contextlib.nullcontext():
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        state: Any = None
        for number in range(num_tokens):
            given = ids if not number else tokens[-1][:, None]
            out = forward(model, given, mask, state)
            state = out.past_key_values
            logits.append(out.logits[:, -1])
            tokens.append(logits[-1].argmax(dim=-1))
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        rows: list[list[int]] = torch.stack(tokens, dim=1).tolist()
    return Generated(rows, logits)


def forward(model: Any, ids: Tensor, mask: Tensor, state: Any = None) -> Any:
    """One forward with a cache; positions count real tokens only, as left padding asks."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    return model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=state, use_cache=True
    )


@torch.no_grad()
def first_logits(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """(batch, vocabulary) after the prompt."""
    found: Tensor = forward(model, ids, mask).logits[:, -1].float()
    return found


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
    """One prefill and some decode steps, timed by the host's clock around work that is waited for."""
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
    """The kernels of one prefill and one decode step with their launches, by torch's profiler; None on a CPU."""
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


@torch.no_grad()
def quality(
    model: Any, ids: Tensor, mask: Tensor, generated: Generated, experiment: str, out: Path
) -> dict[str, Any]:
    """The baseline's tokens teacher-forced: how far this model's distribution is from the baseline's, per position.

    The baseline itself leaves its logits for the others. `reason` says why there is no comparison.
    """
    if experiment == "baseline":
        logits = _forced(model, ids, mask, generated.tokens)
        with replacing(out / TEACHER) as file:
            np.save(file, logits)
        return {"reason": "this is the baseline", "same_tokens": len(generated.tokens[0])}
    told = out.parent / "baseline" / RESULT
    saved = told.with_name(TEACHER)
    if not told.exists() or not saved.exists():
        return {"reason": "no result of the baseline beside this one"}
    tokens = _tokens_of(told)
    reference, here = np.load(saved), _forced(model, ids, mask, tokens)
    if reference.shape != here.shape:
        return {"reason": f"the baseline's logits have another shape: {reference.shape}, {here.shape} here"}
    same = sum(a == b for a, b in zip(tokens[0], generated.tokens[0], strict=False))
    return {**compare(reference, here), "same_tokens": same, "of_tokens": len(tokens[0]), "reason": ""}


def compare(reference: np.ndarray, here: np.ndarray) -> dict[str, Any]:
    """KL(reference || here) in nats and agreement of the most likely token, over positions finite in both."""
    finite = np.isfinite(reference).all(axis=-1) & np.isfinite(here).all(axis=-1)
    found: dict[str, Any] = {"positions": len(finite), "finite_positions": int(finite.sum())}
    if not finite.any():
        return {**found, "kl_mean": None, "kl_max": None, "top1_agreement": None}
    p, q = (_log_softmax(one[finite].astype(np.float64)) for one in (reference, here))
    kl = (np.exp(p) * (p - q)).sum(axis=-1)
    agree = float((p.argmax(-1) == q.argmax(-1)).mean())
    return {**found, "kl_mean": float(kl.mean()), "kl_max": float(kl.max()), "top1_agreement": agree}


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _forced(model: Any, ids: Tensor, mask: Tensor, tokens: list[list[int]]) -> np.ndarray:
    """(tokens, vocabulary) float32: the logits that each token of the first prompt is chosen from, in one forward."""
    known = torch.tensor(tokens, device=ids.device)
    whole = torch.cat([ids, known[:, :-1]], dim=1)
    seen = torch.cat([mask, torch.ones_like(known[:, :-1])], dim=1)
    logits = forward(model, whole, seen).logits[0, ids.shape[1] - 1 :]
    result: np.ndarray = logits.float().cpu().numpy()
    return result


def _tokens_of(path: Path) -> list[list[int]]:
    try:
        found: list[list[int]] = msgspec.json.decode(path.read_bytes())["tokens"]
    except (msgspec.DecodeError, KeyError) as error:
        raise BadDataError(f"the baseline's result cannot be read: {error}", where=path) from error
    return found
