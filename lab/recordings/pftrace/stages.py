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
from lab.recordings.protobuf import Fields, inside, texts

# Field numbers of google/perfetto, protos/perfetto/trace/gpu/gpu_render_stage_event.proto.
_DURATION, _EXTRA, _GPU, _STAGE, _NAME, _KERNEL, _NAME_IID, _LAUNCH = 2, 6, 11, 14, 17, 19, 20, 21
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
_EVENT_COLUMNS = "state ts_ns dur_ns gpu stage name_iid name_id kernel launched"
_ARGUMENT_COLUMNS = "row state key_iid key_id number text_id"
Columns = dict[str, np.ndarray]
Resolve = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class StageSlices(NamedTuple):
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

    def add(self, data: np.ndarray, packets: Fields, state: np.ndarray, ts_ns: np.ndarray) -> None:
        """The stages of one batch; state and ts_ns are those of its packets."""
        count, events = len(packets.message), inside(data, packets)
        if not count:
            return
        state, launches = state[packets.message], events.of(_LAUNCH)
        launched = np.zeros(count, dtype=np.int64)
        launched[launches.message] = 1
        self._events.append(
            {
                "state": state,
                "ts_ns": ts_ns[packets.message],
                "dur_ns": events.column(_DURATION, count, 0),
                "gpu": events.column(_GPU, count),
                "stage": events.column(_STAGE, count),
                "name_iid": events.column(_NAME_IID, count),
                "name_id": texts(data, events.of(_NAME), self._strings, count),
                "kernel": events.column(_KERNEL, count),
                "launched": launched,
            }
        )
        self._add_extra(data, events.of(_EXTRA), state)
        self._add_launches(data, launches, state)
        self.count += count

    def _add_extra(self, data: np.ndarray, extra: Fields, state: np.ndarray) -> None:
        pairs, count = inside(data, extra), len(extra.message)
        key_id, text_id = (texts(data, pairs.of(number), self._strings, count) for number in (1, 2))
        self._argue(extra.message, state, key_id=key_id, text_id=text_id)

    def _add_launches(self, data: np.ndarray, launches: Fields, state: np.ndarray) -> None:
        launch = inside(data, launches)
        for number, size in ((_GRID, "grid"), (_BLOCK, "block")):
            part = launch.of(number)
            lengths = inside(data, part)
            for axis, letter in enumerate("xyz", start=1):
                key_id = np.full(len(part.message), self._strings.id(f"{size}_{letter}"))
                row = launches.message[part.message]
                self._argue(row, state, key_id=key_id, number=lengths.column(axis, len(part.message)))
        part = launch.of(_ARGS)
        pairs, count = inside(data, part), len(part.message)
        value = pairs.column(_ARG_UINT, count)
        self._argue(
            launches.message[part.message],
            state,
            key_iid=pairs.column(_ARG_IID, count),
            key_id=texts(data, pairs.of(_ARG_NAME), self._strings, count),
            number=np.where(value < 0, pairs.column(_ARG_INT, count), value),
        )

    def _argue(self, row: np.ndarray, state: np.ndarray, **columns: np.ndarray) -> None:
        unknown = np.full(len(row), -1, dtype=np.int64)
        defaults = dict.fromkeys(_ARGUMENT_COLUMNS.split(), unknown)
        self._arguments.append(defaults | columns | {"row": row + self.count, "state": state[row]})

    def finish(self, resolve: Resolve) -> StageSlices:
        """All stages of known kinds; resolve(kind, state, iid, text_id) gives the texts of interned ids."""
        events, arguments = joined(self._events, _EVENT_COLUMNS), joined(self._arguments, _ARGUMENT_COLUMNS)
        none = np.full(len(events["state"]), -1, dtype=np.int64)
        stage = resolve(SPECIFICATION, events["state"], events["stage"], none)
        name = resolve(EVENT_NAME, events["state"], events["name_iid"], events["name_id"])
        kernel = resolve(COMPUTE_KERNEL, events["state"], events["kernel"], none)
        category = np.array([*map(self._category, self._strings.texts), -1], dtype=np.int64)[stage]
        category[(kernel >= 0) | (events["launched"] > 0)] = self._strings.id("kernel")
        slices = {
            "start_ns": events["ts_ns"],
            "end_ns": events["ts_ns"] + np.maximum(events["dur_ns"], 0),
            "name_id": np.where(name < 0, np.where(kernel < 0, stage, kernel), name),
            "category_id": category,
            "pid": events["gpu"],
        }
        used = category >= 0
        arguments["key_id"] = resolve(
            COMPUTE_ARG, arguments["state"], arguments["key_iid"], arguments["key_id"]
        )
        of_used = used[arguments["row"]]
        arguments["row"] = (np.cumsum(used) - 1)[arguments["row"]]
        names = np.array([*self._strings.texts, "?"], dtype=object)
        return StageSlices(
            {column: values[used] for column, values in slices.items()},
            {column: arguments[column][of_used] for column in ("row", "key_id", "number", "text_id")},
            Counter(names[stage[~used]].tolist()),
        )

    def _category(self, stage: str) -> int:
        return self._strings.id(CATEGORIES[stage]) if stage in CATEGORIES else -1


def joined(parts: list[Columns], names: str) -> Columns:
    """The columns `names` of all parts, one behind the other."""
    empty = np.empty(0, dtype=np.int64)
    return {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in names.split()}
