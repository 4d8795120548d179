"""Plant a known cause in one layer of a random-weight model, to compare what is found with what was planted.

Scales are calibrated by one plain forward: the planted numbers overflow half whatever the width of the model,
and what comes before them stays well inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.nan.config import PROVOCATIONS

QUERY_PEAK = 2000.0  # largest |q| and |k|: finite in half, their products are not
GATE_PEAK, UP_PEAK = 200.0, 20000.0  # of the MLP's two factors, whose product exceeds 65504


@torch.no_grad()
def provoke(model: Any, kind: str, layer: int | None, ids: Tensor, mask: Tensor) -> dict[str, Any]:
    """Plant it; returns what, where, and the module that must be found.

    Raises UsageError for a model without such layers.
    """
    blocks = getattr(getattr(model, "model", None), "layers", None)
    if blocks is None or not hasattr(blocks[0], "self_attn") or not hasattr(blocks[0], "mlp"):
        raise UsageError(
            f"--provoke {kind} needs a model whose layers have self_attn and mlp",
            fix="use --model tiny or 7b-shape",
        )
    index = len(blocks) // 2 if layer is None else layer
    if index >= len(blocks):
        raise UsageError(
            f"no layer {index}: the model has {plural(len(blocks), 'layer')}", fix="lower --provoke-layer"
        )
    block, name = blocks[index], f"model.layers.{index}"
    if kind == "scores":
        _scale_to(
            model, [block.self_attn.q_proj, block.self_attn.k_proj], [QUERY_PEAK, QUERY_PEAK], ids, mask
        )
        expected = f"{name}.self_attn"
    elif kind == "overflow":
        _scale_to(model, [block.mlp.gate_proj, block.mlp.up_proj], [GATE_PEAK, UP_PEAK], ids, mask)
        expected = f"{name}.mlp"
    elif kind == "nan-weight":
        block.mlp.up_proj.weight[0, 0] = float("nan")
        expected = f"{name}.mlp.up_proj"
    else:
        mask_one_row(block.self_attn)
        expected = f"{name}.self_attn"
    return {"kind": kind, "layer": index, "expected": expected, "what": PROVOCATIONS[kind]}


def _scale_to(model: Any, linears: list[nn.Module], peaks: list[float], ids: Tensor, mask: Tensor) -> None:
    """Scale each layer's weight so that its largest output on this prompt is its peak."""
    largest: dict[int, float] = {}
    handles = []
    for number, linear in enumerate(linears):

        def note(_module: nn.Module, _inputs: Any, output: Tensor, number: int = number) -> None:
            largest[number] = max(largest.get(number, 0.0), float(output.abs().max()))

        handles.append(linear.register_forward_hook(note))
    try:
        model(input_ids=ids, attention_mask=mask)
    finally:
        for handle in handles:
            handle.remove()
    for number, (linear, peak) in enumerate(zip(linears, peaks, strict=True)):
        weight: Any = linear.weight
        weight.mul_(peak / largest[number])


def mask_one_row(attention: nn.Module) -> None:
    """Mask all keys of the last query with -inf, which a plain softmax turns into NaN."""
    forward = attention.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        queries = hidden.shape[1]
        keys = queries + cached_length(kwargs, getattr(attention, "layer_idx", 0))
        row = torch.zeros(hidden.shape[0], 1, queries, keys, dtype=hidden.dtype, device=hidden.device)
        row[:, :, -1, :] = float("-inf")
        mask = kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.is_floating_point() and mask.dim() == 4:
            row = row + mask[..., : row.shape[-1]]
        kwargs["attention_mask"] = row
        return forward(*args, **kwargs)

    attention.__dict__["forward"] = masked


def cached_length(kwargs: dict[str, Any], layer: int) -> int:
    """Positions of this layer already in the cache."""
    caches = (value for value in kwargs.values() if hasattr(value, "get_seq_length"))
    return next((int(cache.get_seq_length(layer)) for cache in caches), 0)
