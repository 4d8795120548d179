"""What makes two launches the same: digests of names, geometry and arguments."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from lab.rooms.kernels.schema import Arg, OpRecord


@lru_cache(maxsize=1 << 16)
def sig_id_of(key: tuple[Any, ...]) -> str:
    """Twelve hex digits, the same in every process."""
    return hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()


def args_key(record: OpRecord | None) -> str:
    """A digest of the arguments' types, sizes, strides and numbers; where the data lie is not part of it."""
    return "" if record is None else _digest(tuple(map(_bare, record.args)))


def _bare(arg: Arg | None) -> Any:
    if arg is None:
        return None
    shape, stride = (None if sizes is None else tuple(sizes) for sizes in (arg.shape, arg.stride))
    return arg.kind, arg.dtype, shape, stride, arg.device, repr(arg.value), tuple(map(_bare, arg.items or ()))


@lru_cache(maxsize=1 << 16)
def _digest(bare: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(bare).encode(), digest_size=8).hexdigest()
