"""Running the model: greedy tokens, one by one."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.watch import Watch


@dataclass
class Generated:
    """tokens: one list per prompt; logits: (batch, vocabulary) per step, from which tokens were chosen."""

    tokens: list[list[int]]
    logits: list[Tensor]


@torch.no_grad()
def generate(model: Any, ids: Tensor, mask: Tensor, num_tokens: int, watch: Watch | None) -> Generated:
    """Exactly `num_tokens` greedy tokens per prompt; an end token does not stop it, so that counts compare.

    One prefill, then one decode step per token. Nothing of the logits is masked. All-NaN logits always choose
    token 0.
    """
    with watch if watch is not None else contextlib.nullcontext():
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        state: Any = None
        for number in range(num_tokens):
            next_ids = ids if not number else tokens[-1][:, None]
            out = forward(model, next_ids, mask, state)
            state = state_of(out)
            logits.append(out.logits[:, -1])
            tokens.append(logits[-1].argmax(dim=-1))
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        rows: list[list[int]] = torch.stack(tokens, dim=1).tolist()
    return Generated(rows, logits)


def forward(model: Any, ids: Tensor, mask: Tensor, state: Any = None) -> Any:
    """One forward with a cache; positions count real tokens only, as left padding asks."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": True}
    return model(**inputs, **{state_name(model): state})


def state_name(model: Any) -> str:
    """What a model calls its key/value cache: transformers has renamed it in 5.24."""
    return _state_name(type(model).forward)


@functools.cache
def _state_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def state_of(out: Any) -> Any:
    """The key/value cache in what a model puts out."""
    cache = getattr(out, "cache", None)
    return cache if cache is not None else out.past_key_values


@torch.no_grad()
def first_logits(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """(batch, vocabulary) after the prompt."""
    logits: Tensor = forward(model, ids, mask).logits[:, -1].float()
    return logits
