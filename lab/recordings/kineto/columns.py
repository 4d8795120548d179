"""Event structs -> the numpy columns of a capture."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
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
    SYNC_COLUMNS,
    THREAD_COLUMNS,
    WAIT_COLUMNS,
    Capture,
    Device,
    Strings,
    copy_kinds,
    filled,
)
from lab.recordings.kineto.decode import EventDecoder, clean_text, integer_of, meta_of
from lab.recordings.kineto.indices import (
    EventIndices,
    cut_short,
    of_log,
    owners_are_here,
    owners_lost,
    unread,
    untimed,
)
from lab.recordings.kineto.values import ColumnEncoder, Fields, Lookup, durations_ns, times_ns
from lab.recordings.pieces import EventPieces, Piece
from lab.recordings.tables import Growing, Schema, Table, concat

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


def _part(schema: Schema, names: str) -> Schema:
    return {name: schema[name] for name in names.split()}


_SLICE = "start_ns end_ns pid name_id external_id"
_ARGUMENTS = "dims_id types_id"
SCHEMAS: dict[str, Schema] = {
    "kernels": {
        **_part(OPS_COLUMNS, f"{_SLICE} kind device stream corr bytes regs graph graph_node"),
        **_part(OPS_COLUMNS, " ".join(_GEOMETRY)),
    },
    "ops": _part(RANGE_COLUMNS, f"{_SLICE} tid {_ARGUMENTS} strides_id concrete_id rf_id seq"),
    "runtime": _part(API_COLUMNS, f"{_SLICE} tid corr kernel_id"),
    "ranges": {**SLICE_COLUMNS, **_part(RANGE_COLUMNS, _ARGUMENTS), "on_gpu": np.bool_},
    "collectives": COLLECTIVE_COLUMNS,
    "comm_ops": COMM_OP_COLUMNS,
    "threads": THREAD_COLUMNS,
    "processes": PROCESS_COLUMNS,
    "flows": FLOW_COLUMNS,
    "modules": SLICE_COLUMNS,
    "waits": WAIT_COLUMNS,
}
_PH, _TS, _DUR = (attrgetter(name) for name in ("ph", "ts", "dur"))
_ID = attrgetter("id")
STREAM_WAIT = "Stream Wait Event"  # Kineto's name of the kind in which a stream waits, not the host
_FLOW = re.compile(rb"\d{1,18}")


class Columns:
    """Bytes in, columns out: `feed` takes texts of whole events, `finish` returns the tables."""

    def __init__(self, pieces: EventPieces) -> None:
        self.problems: Counter[str] = Counter()
        self._pieces = pieces
        self._decoder = EventDecoder(pieces, self.problems)
        self._encode = ColumnEncoder(self.problems)
        self._indices = EventIndices()
        self._tables = {name: Growing(schema) for name, schema in SCHEMAS.items()}
        self._num_slices: Counter[str] = Counter()  # by table
        self._num_untimed: Counter[str] = Counter()  # of them, those whose times cannot be read
        self._table_of = Lookup(lambda cat: TABLE_OF.get(cat.lower(), ""))
        self._kind_of = Lookup(lambda cat: GPU_KINDS[cat.lower()])
        self._num_unread: Counter[str] = Counter()  # slices that go to no table, by category
        self._geometry: dict[int, tuple[int, ...]] = {}  # by correlation, where the launch has it
        self._named: dict[tuple[str, int, int], int] = {}

    def feed(self, piece: Piece) -> None:
        """Append the rows of one piece; raises BadDataError for text that is not JSON."""
        rows: dict[str, list[Any]] = defaultdict(list)
        for event in self._decoder.decode(piece):
            rows[self._table_of[event.cat]].append(event)
        modules = [event for event in rows["functions"] if event.name.startswith(MODULE)]
        events_of = {table: rows.get(table, []) for table in TIMED} | {"modules": modules}
        self._add_slices({table: self._timed(table, events) for table, events in events_of.items()})
        self._add_names([event for event in rows["names"] if event.ph == "M"])
        self._num_unread.update(event.cat for event in rows[""] if event.ph == "X")
        self._add_flows([event for event in rows["flows"] if event.ph in ("s", "f")])
        self._add_waits([event for event in rows["waits"] if event.ph == "X"])
        self._indices.add(rows)

    def finish(self, frame: dict[str, Any]) -> Capture:
        """The capture, once every piece has been fed; its GPU rows still have the pid of their row."""
        base_ns = integer_of(frame.get("baseTimeNanoseconds"))
        # A hostile base would overflow int64 nanoseconds.
        base_ns = base_ns if base_ns is not None and 0 <= base_ns < 2**62 else 0
        self._name_threads()
        columns = {name: table.columns() for name, table in self._tables.items()}
        latest_ns = max(
            int(columns[name]["start_ns"].max(initial=0)) for name in ("kernels", "ops", "runtime")
        )
        if self._pieces.cut and "baseTimeNanoseconds" not in frame and latest_ns < _ABSOLUTE_NS:
            self.problems["the base time is missing: times count from an unknown moment"] += 1
        for table in columns.values():
            for name in ("start_ns", "end_ns", "ts_ns"):
                if name in table:
                    table[name] += base_ns
        self._fill_geometry(columns["kernels"])
        lacks = (
            *self._indices.lacks(lambda: owners_are_here(columns["kernels"], columns["ops"])),
            *owners_lost(columns["kernels"], columns["ops"]),
            *cut_short(self._pieces.cut, frame),
            *of_log(frame),
            *untimed(self._num_untimed, self._num_slices),
            *unread(self._num_unread),
        )
        texts = Strings(self._encode.strings.list)
        on_gpu = columns["ranges"].pop("on_gpu")
        host_ranges, gpu_ranges = (
            {name: column[chosen] for name, column in columns["ranges"].items()}
            for chosen in (~on_gpu, on_gpu)
        )
        runtime, meta = columns["runtime"], meta_of(frame, base_ns, len(columns["kernels"]["start_ns"]))
        return Capture(
            source=self._pieces.path,
            collector="kineto",
            version=meta.torch_version,
            schema=None,
            ops=_ops_of(columns["kernels"], texts.texts),
            api=filled(API_COLUMNS, len(runtime["start_ns"]), runtime),
            ranges=_ranges_of(host_ranges, columns["ops"], texts),
            sync=concat([], SYNC_COLUMNS),
            strings=texts.texts,
            devices=tuple(
                Device(device=index, name=name, num_sms=num_sms or None)
                for index, (name, num_sms) in enumerate(zip(meta.devices, meta.num_sms, strict=True))
            ),
            problems=[text if n == 1 else f"{text} ({n} times)" for text, n in self.problems.items()],
            info={"python frames": "recorded"} if meta.stacks else {},
            lacks=lacks,
            meta=meta,
            truncated=self._pieces.cut is not None,
            thread_names=Table(columns["threads"]),
            process_names=Table(columns["processes"]),
            gpu_ranges=Table({name: gpu_ranges[name] for name in SLICE_COLUMNS}),
            collectives=Table(columns["collectives"]),
            comm_ops=Table(columns["comm_ops"]),
            flows=Table(columns["flows"]),
            modules=Table(columns["modules"]),
            waits=Table(columns["waits"]),
        )

    def _fill_geometry(self, columns: dict[str, np.ndarray]) -> None:
        """Take grid, block and shared memory from the launch where the kernel has none, as on ROCm."""
        if not self._geometry:
            return
        launches = np.array([(key, *sizes) for key, sizes in sorted(self._geometry.items())], dtype=np.int64)
        position = np.minimum(np.searchsorted(launches[:, 0], columns["corr"]), len(launches) - 1)
        launched = (launches[position, 0] == columns["corr"]) & (columns["kind"] == KERNEL)
        for column, name in enumerate(_GEOMETRY, start=1):
            sizes = _int32(launches[position, column])
            columns[name] = np.where(launched & (columns[name] < 0), sizes, columns[name])

    def _add_slices(self, timed: Mapping[str, tuple[Fields, dict[str, np.ndarray]]]) -> None:
        add = {
            "kernels": self._add_gpu,
            "ops": self._add_ops,
            "runtime": self._add_runtime,
            "ranges": self._add_ranges,
            "modules": self._add_modules,
        }
        for table, (fields, columns) in timed.items():
            if columns:
                add[table](fields, columns)

    def _add_modules(self, fields: Fields, columns: dict[str, np.ndarray]) -> None:
        self._tables["modules"].append(columns)

    def _add_gpu(self, fields: Fields, columns: dict[str, np.ndarray]) -> None:
        columns["kind"] = fields.by_category(self._kind_of.__getitem__, np.int8)
        device, stream = fields.ints("device"), fields.ints("stream")
        # Kineto's GPU rows have the device as their pid, and some versions no `device` argument.
        columns["device"] = _int32(np.where(device < 0, columns["pid"], device))
        # torch's CUPTI monitor may move a row to a viewer's lane: the true stream is then `original_stream`.
        moved = fields.ints("original_stream")
        columns["stream"] = np.where(moved >= 0, moved, np.where(stream < 0, columns.pop("tid"), stream))
        columns["corr"] = fields.ints("correlation")
        columns["external_id"] = fields.ints("external_id")
        columns["bytes"] = fields.ints("bytes_")
        for name in ("grid", "block"):
            sizes = _int32(fields.sizes(name))
            for index, axis in enumerate("xyz"):
                columns[f"{name}_{axis}"] = sizes[:, index]
        columns["dynamic_smem_bytes"] = _int32(fields.ints("smem_bytes"))
        columns["regs"] = _int32(fields.ints("regs"))
        for name in ("graph", "graph_node"):
            ids = fields.ints(name)
            columns[name] = np.where(ids > 0, ids, -1)
        for row, *kinds in fields.copies():  # Kineto's name for the copies of torch's CUPTI monitor
            columns["name_id"][row] = self._encode.strings[copy_name(*kinds)]
        self._tables["kernels"].append(columns)
        self._add_collectives("collectives", "kernel", "kernels", fields)

    def _add_flows(self, events: list[Any]) -> None:
        """Ends of arrows; one without a time or a number is left out."""
        if not events:
            return
        ts_ns, timed = self._times_ns(events)
        numbers = _flow_numbers(events)
        fields = Fields(events, self._encode)
        columns = {
            "ts_ns": ts_ns,
            "pid": fields.ids("pid"),
            "tid": fields.ids("tid"),
            "flow": numbers,
            "is_end": np.fromiter(map("f".__eq__, map(_PH, events)), bool, len(events)),
        }
        valid = timed & (numbers >= 0)
        self._tables["flows"].append({name: column[valid] for name, column in columns.items()})

    def _add_waits(self, events: Sequence[Any]) -> None:
        """Waits of streams for events; the host's own waits are calls of the runtime."""
        events = [event for event in events if event.name == STREAM_WAIT]
        if not events:
            return
        fields = Fields(events, self._encode)
        columns = {name: fields.ints(name) for name in ("stream", "on_stream", "record")}
        columns["corr"] = fields.ints("correlation")
        device = fields.ints("device")
        columns["device"] = _int32(np.where(device < 0, fields.ids("pid"), device))
        self._tables["waits"].append(columns)

    def _add_collectives(self, table: str, row: str, of: str, fields: Fields) -> None:
        """Rows for those of the last events of the table `of` that describe a collective."""
        index, chosen = fields.collectives()
        if not len(index):
            return
        columns = {row: index + len(self._tables[of]) - len(fields)}
        for name in ("in_nelems", "out_nelems", "group_size", "seq", "dst_rank", "src_rank", "group_rank"):
            columns[name] = chosen.ints(name)
        for name in ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks"):
            columns[f"{name}_id"] = chosen.texts(name)
        for name in ("in_split", "out_split"):
            columns[f"{name}_id"] = chosen.raws(name)
        self._tables[table].append(columns)

    def _add_ops(self, fields: Fields, columns: dict[str, np.ndarray]) -> None:
        for name, field in (("external_id", "external_id"), ("rf_id", "rf_id"), ("seq", "sequence")):
            columns[name] = fields.ints(field)
        for name in ("dims", "types", "strides", "concrete"):
            columns[f"{name}_id"] = fields.raws(name)
        self._tables["ops"].append(columns)
        self._add_collectives("comm_ops", "op", "ops", fields)

    def _add_runtime(self, fields: Fields, columns: dict[str, np.ndarray]) -> None:
        columns["corr"], columns["external_id"] = fields.ints("correlation"), fields.ints("external_id")
        columns["kernel_id"] = fields.texts("kernel")
        self._tables["runtime"].append(columns)
        self._geometry.update(fields.geometry())

    def _add_ranges(self, fields: Fields, columns: dict[str, np.ndarray]) -> None:
        columns["on_gpu"] = fields.by_category("gpu_user_annotation".__eq__, np.bool_)
        for name in ("dims", "types"):
            columns[f"{name}_id"] = fields.raws(name)
        self._tables["ranges"].append(columns)

    def _add_names(self, events: Iterable[Any]) -> None:
        """Kineto may repeat a name; the last one counts, as in the viewers."""
        for event in events:
            kind, text = event.name, event.args.labels if event.name == "process_labels" else event.args.name
            if kind in ("process_name", "process_labels", "thread_name") and bytes(text):
                tid = self._encode.ids[event.tid] if kind == "thread_name" else 0
                name = clean_text(self._encode.value(bytes(text)))
                self._named[kind, self._encode.ids[event.pid], tid] = self._encode.strings[name]

    def _name_threads(self) -> None:
        threads = [(pid, tid, n) for (kind, pid, tid), n in self._named.items() if kind == "thread_name"]
        pids = dict.fromkeys(pid for kind, pid, _ in self._named if kind != "thread_name")
        names = [
            (pid, *(self._named.get((kind, pid, 0), -1) for kind in ("process_name", "process_labels")))
            for pid in pids
        ]
        for table, rows in (("threads", threads), ("processes", names)):
            columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
            self._tables[table].append(dict(zip(SCHEMAS[table], columns, strict=True)))

    def _timed(self, table: str, events: list[Any]) -> tuple[Fields, dict[str, np.ndarray]]:
        """The slices that have a start and a duration, and the columns that every table has; {} for none."""
        if list(map(_PH, events)).count("X") < len(events):
            events = [event for event in events if event.ph == "X"]
        if not events:
            return Fields([], self._encode), {}
        self._num_slices[table] += len(events)
        ts_ns, starts = self._times_ns(events)
        dur_ns, lasting = durations_ns(np.fromiter(map(_DUR, events), np.float64, len(events)))
        readable = starts & lasting
        if not readable.all():
            for name, odd in (("ts", ~starts), ("dur", starts & ~lasting)):
                if odd.any():
                    self.problems[f"events without a readable {name} were left out"] += int(odd.sum())
            self._num_untimed[table] += int((~readable).sum())
            events = [event for event, is_readable in zip(events, readable, strict=True) if is_readable]
            ts_ns, dur_ns = ts_ns[readable], dur_ns[readable]
        fields = Fields(events, self._encode)
        return fields, _slices(fields, ts_ns, dur_ns) if events else {}

    def _times_ns(self, events: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        # JSON has no NUL; joining and splitting is five times faster than bytes() of each.
        return times_ns(b"\0".join(map(_TS, events)).split(b"\0"))


def _slices(fields: Fields, ts_ns: np.ndarray, dur_ns: np.ndarray) -> dict[str, np.ndarray]:
    """The columns that every table of slices has."""
    columns = {"start_ns": ts_ns, "end_ns": ts_ns + dur_ns, "name_id": fields.names()}
    return columns | {name: fields.ids(name) for name in ("pid", "tid")}


def _ops_of(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> Table:
    copies = {name: codes[columns["name_id"]] for name, codes in copy_kinds(names).items()}
    return filled(OPS_COLUMNS, len(columns["name_id"]), {**columns, **copies})


def _ranges_of(
    host_ranges: Mapping[str, np.ndarray], operators: Mapping[str, np.ndarray], texts: Strings
) -> Table:
    """Annotations, then operators."""
    parts = []
    for kind, columns in ((PUSH_POP, host_ranges), (OP, operators)):
        text_id = columns["name_id"]
        identity = {
            "text_id": text_id,
            "name_id": texts.stripped(text_id)[0],
            "kind": np.full(len(text_id), kind),
        }
        parts.append(filled(RANGE_COLUMNS, len(text_id), {**columns, **identity}).as_dict())
    return concat(parts, RANGE_COLUMNS)


def _flow_numbers(events: Sequence[Any]) -> np.ndarray:
    """The number (n,) of each arrow, in quotes or not; -1 where it is none."""
    ids = list(map(bytes, map(_ID, events)))
    digits = b"".join(ids)
    if digits.isdigit() and all(ids) and max(map(len, ids)) <= 18:  # as Kineto writes them
        return np.array(b",".join(ids).split(b","), dtype="S18").astype(np.int64)
    return np.array([flow_number(one) for one in ids], dtype=np.int64)


def copy_name(kind: str, source: str, target: str) -> str:
    """Kineto's name of a copy."""
    return f"Memcpy {kind} ({source} -> {target})" if source and target else f"Memcpy {kind}"


def flow_number(raw: bytes) -> int:
    """The number of an arrow, -1 for what is none."""
    digits = raw.strip(b'"')
    return int(digits) if _FLOW.fullmatch(digits) else -1


def _int32(values: np.ndarray) -> np.ndarray:
    clipped: np.ndarray = np.clip(values, -(2**31), 2**31 - 1).astype(np.int32)
    return clipped
