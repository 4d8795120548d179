"""identity"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from lab.rooms.kernels.schema import (
    Arg,
    OpRecord,
)


@lru_cache(maxsize=1 << 16)
def sig_id_of(key: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()


def args_key(record: OpRecord | None) -> str:
    """What of the arguments makes two launches differ: types, sizes, strides and numbers; not where the data lie."""
    return "" if record is None else _digest(tuple(map(_bare, record.args)))


def _bare(arg: Arg | None) -> Any:
    if arg is None:
        return None
    sizes = (
        tuple(arg.shape) if arg.shape is not None else None,
        tuple(arg.stride) if arg.stride is not None else None,
    )
    return arg.kind, arg.dtype, *sizes, arg.device, repr(arg.value), tuple(map(_bare, arg.items or ()))


@lru_cache(maxsize=1 << 16)
def _digest(bare: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(bare).encode(), digest_size=8).hexdigest()
