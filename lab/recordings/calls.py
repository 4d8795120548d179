"""API calls: what each owes the GPU timeline by its name, and which one launched each row on the GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lab.recordings.capture import GRAPH, Capture, once
from lab.recordings.owners import first_index

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


@once
def call_kinds(capture: Capture) -> np.ndarray:
    """The kind (n,) of each row of `api`."""
    return kinds_of(capture.strings, capture.api.name_id)


@once
def launch_calls(capture: Capture) -> np.ndarray:
    """The row of `api` that launched each row of `ops` (n,), by process and correlation; -1 where it is not
    here."""
    ops, api = capture.ops, capture.api
    return first_index(*pair_keys((ops.process, ops.corr), (api.process, api.corr)))


def pair_keys(*columns: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """One number for equal (process, id) in all of these columns; -1 for an id that was not recorded, which
    recorders write as 0."""
    process, number = (np.concatenate(parts).astype(np.int64) for parts in zip(*columns, strict=True))
    keys = number
    if len(process) and (process != process[0]).any():
        distinct_numbers, dense = np.unique(number, return_inverse=True)
        keys = process * len(distinct_numbers) + dense.ravel()
    keys = np.where(number > 0, keys, -1)
    return np.split(keys, np.cumsum([len(part) for part, _ in columns])[:-1])


def of_graphs(capture: Capture, call: np.ndarray) -> np.ndarray:
    """Mask (n,) of `ops`: launched by a graph replay; call (n,): of `launch_calls`."""
    by_call = np.append(call_kinds(capture) == GRAPH_LAUNCH, False)[call]
    replayed: np.ndarray = by_call | (capture.ops.graph_node > 0)
    return replayed


def in_graph(capture: Capture) -> np.ndarray:
    """Mask (n,) of `ops`: single rows that a graph replay made, not a replay in one row."""
    mask: np.ndarray = of_graphs(capture, launch_calls(capture)) & (capture.ops.kind != GRAPH)
    return mask


def replays_graphs(capture: Capture) -> bool:
    """Whether any GPU row of a recording was made by a graph, or any call launched one."""
    return bool((call_kinds(capture) == GRAPH_LAUNCH).any() or (capture.ops.graph_node > 0).any())
