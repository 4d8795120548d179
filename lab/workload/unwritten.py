"""Find outputs that an operator may leave unwritten: seeds of an attention without dropout, workspaces.

Such an output contains whatever was in that memory before, so no two runs agree in it. The table follows
torch's sources; of 551 CPU operators of torch 2.13 that ran with and without new memory filled with NaN,
only `_ctc_loss` returned memory that it had not written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lab.workload.recorder.bits import tensors_in

# aten and prims operators that allocate or grow memory and write no value into it.
EMPTY = re.compile(
    r"(aten|prims)\.(new_empty|new_empty_strided|_?empty\w*|_?resize_output_?|_?resize_as_\w*|resize_?)\."
)
_SDPA = r"_scaled_dot_product_(flash|efficient|cudnn|fused)_attention(_overrideable)?"
_FORWARD = r"_(flash|efficient|cudnn)_attention_forward"


def _always(arguments: Mapping[str, Any]) -> bool:
    return True


class _Left(NamedTuple):
    """An operator and the outputs that it may leave unwritten.

    op: its name without overload, and without library if that is aten. returns: names in the schema, or
    positions. applies: whether a call with these arguments leaves them; those that are not known are absent.
    """

    op: str
    returns: tuple[str | int, ...]
    applies: Callable[[Mapping[str, Any]], bool] = _always


def _no_dropout(arguments: Mapping[str, Any]) -> bool:
    return not arguments.get("dropout_p")  # then no kernel writes a seed


_TABLE = (
    _Left(rf"{_SDPA}|{_FORWARD}", ("philox_seed", "philox_offset", "rng_state"), _no_dropout),
    _Left(rf"{_SDPA}|{_FORWARD}", ("unused", "debug_attn_mask")),
    # Of packed sequences rows are padded to the longest.
    _Left(
        _FORWARD,
        ("logsumexp", "softmax_logsumexp"),
        lambda arguments: any(arguments.get(name) is not None for name in ("cum_seq_q", "cu_seqlens_q")),
    ),
    _Left(r"flash_attn\._flash_attn(_varlen)?_forward", (3,), _no_dropout),
    _Left(r"(_cudnn_rnn|miopen_rnn|mkldnn_rnn_layer)", (3,)),
    _Left(r"_cudnn_init_dropout_state", (0,)),
    _Left(r"(cudnn_batch_norm|_batch_norm_(with|no)_update\w*|_batch_norm_impl_index)", (3,)),
    # Sizes of bags: where the last offset ends the last bag, a GPU's mean nothing.
    _Left(
        r"_embedding_bag(_forward_only)?", (2,), lambda arguments: bool(arguments.get("include_last_offset"))
    ),
    _Left(r"_ctc_loss", (1,)),  # log_alpha, beyond the length of a sequence
)


@functools.cache
def _rules(word: str) -> list[_Left]:
    return [rule for rule in _TABLE if re.fullmatch(rule.op, word)]


def gives_no_values(name: str) -> bool:
    """Whether this operator only allocates, as `aten.empty_like.default` does."""
    return EMPTY.match(_plain(name)) is not None


def unwritten(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> dict[int, str]:
    """Name the tensors in `result` that may be unwritten, by their position among its tensors."""
    # Without the overload, and without the library if it is aten.
    word = ".".join(_plain(str(func)).split(".")[:2]).removeprefix("aten.")
    rows = _rules(word)
    if not rows or not isinstance(result, (tuple, list)):
        return {0: word} if rows and 0 in rows[0].returns else {}
    arguments = _arguments(func, args, kwargs)
    left = {name for row in rows if row.applies(arguments) for name in row.returns}
    names: dict[int, str] = {}
    number = 0
    for position, (value, name) in enumerate(zip(result, _names(func, len(result)), strict=True)):
        for _ in tensors_in(value):
            if position in left or name in left:
                names[number] = f"{word} {name or f'output {position}'}"
            number += 1
    return names


def _plain(name: str) -> str:
    """Write `aten::mm`, as torch 1.12 has it, like `aten.mm`."""
    return f"{name.replace('::', '.')}."


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, with the schema's defaults; empty without a schema."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else ()
    defaults = {
        argument.name: argument.default_value for argument in arguments if argument.default_value is not None
    }
    return {**defaults, **dict(zip((argument.name for argument in arguments), args, strict=False)), **kwargs}


def _names(func: Any, count: int) -> list[str]:
    returns = func._schema.returns if hasattr(func, "_schema") else ()
    return [output.name or "" for output in returns] if len(returns) == count else [""] * count
