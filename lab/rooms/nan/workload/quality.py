"""How far a model's distribution is from the baseline's, on the baseline's own tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from lab.core.files import replacing
from lab.errors import BadDataError
from lab.rooms.nan.config import RESULT
from lab.rooms.nan.workload.generate import Generated, forward

TEACHER = "logits.npy"


@torch.no_grad()
def quality(
    model: Any, ids: Tensor, mask: Tensor, generated: Generated, experiment: str, out: Path
) -> dict[str, Any]:
    """How far this model's distribution is from the baseline's, per position, on the baseline's tokens.

    The tokens are teacher-forced. The baseline itself leaves its logits for the others. `reason` says why
    there is no comparison.
    """
    if experiment == "baseline":
        logits = _forced(model, ids, mask, generated.tokens)
        with replacing(out / TEACHER) as file:
            np.save(file, logits)
        return {"reason": "this is the baseline", "same_tokens": len(generated.tokens[0])}
    result = out.parent / "baseline" / RESULT
    saved = result.with_name(TEACHER)
    if not result.exists() or not saved.exists():
        return {"reason": "no result of the baseline beside this one"}
    tokens = _tokens_of(result)
    reference, own_logits = np.load(saved), _forced(model, ids, mask, tokens)
    if reference.shape != own_logits.shape:
        return {
            "reason": f"the baseline's logits have another shape: {reference.shape}, here {own_logits.shape}"
        }
    same = sum(a == b for a, b in zip(tokens[0], generated.tokens[0], strict=False))
    return {**compare(reference, own_logits), "same_tokens": same, "of_tokens": len(tokens[0]), "reason": ""}


def compare(reference: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    """KL(reference || here) in nats and agreement of the most likely token, over positions finite in both."""
    finite = np.isfinite(reference).all(axis=-1) & np.isfinite(logits).all(axis=-1)
    summary: dict[str, Any] = {"positions": len(finite), "finite_positions": int(finite.sum())}
    if not finite.any():
        return {**summary, "kl_mean": None, "kl_max": None, "top1_agreement": None}
    p, q = (_log_softmax(one[finite].astype(np.float64)) for one in (reference, logits))
    kl = (np.exp(p) * (p - q)).sum(axis=-1)
    agree = float((p.argmax(-1) == q.argmax(-1)).mean())
    return {**summary, "kl_mean": float(kl.mean()), "kl_max": float(kl.max()), "top1_agreement": agree}


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _forced(model: Any, ids: Tensor, mask: Tensor, tokens: list[list[int]]) -> np.ndarray:
    """(tokens, vocabulary) float32: the logits that each token of the first prompt was chosen from."""
    forced = torch.tensor(tokens, device=ids.device)
    all_ids = torch.cat([ids, forced[:, :-1]], dim=1)
    all_mask = torch.cat([mask, torch.ones_like(forced[:, :-1])], dim=1)
    logits = forward(model, all_ids, all_mask).logits[0, ids.shape[1] - 1 :]
    result: np.ndarray = logits.float().cpu().numpy()
    return result


def _tokens_of(path: Path) -> list[list[int]]:
    try:
        tokens: list[list[int]] = msgspec.json.decode(path.read_bytes())["tokens"]
    except (msgspec.DecodeError, KeyError) as error:
        raise BadDataError(f"the baseline's result cannot be read: {error}", location=path) from error
    return tokens
