"""GPU render stages: how newer versions of torch.profiler write GPU operations into Perfetto files.

Each is one packet with its own duration, on the lane (hardware queue) of its stream; what a JSON trace has as
arguments stands in `extra_data` and in the parameters of the launch. torch cuts the end of an operation that
overlaps the next of its lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lab.recordings.capture import Strings
from lab.recordings.pftrace import values
from lab.recordings.protobuf import Fields, fields

# Field numbers of google/perfetto, protos/perfetto/trace/gpu/gpu_render_stage_event.proto.
_DURATION, _EXTRA, _GPU, _QUEUE, _STAGE, _NAME, _KERNEL, _NAME_IID, _LAUNCH = 2, 6, 11, 13, 14, 17, 19, 20, 21
_GRID, _BLOCK, _ARGS = 1, 2, 3  # of a launch
_ARG_IID, _ARG_NAME, _ARG_INT, _ARG_UINT = 1, 2, 3, 4
EVENT_NAME, SPECIFICATION, COMPUTE_KERNEL, COMPUTE_ARG = 2, 24, 1000, 1001  # kinds of interned texts
CATEGORIES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
_EVENT_COLUMNS = "state ts_ns dur_ns gpu queue stage name_iid name_id kernel launched"
_ARGUMENT_COLUMNS = "row state key_iid key_id number text_id"
Columns = dict[str, np.ndarray]
Resolve = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Found(NamedTuple):
    """Slices and arguments; `row` of an argument is the slice's. unknown: stages of other kinds, by name."""

    slices: Columns
    arguments: Columns
    unknown: Counter[str]


class Stages:
    """Collects the render stages of a file batch by batch."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._events: list[Columns] = []
        self._arguments: list[Columns] = []
        self.count = 0

    def add(self, data: np.ndarray, found: Fields, state: np.ndarray, ts_ns: np.ndarray) -> None:
        """The stages of one batch; state and ts_ns are those of its packets."""
        if not len(found.message):
            return
        count, own = len(found.message), fields(data, found.value, found.end)
        names = np.full(count, -1, dtype=np.int64)
        given = own.of(_NAME)
        names[given.message] = values.texts(data, given.value, given.end, self._strings)
        state = state[found.message]
        launches = own.of(_LAUNCH)
        launched = np.zeros(count, dtype=np.int64)
        launched[launches.message] = 1
        self._events.append(
            {
                "state": state,
                "ts_ns": ts_ns[found.message],
                "dur_ns": own.column(_DURATION, count, 0),
                "gpu": own.column(_GPU, count),
                "queue": own.column(_QUEUE, count),
                "stage": own.column(_STAGE, count),
                "name_iid": own.column(_NAME_IID, count),
                "name_id": names,
                "kernel": own.column(_KERNEL, count),
                "launched": launched,
            }
        )
        self._extra(data, own.of(_EXTRA), state)
        self._launches(data, launches, state)
        self.count += count

    def _extra(self, data: np.ndarray, given: Fields, state: np.ndarray) -> None:
        if not len(given.message):
            return
        size, own = len(given.message), fields(data, given.value, given.end)
        columns = np.full((2, size), -1, dtype=np.int64)
        for column, number in zip(columns, (1, 2), strict=True):
            part = own.of(number)
            column[part.message] = values.texts(data, part.value, part.end, self._strings)
        self._argue(given.message, state, key_id=columns[0], text_id=columns[1])

    def _launches(self, data: np.ndarray, given: Fields, state: np.ndarray) -> None:
        if not len(given.message):
            return
        own = fields(data, given.value, given.end)
        for number, what in ((_GRID, "grid"), (_BLOCK, "block")):
            part = own.of(number)
            sizes = fields(data, part.value, part.end)
            for axis, letter in enumerate("xyz", start=1):
                key = np.full(len(part.message), self._strings.id(f"{what}_{letter}"))
                number_of = sizes.column(axis, len(part.message))
                self._argue(given.message[part.message], state, key_id=key, number=number_of)
        part = own.of(_ARGS)
        size, inside = len(part.message), fields(data, part.value, part.end)
        named = inside.of(_ARG_NAME)
        key = np.full(size, -1, dtype=np.int64)
        key[named.message] = values.texts(data, named.value, named.end, self._strings)
        value = inside.column(_ARG_UINT, size)
        value = np.where(value < 0, inside.column(_ARG_INT, size), value)
        iid = inside.column(_ARG_IID, size)
        self._argue(given.message[part.message], state, key_id=key, key_iid=iid, number=value)

    def _argue(self, row: np.ndarray, state: np.ndarray, **columns: np.ndarray) -> None:
        unknown = np.full(len(row), -1, dtype=np.int64)
        made = dict.fromkeys(_ARGUMENT_COLUMNS.split(), unknown) | columns
        self._arguments.append(made | {"row": row + self.count, "state": state[row]})

    def finish(self, resolve: Resolve) -> Found:
        """All stages of known kinds; resolve(kind, state, iid, own) gives the texts of interned ids."""
        events, given = _joined(self._events, _EVENT_COLUMNS), _joined(self._arguments, _ARGUMENT_COLUMNS)
        none = np.full(len(events["state"]), -1, dtype=np.int64)
        stage = resolve(SPECIFICATION, events["state"], events["stage"], none)
        name = resolve(EVENT_NAME, events["state"], events["name_iid"], events["name_id"])
        kernel = resolve(COMPUTE_KERNEL, events["state"], events["kernel"], none)
        name = np.where(name < 0, np.where(kernel < 0, stage, kernel), name)
        is_kernel = (kernel >= 0) | (events["launched"] > 0)
        category = np.where(is_kernel, self._strings.id("kernel"), self._by_stage(stage))
        kept = category >= 0
        place = np.cumsum(kept) - 1
        mine = kept[given["row"]] if len(given["row"]) else np.empty(0, dtype=bool)
        keys = resolve(COMPUTE_ARG, given["state"], given["key_iid"], given["key_id"])
        texts = np.array([*self._strings.texts, "?"], dtype=object)
        slices = {
            "start_ns": events["ts_ns"],
            "end_ns": events["ts_ns"] + np.maximum(events["dur_ns"], 0),
            "name_id": name,
            "category_id": category,
            "device": events["gpu"],
            "lane_id": resolve(SPECIFICATION, events["state"], events["queue"], none),
        }
        arguments = {"row": place[given["row"]], "key_id": keys}
        arguments |= {one: given[one] for one in ("number", "text_id")}
        return Found(
            {one: column[kept] for one, column in slices.items()},
            {one: column[mine] for one, column in arguments.items()},
            Counter(texts[stage[~kept]].tolist()),
        )

    def _by_stage(self, stage: np.ndarray) -> np.ndarray:
        """The id of the category (n,) of each stage, -1 for one that lab does not know."""
        used, which = np.unique(stage, return_inverse=True)
        known = [CATEGORIES.get(self._strings.texts[one]) if one >= 0 else None for one in used.tolist()]
        ids = np.array([self._strings.id(one) if one else -1 for one in known], dtype=np.int64)
        return ids[which.reshape(-1)] if len(used) else np.empty(0, dtype=np.int64)


def _joined(parts: list[Columns], names: str) -> Columns:
    empty = np.empty(0, dtype=np.int64)
    return {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in names.split()}
