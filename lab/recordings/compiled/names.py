"""The operators in the name of an Inductor kernel: `triton_red_fused__unsafe_view_add_mean_1`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec

from lab.recordings.kineto.decode import EventDecoder
from lab.recordings.pieces import EventPieces, is_json

_NAME = re.compile(r"triton_(poi|red|per|tem|for|cpr|spl|unk|mm)_\w+\Z")
_CATEGORIES = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent reduction",
    "tem": "template",
    "for": "foreach",
}
_HASH = re.compile(r"[a-z2-7]{8,64}\Z")
_MARK = b'"kernel_hash"'


class InductorKernel(msgspec.Struct, frozen=True):
    """One kernel as the recording describes it; "" and -1 where it does not say.

    hash is the name of its generated file without `.py`; kwargs the block sizes, as `XBLOCK=2,R0_BLOCK=2048`.
    """

    name: str
    hash: str = ""
    kwargs: str = ""
    num_warps: int = -1
    num_stages: int = -1


class _Args(msgspec.Struct):
    external_id: int = msgspec.field(name="External id", default=-1)
    kernel_hash: str = ""
    kernel_kwargs: str = ""
    num_warps: int | str = -1
    num_stages: int | str = -1


class _Event(msgspec.Struct):
    name: str = ""
    args: _Args = msgspec.field(default_factory=_Args)


def is_inductor(name: str) -> bool:
    """Whether this is the name of a Triton kernel that Inductor generated."""
    return bool(_NAME.match(name))


def name_of_category(name: str) -> str:
    """`pointwise` for `triton_poi_...`, "" for other names."""
    match = _NAME.match(name)
    return _CATEGORIES.get(match[1], match[1]) if match else ""


def read_inductor(path: Path) -> dict[int, InductorKernel]:
    """Inductor's kernels of a Kineto file by the External id of their op; only those with a file hash.

    Raises what `read_kineto` raises for a file that is not a trace.
    """
    kernels: dict[int, InductorKernel] = {}
    if not is_json(path):  # only torch.profiler records them
        return kernels
    pieces = EventPieces(path, salvage=True)
    decoder = EventDecoder(pieces, Counter(), _Event)
    for piece in pieces:
        if _MARK in piece.text:
            for event in decoder.decode(piece):
                args = event.args
                if args.external_id >= 0 and _HASH.match(args.kernel_hash):
                    kernels[args.external_id] = InductorKernel(
                        name=event.name,
                        hash=args.kernel_hash,
                        kwargs=args.kernel_kwargs,
                        num_warps=_count(args.num_warps),
                        num_stages=_count(args.num_stages),
                    )
    return kernels


def _count(value: int | str) -> int:
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 6 else -1
    return value if 0 <= value < 100_000 else -1


_FUSED = re.compile(r"triton_[a-z]+_fused_(.*?)_?(\d+)\Z")
# Operators whose names have underscores in them: without these, a name would be cut in their middle.
_LONG = """
    _to_copy _unsafe_view _unsafe_index _unsafe_index_put _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data _fused_rms_norm _adaptive_avg_pool2d _scaled_mm _int_mm _local_scalar_dense
    _reshape_alias _assert_async _native_batch_norm_legit_functional
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward native_dropout native_dropout_backward
    as_strided as_strided_scatter slice_scatter select_scatter diagonal_scatter index_put index_select
    index_add masked_fill masked_scatter constant_pad_nd reflection_pad2d max_pool2d_with_indices
    max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward upsample_nearest2d upsample_bilinear2d
    embedding_dense_backward threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward
    hardtanh_backward leaky_relu leaky_relu_backward nll_loss_forward nll_loss_backward mse_loss
    mse_loss_backward select_backward slice_backward bitwise_and bitwise_not bitwise_or bitwise_xor
    bitwise_left_shift bitwise_right_shift logical_and logical_not logical_or logical_xor floor_divide
    true_divide var_mean new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like
    rand_like randn_like scalar_tensor split_with_sizes lift_fresh_copy convert_element_type
    prepare_softmax_online scatter_add scatter_reduce clamp_min clamp_max log_sigmoid_forward
    scaled_dot_product_attention inductor_lookup_seed inductor_random all_reduce all_gather_into_tensor
    reduce_scatter_tensor wait_tensor
"""
_KNOWN = frozenset(_LONG.split())


def fused_ops(kernel: str, op_names: Collection[str] = ()) -> tuple[str, ...]:
    """The operators that the name lists; () where it lists none, as in `triton_poi_fused_0`.

    known: names of operators without namespace, such as those of the recording; the longest that fits counts.
    """
    match = _FUSED.match(kernel)
    tail = match[1] if match else ""
    names = sorted(_KNOWN.union(op_names), key=len, reverse=True)
    by_start: dict[str, list[str]] = {}
    for name in names:
        by_start.setdefault(name[:1], []).append(name)
    ops = []
    while tail:
        op = next((name for name in by_start.get(tail[0], []) if _starts(tail, name)), _word(tail))
        ops.append(op)
        tail = tail[len(op) :].removeprefix("_")
    return tuple(ops)


def _starts(text: str, name: str) -> bool:
    return text.startswith(name) and text[len(name) : len(name) + 1] in ("", "_")


def _word(text: str) -> str:
    """The text up to the next underscore; an underscore at its start belongs to it."""
    return text[: text.index("_", 1)] if "_" in text[1:] else text
