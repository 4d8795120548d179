"""What kind of forward one is: equal kinds are told from each other's templates and totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lab.rooms.nan.watch.unseen_by_compile import passes_on

RECOMPUTE = "recompute"  # of a checkpoint, inside backward


@passes_on
def phase_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
    """(phase, query length): prefill or decode by the length; `forward` and 0 for a model without a query."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids") if kwargs else ():
        if isinstance(kwargs.get(name), Tensor):
            return _by_length(kwargs[name])
    if args and isinstance(args[0], Tensor) and args[0].dim() == 2 and not args[0].is_floating_point():
        return _by_length(args[0])
    return "forward", 0


@passes_on
def _by_length(tensor: Tensor) -> tuple[str, int]:
    length = int(tensor.shape[1]) if tensor.dim() > 1 else 1
    return ("prefill" if length > 1 else "decode"), length
