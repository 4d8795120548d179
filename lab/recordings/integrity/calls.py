"""What a call of CUDA or HIP owes the GPU timeline, by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

# Kinds of calls. FILL: a memset, which makes a row only if it has bytes to set and no library hides it. WAIT:
# for everything on the device.
OTHER, LAUNCH, GRAPH_LAUNCH, COPY, FILL, BEGIN_CAPTURE, END_CAPTURE, WAIT = range(8)

# nsys and CUPTI append the version of the call's signature.
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds|_spt)+\Z")
_KINDS = (
    (GRAPH_LAUNCH, re.compile(r"(cuda|cu|hip)GraphLaunch")),
    (BEGIN_CAPTURE, re.compile(r"(cuda|cu|hip)StreamBeginCapture\w*")),
    (END_CAPTURE, re.compile(r"(cuda|cu|hip)StreamEndCapture")),
    # Not the callbacks of the host: cudaLaunchHostFunc owes nothing.
    (
        LAUNCH,
        re.compile(
            r"(cuda|cu|hip(Ext|Drv|Hcc)?)(Module)?Launch(Cooperative|Multi)?Kernel\w*"
            r"|hipLaunchByPtr|cudaLaunch|cuLaunch(Grid(Async)?)?"
        ),
    ),
    (COPY, re.compile(r"(cuda|cu|hip)Memcpy(?!GetAttribute)\w*")),
    (FILL, re.compile(r"(cuda|cu|hip)Memset\w*")),
    (WAIT, re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")),
)


def kinds_of(strings: Sequence[str], name_ids: np.ndarray) -> np.ndarray:
    """The kind (n,) of each call, from the ids of their names; OTHER for -1."""
    used, position = np.unique(name_ids, return_inverse=True)
    kinds = np.array([kind_of(strings[index]) if index >= 0 else OTHER for index in used], dtype=np.int8)
    return kinds[position] if len(used) else np.empty(0, dtype=np.int8)


def kind_of(name: str) -> int:
    """The kind of one call."""
    bare = _VERSION.sub("", name)
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(bare)), OTHER)
