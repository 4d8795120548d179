"""Kineto traces (torch.profiler's JSON, plain or gzip) as columns, in one pass and with bounded memory.

`lab.recordings.pieces` yields text, `Columns.feed` turns one text into numpy columns: msgspec decodes its
events into structs of the fields in use, `values` makes columns of them. The format is that of
pytorch/kineto, `libkineto/src/output_json.cpp`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.recordings.capture import (
    API_COLUMNS,
    COLLECTIVE_COLUMNS,
    COMM_OP_COLUMNS,
    FLOW_COLUMNS,
    KERNEL,
    MEMCPY,
    MEMSET,
    MODULE,
    OP,
    OPS_COLUMNS,
    PROCESS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    SLICE_COLUMNS,
    THREAD_COLUMNS,
    WAIT_COLUMNS,
    Capture,
    Device,
    Strings,
    copy_kinds,
    filled,
)
from lab.recordings.kineto.decode import Event, EventDecoder, clean_text, decode_frame, integer_of, meta_of
from lab.recordings.kineto.indices import (
    EventIndices,
    cut_short,
    of_log,
    of_merged,
    owners_are_here,
    owners_lost,
    unread,
    untimed,
)
from lab.recordings.kineto.values import Fields, Ids, Lookup
from lab.recordings.owners import first_index, settled
from lab.recordings.phase_names import step_number
from lab.recordings.pieces import PIECE_BYTES, EventPieces, Piece
from lab.recordings.processes import without_untimed
from lab.recordings.tables import Schema, Table

# Categories in lower case: torch 1.12 writes Kernel, Memcpy, Memset and Runtime, and Operator before that.
GPU_KINDS = {
    "kernel": KERNEL,
    **dict.fromkeys(("gpu_memcpy", "memcpy"), MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), MEMSET),
}

TABLE_OF = {
    **dict.fromkeys(GPU_KINDS, "kernels"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "runtime"), "runtime"),
    **dict.fromkeys(("user_annotation", "gpu_user_annotation"), "ranges"),
    **dict.fromkeys(("cpu_op", "operator"), "ops"),
    "fwdbwd": "flows",
    "python_function": "functions",
    "cuda_sync": "waits",
    "": "names",
}

_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "dynamic_smem_bytes")
TIMED = ("kernels", "ops", "runtime", "ranges", "modules")
_ABSOLUTE_NS = 2**43 * 1000  # times beyond it count from 1970, not from a base


SCHEMAS: dict[str, Schema] = {
    "kernels": OPS_COLUMNS,
    "ops": RANGE_COLUMNS,
    "runtime": API_COLUMNS,
    "ranges": {**RANGE_COLUMNS, "on_gpu": np.bool_},
    "collectives": COLLECTIVE_COLUMNS,
    "comm_ops": COMM_OP_COLUMNS,
    "flows": FLOW_COLUMNS,
    "modules": SLICE_COLUMNS,
    "waits": WAIT_COLUMNS,
}
STREAM_WAIT = "Stream Wait Event"  # Kineto's name of the kind in which a stream waits, not the host
_FLOW = re.compile(rb"\"*(\d{1,18})\"*")

# Table -> the table of those of its rows that describe a collective, and the column that names the row.
_COLLECTIVES = {"kernels": ("collectives", "kernel"), "ops": ("comm_ops", "op")}
# Table -> its columns of numbers, of ids of texts and of ids of lists, each with the field of an event.
_INTS = {
    "kernels": {"corr": "correlation", "external_id": "external_id", "bytes": "bytes_"},
    "ops": {"external_id": "external_id", "rf_id": "rf_id", "seq": "sequence"},
    "runtime": {"corr": "correlation", "external_id": "external_id"},
    "waits": {"corr": "correlation", "stream": "stream", "on_stream": "on_stream", "record": "record"},
}
_TEXTS = {"runtime": {"kernel_id": "kernel"}}
_RAWS = {
    "ops": {f"{name}_id": name for name in ("dims", "types", "strides", "concrete")},
    "ranges": {f"{name}_id": name for name in ("dims", "types")},
}
for _table in ("collectives", "comm_ops"):
    _INTS[_table] = {
        name: name
        for name in ("in_nelems", "out_nelems", "group_size", "seq", "dst_rank", "src_rank", "group_rank")
    }
    _TEXTS[_table] = {
        f"{name}_id": name for name in ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks")
    }
    _RAWS[_table] = {f"{name}_id": name for name in ("in_split", "out_split")}


class Columns:
    """Bytes in, columns out: `feed` takes texts of whole events, `finish` returns the tables."""

    def __init__(self, pieces: EventPieces, *, frames: bool) -> None:
        self.problems: Counter[str] = Counter()
        self._frames = frames
        self._pieces = pieces
        self._decoder = EventDecoder(pieces, self.problems, Event)
        self._ids = Ids(self.problems)
        self._indices = EventIndices()
        self._chunks: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in SCHEMAS}
        self._num_rows: Counter[str] = Counter()  # by table
        self._num_slices: Counter[str] = Counter()  # by table
        self._num_untimed: Counter[str] = Counter()  # of them, those whose times cannot be read
        self._table_of = Lookup(lambda cat: TABLE_OF.get(cat.lower(), ""))
        self._kind_of = Lookup(lambda cat: GPU_KINDS[cat.lower()])
        self._num_unread: Counter[str] = Counter()  # slices that go to no table, by category
        self._geometry: dict[int, tuple[int, ...]] = {}  # by correlation, where the launch has it
        self._threads: dict[tuple[int, int], int] = {}  # pid and tid -> name
        self._processes: dict[int, list[int]] = {}  # pid -> name and labels

    def feed(self, piece: Piece) -> None:
        """Append the rows of one piece; raises BadDataError for text that is not JSON."""
        rows: dict[str, list[Any]] = defaultdict(list)
        for event in self._decoder.decode(piece):
            rows[self._table_of[event.cat]].append(event)
        calls = rows["functions"]
        rows["modules"] = calls if self._frames else [one for one in calls if one.name.startswith(MODULE)]
        for table in TIMED:
            self._add_slices(table, rows[table])
        self._add_names(event for event in rows["names"] if event.ph == "M")
        self._num_unread.update(event.cat for event in rows[""] if event.ph == "X")
        self._add_flows([event for event in rows["flows"] if event.ph in ("s", "f")])
        self._add_waits([event for event in rows["waits"] if event.ph == "X" and event.name == STREAM_WAIT])
        del rows["modules"]  # they are among the functions
        self._indices.add(rows)

    def finish(self, frame: dict[str, Any]) -> Capture:
        """The capture, once every piece has been fed; its GPU rows still have the pid of their row."""
        base_ns = integer_of(frame.get("baseTimeNanoseconds"))
        # A hostile base would overflow int64 nanoseconds.
        base_ns = base_ns if base_ns is not None and 0 <= base_ns < 2**62 else 0
        tables = {name: filled(schema, *self._chunks.pop(name)) for name, schema in SCHEMAS.items()}
        latest_ns = max(int(tables[name].start_ns.max(initial=0)) for name in ("kernels", "ops", "runtime"))
        if self._pieces.cut and "baseTimeNanoseconds" not in frame and latest_ns < _ABSOLUTE_NS:
            self.problems["the base time is missing: times count from an unknown moment"] += 1
        for name, table in tables.items():
            times = {column for column in table if column in ("start_ns", "end_ns", "ts_ns")}
            tables[name] = table.with_columns(
                **{column: getattr(table, column) + base_ns for column in times}
            )
        kernels, operators, ranges = self._with_geometry(tables["kernels"]), tables["ops"], tables["ranges"]
        lacks = (
            *self._indices.lacks(lambda: owners_are_here(kernels, operators)),
            *owners_lost(kernels, operators),
            *cut_short(self._pieces.cut),
            *of_merged(frame),
            *of_log(frame),
            *untimed(self._num_untimed, self._num_slices),
            *unread(self._num_unread),
        )
        strings = self._ids.strings
        meta = meta_of(frame, base_ns, len(kernels))
        names = ("collectives", "comm_ops", "flows", "modules", "waits")
        of_torch: dict[str, Any] = {name: tables[name] for name in names}
        return Capture(
            source=self._pieces.path,
            collector="kineto",
            version=meta.torch_version,
            ops=kernels.with_columns(
                **{name: codes[kernels.name_id] for name, codes in copy_kinds(strings.texts).items()}
            ),
            api=tables["runtime"],
            ranges=_ranges_of(ranges.where(~ranges.on_gpu), operators, strings),
            strings=strings.texts,
            devices=tuple(
                Device(device=index, name=name, num_sms=num_sms or None)
                for index, (name, num_sms) in enumerate(zip(meta.devices, meta.num_sms, strict=True))
            ),
            problems=[text if n == 1 else f"{text} ({n} times)" for text, n in self.problems.items()],
            info={"python frames": "recorded"} if meta.stacks else {},
            lacks=lacks,
            meta=meta,
            truncated=self._pieces.cut is not None,
            thread_names=_named(THREAD_COLUMNS, [(*key, name) for key, name in self._threads.items()]),
            process_names=_named(PROCESS_COLUMNS, [(pid, *names) for pid, names in self._processes.items()]),
            gpu_ranges=filled(SLICE_COLUMNS, ranges.where(ranges.on_gpu)),
            **of_torch,
        )

    def _with_geometry(self, kernels: Table) -> Table:
        """Take grid, block and shared memory from the launch where the kernel has none, as on ROCm."""
        if not self._geometry:
            return kernels
        launches = np.array([(key, *sizes) for key, sizes in sorted(self._geometry.items())], dtype=np.int64)
        position = first_index(kernels.corr, launches[:, 0])
        launched = (position >= 0) & (kernels.kind == KERNEL)
        columns = {}
        for index, name in enumerate(_GEOMETRY, start=1):
            sizes, column = _int32(launches[position, index]), getattr(kernels, name)
            columns[name] = np.where(launched & (column < 0), sizes, column)
        return kernels.with_columns(**columns)

    def _add_slices(self, table: str, events: list[Any]) -> None:
        """Append those of the events that are slices with a start and a duration."""
        fields = Fields([event for event in events if event.ph == "X"], self._ids)
        if not len(fields):
            return
        self._num_slices[table] += len(fields)
        (ts_ns, starts), (dur_ns, lasting) = fields.times(), fields.durations()
        readable = starts & lasting
        if not readable.all():
            for name, odd in (("ts", ~starts), ("dur", starts & ~lasting)):
                if odd.any():
                    self.problems[f"events without a readable {name} were left out"] += int(odd.sum())
            self._num_untimed[table] += int((~readable).sum())
            fields = Fields([fields.events[row] for row in np.flatnonzero(readable).tolist()], self._ids)
            ts_ns, dur_ns = ts_ns[readable], dur_ns[readable]
            if not len(fields):
                return
        columns = {"start_ns": ts_ns, "end_ns": ts_ns + dur_ns, "name_id": fields.names()}
        columns |= {name: fields.ids(name) for name in ("pid", "tid")}
        if table == "kernels":
            columns |= self._of_gpu_rows(fields, columns)
        elif table == "runtime":
            self._geometry.update(fields.geometry())
        elif table == "ranges":
            columns["on_gpu"] = fields.by_category("gpu_user_annotation".__eq__, np.bool_)
        self._append(table, fields, columns)
        if table in _COLLECTIVES:
            described, row = _COLLECTIVES[table]
            index, chosen = fields.collectives()
            if len(index):
                self._append(described, chosen, {row: index + self._num_rows[table] - len(fields)})

    def _append(self, table: str, fields: Fields, columns: dict[str, np.ndarray]) -> None:
        """Append rows: `columns`, and those that are fields of the events as they are."""
        for read, names in ((fields.ints, _INTS), (fields.texts, _TEXTS), (fields.raws, _RAWS)):
            columns |= {name: read(field) for name, field in names.get(table, {}).items()}
        self._keep(table, columns)

    def _keep(self, table: str, columns: Mapping[str, np.ndarray]) -> None:
        schema = SCHEMAS[table]
        chunk = {name: np.asarray(column, schema[name]) for name, column in columns.items() if name in schema}
        self._chunks[table].append(chunk)
        self._num_rows[table] += len(next(iter(chunk.values())))

    def _of_gpu_rows(self, fields: Fields, slices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        device, stream = fields.ints("device"), fields.ints("stream")
        # torch's CUPTI monitor may move a row to a viewer's lane: the true stream is then `original_stream`.
        moved = fields.ints("original_stream")
        columns = {
            "kind": fields.by_category(self._kind_of.__getitem__, np.int8),
            # Kineto's GPU rows have the device as their pid, and some versions no `device` argument.
            "device": _int32(np.where(device < 0, slices["pid"], device)),
            "stream": np.where(moved >= 0, moved, np.where(stream < 0, slices["tid"], stream)),
            "dynamic_smem_bytes": _int32(fields.ints("smem_bytes")),
            "regs": _int32(fields.ints("regs")),
        }
        for name in ("grid", "block"):
            columns |= {
                f"{name}_{axis}": sizes
                for axis, sizes in zip("xyz", _int32(fields.sizes(name)).T, strict=True)
            }
        for name in ("graph", "graph_node"):
            numbers = fields.ints(name)
            columns[name] = np.where(numbers > 0, numbers, -1)
        for row, args in fields.copies():  # Kineto's name for the copies of torch's CUPTI monitor
            ends = f" ({args.src_kind} -> {args.dst_kind})" if args.src_kind and args.dst_kind else ""
            slices["name_id"][row] = self._ids.strings[f"Memcpy {args.copy_kind}{ends}"]
        return columns

    def _add_flows(self, events: list[Any]) -> None:
        """Ends of arrows; one without a time or a number is left out."""
        if not events:
            return
        fields = Fields(events, self._ids)
        ts_ns, timed = fields.times()
        matches = [_FLOW.fullmatch(event.id) for event in events]
        numbers = np.array([int(match[1]) if match else -1 for match in matches], dtype=np.int64)
        columns = {
            "ts_ns": ts_ns,
            "pid": fields.ids("pid"),
            "tid": fields.ids("tid"),
            "flow": numbers,
            "is_end": np.array([event.ph == "f" for event in events]),
        }
        valid = timed & (numbers >= 0)
        self._keep("flows", {name: column[valid] for name, column in columns.items()})

    def _add_waits(self, events: Sequence[Any]) -> None:
        """Waits of streams for events; the host's own waits are calls of the runtime."""
        if events:
            fields = Fields(events, self._ids)
            device = fields.ints("device")
            device = _int32(np.where(device < 0, fields.ids("pid"), device))
            self._append("waits", fields, {"device": device})

    def _add_names(self, events: Iterable[Any]) -> None:
        """Kineto may repeat a name; the last one counts, as in the viewers."""
        for event in events:
            kind, text = event.name, event.args.labels if event.name == "process_labels" else event.args.name
            if kind in ("process_name", "process_labels", "thread_name") and bytes(text):
                tid = self._ids.of_number[event.tid] if kind == "thread_name" else 0
                name = self._ids.strings[clean_text(self._ids.value(bytes(text)))]
                pid = self._ids.of_number[event.pid]
                if kind == "thread_name":
                    self._threads[pid, tid] = name
                else:
                    self._processes.setdefault(pid, [-1, -1])[kind == "process_labels"] = name


def _named(schema: Schema, rows: list[tuple[int, ...]]) -> Table:
    columns = np.array(rows, dtype=np.int64).reshape(-1, len(schema)).T
    return filled(schema, dict(zip(schema, columns, strict=True)))


def _ranges_of(annotations: Table, operators: Table, strings: Strings) -> Table:
    """Annotations, then operators."""
    parts = [
        rows.with_columns(
            text_id=rows.name_id,
            name_id=strings.stripped(rows.name_id)[0],
            kind=np.full(len(rows), kind, dtype=np.int8),
        )
        for kind, rows in ((PUSH_POP, annotations), (OP, operators))
    ]
    return filled(RANGE_COLUMNS, *parts)


def _int32(values: np.ndarray) -> np.ndarray:
    clipped: np.ndarray = np.clip(values, -(2**31), 2**31 - 1).astype(np.int32)
    return clipped


def read_kineto(
    path: Path | str, *, salvage: bool = False, frames: bool = False, piece_bytes: int = PIECE_BYTES
) -> Capture:
    """Read one trace; all times become absolute integer nanoseconds.

    salvage keeps the readable part of a truncated or damaged file; `problems` says what is missing. frames:
    `modules` holds all Python calls, which are ten times as many as all other events.
    """
    pieces = EventPieces(Path(path), salvage=salvage, piece_bytes=piece_bytes)
    columns = Columns(pieces, frames=frames)
    for piece in pieces:
        columns.feed(piece)
    if pieces.cut:
        columns.problems[pieces.cut] += 1
    capture = columns.finish(decode_frame(pieces, columns.problems))
    return settled(_with_steps_apart(without_untimed(capture)))


def _with_steps_apart(capture: Capture) -> Capture:
    """The capture with each ProfilerStep ended where the next one of its thread begins.

    torch ends a step up to some microseconds after the next one began (pytorch/pytorch#174555), which would
    put neither into the other and the kernels of both into none.
    """
    ranges = capture.ranges
    number = capture.by_text(step_number, ranges.name_id, -1)
    steps = np.flatnonzero((ranges.kind != OP) & (number >= 0))
    steps = steps[np.lexsort((ranges.start_ns[steps], ranges.tid[steps], ranges.pid[steps]))]
    current, following = steps[:-1], steps[1:]
    begin_ns = ranges.start_ns[following]
    same_thread = (ranges.pid[current] == ranges.pid[following]) & (
        ranges.tid[current] == ranges.tid[following]
    )
    late = same_thread & (ranges.start_ns[current] < begin_ns) & (begin_ns < ranges.end_ns[current])
    if not late.any():
        return capture
    end_ns = ranges.end_ns.copy()
    end_ns[current[late]] = begin_ns[late]
    return replace(capture, ranges=ranges.with_columns(end_ns=end_ns))
