"""Outputs of operators that nobody need write: seeds of an attention that draws nothing, workspaces.

What they hold is whatever was in that memory before, so no two runs agree in it and no verdict may rest on
it. From torch's sources. On a CPU every operator of torch 2.13 that its own tests have samples of ran twice,
with and without new memory filled with NaN (551 operators): `_ctc_loss` alone gives what it did not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

# Of aten and prims: new or longer memory, and not one value in it.
EMPTY = re.compile(
    r"(aten|prims)\.(new_empty|new_empty_strided|_?empty\w*|_?resize_output_?|_?resize_as_\w*|resize_?)\."
)
_SDPA = r"_scaled_dot_product_(flash|efficient|cudnn|fused)_attention(_overrideable)?"
_FORWARD = r"_(flash|efficient|cudnn)_attention_forward"


def _draws_nothing(given: Mapping[str, Any]) -> bool:
    """Without dropout no kernel draws, and none writes where it began; so, too, if that is not known."""
    return not given.get("dropout_p")


def _of_several_lengths(given: Mapping[str, Any]) -> bool:
    """A row per sequence, as long as the longest."""
    return any(given.get(name) is not None for name in ("cum_seq_q", "cu_seqlens_q"))


def _of_one_offset_more(given: Mapping[str, Any]) -> bool:
    """A GPU gives a size for it, too, though no bag begins there."""
    return bool(given.get("include_last_offset"))


def _always(given: Mapping[str, Any]) -> bool:
    return True


class _Left(NamedTuple):
    """`op`: its name without overload, and without library if that is aten. `returns`: by their names in the
    schema, or numbers."""

    op: str
    returns: tuple[str | int, ...]
    where: Callable[[Mapping[str, Any]], bool] = _always


_TABLE = [
    (re.compile(one.op), one)
    for one in (
        _Left(rf"{_SDPA}|{_FORWARD}", ("philox_seed", "philox_offset", "rng_state"), _draws_nothing),
        _Left(rf"{_SDPA}|{_FORWARD}", ("unused", "debug_attn_mask")),
        _Left(_FORWARD, ("logsumexp", "softmax_logsumexp"), _of_several_lengths),
        _Left(r"flash_attn\._flash_attn(_varlen)?_forward", (3,), _draws_nothing),
        _Left(r"(_cudnn_rnn|miopen_rnn|mkldnn_rnn_layer)", (3,)),
        _Left(r"_cudnn_init_dropout_state", (0,)),
        _Left(r"(cudnn_batch_norm|_batch_norm_(with|no)_update\w*|_batch_norm_impl_index)", (3,)),
        _Left(r"_embedding_bag(_forward_only)?", (2,), _of_one_offset_more),  # sizes of bags
        _Left(r"_ctc_loss", (1,)),  # log_alpha, beyond the length of a sequence
    )
]


def gives_no_values(name: str) -> bool:
    """Whether `aten.empty_like.default` computes nothing. Operators of other libraries may be called so."""
    return EMPTY.match(_plain(name)) is not None


def unwritten(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> dict[int, str]:
    """Of the tensors in `result`, numbered as they come in it, those that this call need not write: their
    names."""
    word = _word(str(func))
    rows = [one for pattern, one in _TABLE if pattern.fullmatch(word)]
    if not rows or not isinstance(result, (tuple, list)):
        return {0: word} if rows and 0 in rows[0].returns else {}
    given = _arguments(func, args, kwargs)
    left = {name for one in rows if one.where(given) for name in one.returns}
    found: dict[int, str] = {}
    number = 0
    for at, (value, name) in enumerate(zip(result, _names(func, len(result)), strict=True)):
        for _ in _tensors(value):
            if at in left or name in left:
                found[number] = f"{word} {name or f'output {at}'}"
            number += 1
    return found


def _plain(name: str) -> str:
    """`aten.mm.default`, also where an old torch says `aten::mm`."""
    return f"{name.replace('::', '.')}."


def _word(name: str) -> str:
    """Without overload; with the library unless it is aten: another's operator may have the same name."""
    return ".".join(_plain(name).split(".")[:2]).removeprefix("aten.")


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """By name, with the schema's defaults; empty without a schema."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else ()
    defaults = {one.name: one.default_value for one in arguments if one.default_value is not None}
    return {**defaults, **dict(zip((one.name for one in arguments), args, strict=False)), **kwargs}


def _names(func: Any, count: int) -> list[str]:
    returns = func._schema.returns if hasattr(func, "_schema") else ()
    return [one.name or "" for one in returns] if len(returns) == count else [""] * count


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value]
    return [one for inner in value for one in _tensors(inner)] if isinstance(value, (list, tuple)) else []
