"""Slices of a Perfetto file in the schema of a capture, by the program that wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError
from lab.recordings.capture import (
    API_COLUMNS,
    COPY_KINDS,
    OP,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Process,
    copy_kinds,
    filled,
)
from lab.recordings.kineto.columns import GPU_KINDS, TABLE_OF, copy_name
from lab.recordings.lacks import Lack
from lab.recordings.pftrace.trace import Slices, Track, read_slices
from lab.recordings.tables import KERNEL, MEMCPY, Schema, Table, concat

# Categories of rocprofv3 (source/lib/output/generatePerfetto.cpp).
_ROCM_OPS = {"kernel_dispatch": KERNEL, "memory_copy": MEMCPY}
_ROCM_API = re.compile(r"(hip|hsa|rccl|rocdecode|rocjpeg|ompt)_\w*api\w*|(hip|hsa|rccl|rocdecode)_api")
_ROCM_RANGES = re.compile(r"marker_\w*api\w*")
_ROCM_COPIES = {f"MEMORY_COPY_{name.upper().replace('-', '_')}": kind for kind, name in COPY_KINDS.items()}
_MERGED = re.compile(r"\[R(\d+)\] rank \d+ (GPU|CPU) (\S+)")  # lab.recordings.merge.pftrace
_STREAM = re.compile(r"STREAM \[?\s*(\d+)\s*\]?|QUEUE \[?\s*(\d+)\s*\]?")
_AGENT = re.compile(r"\[\s*(\d+)\s*\]")
_Part = tuple[np.ndarray, int, dict[str, np.ndarray]]  # rows of a kind of ranges, and what only they have
_SHAPES = {"dims_id": "Input Dims", "types_id": "Input type", "strides_id": "Input Strides"}


def load(path: Path | str) -> Capture:
    """Read a Perfetto file of torch.profiler, of rocprofv3 or of lab's own merge, plain or gzipped.

    Raises BadDataError where it is truncated, damaged, or of a program that records no GPU.
    """
    slices = read_slices(Path(path))
    categories = [slices.strings.texts[one] if one >= 0 else "" for one in _used(slices.category_id)]
    if any(one in _ROCM_OPS or _ROCM_API.fullmatch(one) for one in categories):
        return _rocprofv3(slices, Path(path))
    if any(TABLE_OF.get(one.lower(), "") for one in categories if one):
        return _torch(slices, Path(path))
    if not len(slices.begin):
        raise BadDataError("a Perfetto file without slices", location=path, fix="record it again")
    shown = ", ".join(sorted(one for one in categories if one)[:5]) or "none"
    raise BadDataError(
        f"a Perfetto file of no profiler that lab knows (categories: {shown[:200]})",
        location=path,
        fix="give a .pftrace of torch.profiler, of rocprofv3, or one that `lab gemm merge` wrote",
    )


def _used(ids: np.ndarray) -> list[int]:
    found: list[int] = np.unique(ids).tolist()
    return found


def _torch(slices: Slices, path: Path) -> Capture:
    """torch.profiler's own file, or ranks that lab merged: names and arguments of its JSON."""
    kinds = _by_text(slices, slices.category_id, lambda text: _TABLES.index(TABLE_OF.get(text.lower(), "")))
    process, processes, merged = _processes(slices, kinds)
    pid, tid = _threads(slices)
    ops = slices_where(slices, kinds == _TABLES.index("kernels"))
    on_gpu = _by_text(slices, slices.category_id, lambda text: int(text == "gpu_user_annotation"))
    api = kinds == _TABLES.index("runtime")
    user = (kinds == _TABLES.index("ranges")) & (on_gpu == 0)
    cpu = kinds == _TABLES.index("ops")
    corr = slices.numbers("correlation")
    corr = np.where(corr < 0, slices.flow, corr)
    columns = {
        "process": process,
        "start_ns": slices.start_ns,
        "end_ns": slices.end_ns,
        "pid": pid,
        "tid": tid,
        "corr": corr,
        "name_id": slices.name_id,
        "text_id": slices.name_id,
        "external_id": slices.numbers("External id", "external_id"),
    }
    own = np.array([-1 if one.pid is None else one.pid for one in processes])[process]
    of_process = columns | {"pid": own}  # the pid of a GPU's row is its device, of a merged row a new number
    if merged:
        columns = of_process
    problems = list(slices.problems)
    if merged:
        ranks = ", ".join(str(one.rank) for one in processes if one.rank is not None)
        problems.append(
            f"a file that lab merged from the traces of {plural(len(processes), 'rank')} ({ranks}): "
            "registers, shared memory, values of arguments and clocks before the merge are only in the traces"
        )
    elif len(processes) > 1:
        problems.append(
            f"{len(processes)} processes; GPU rows are joined to the one whose call launched them"
        )
    gpu_ops = _torch_ops(slices, ops, of_process, pid)
    if slices.dropped["read_stages"] and (touching := _touching(gpu_ops)):
        problems.append(
            f"{plural(touching, 'operation')} of {len(gpu_ops)} end exactly where the next one of the stream "
            "begins: torch cuts what overlaps in GPU render stages, so times of those may be cut short"
        )
    ranges: list[_Part] = [
        (user, PUSH_POP, {}),
        (cpu, OP, _shapes(slices) | {"seq": slices.numbers("Sequence number", "sequence")}),
    ]
    return _capture(
        slices,
        path,
        "torch.profiler" if not merged else "lab",
        ops=gpu_ops,
        api=_table(API_COLUMNS, columns, api),
        ranges=_ranges(slices, columns, ranges),
        processes=processes,
        problems=problems,
        lacks=_losses(slices, int(ops.sum())),
    )


_TABLES = ["", *sorted(set(TABLE_OF.values()) - {""})]


def slices_where(slices: Slices, mask: np.ndarray) -> np.ndarray:
    """The mask (n,) without slices that have no name: they only frame others."""
    found: np.ndarray = mask & (slices.name_id >= 0)
    return found


def _torch_ops(
    slices: Slices, mask: np.ndarray, columns: dict[str, np.ndarray], track_pid: np.ndarray
) -> Table:
    kinds = _by_text(slices, slices.category_id, lambda text: GPU_KINDS.get(text.lower(), -1))
    device, stream = slices.numbers("device"), slices.numbers("original_stream")
    stream = np.where(stream < 0, slices.numbers("stream", "stream id"), stream)
    sizes = {}
    for name in ("grid", "block"):
        listed = slices.texts(name)
        for index, axis in enumerate("xyz"):
            plain = slices.numbers(f"{name}_{axis}")
            sizes[f"{name}_{axis}"] = np.where(plain < 0, _item(slices, listed, index), plain)
    graph, node = slices.numbers("graph id"), slices.numbers("graph node id")
    more = {
        "kind": kinds,
        "device": np.where(device < 0, track_pid, device),
        "stream": np.where(stream < 0, columns["tid"], stream),
        "bytes": slices.numbers("bytes"),
        "graph": np.where(graph > 0, graph, -1),
        "graph_node": np.where(node > 0, node, -1),
        "regs": slices.numbers("registers per thread", "registers_per_thread"),
        "dynamic_smem_bytes": slices.numbers("shared memory", "shared_mem_dynamic"),
        "name_id": (names := _copy_names(slices)),
        **{name: codes[names] for name, codes in copy_kinds(slices.strings.texts).items()},
        **sizes,
    }
    return _table(OPS_COLUMNS, columns | more, mask)


def _copy_names(slices: Slices) -> np.ndarray:
    """Names (n,); those of the CUPTI monitor's copies, whose kinds are arguments, spelled as Kineto's."""
    kinds = np.stack([slices.texts(key) for key in ("copy kind", "src kind", "dst kind")], axis=1)
    names: np.ndarray = slices.name_id.copy()
    rows = np.flatnonzero(kinds[:, 0] >= 0)
    if len(rows):
        used, which = np.unique(kinds[rows], axis=0, return_inverse=True)
        texts = [
            [slices.strings.texts[one] if one >= 0 else "" for one in triple] for triple in used.tolist()
        ]
        ids = [slices.strings.id(copy_name(*triple)) for triple in texts]
        names[rows] = np.array(ids)[which.ravel()]
    return names


def _rocprofv3(slices: Slices, path: Path) -> Capture:
    kinds = _by_text(slices, slices.category_id, lambda text: _ROCM_OPS.get(text, -1))
    api = _by_text(slices, slices.category_id, lambda text: int(_ROCM_API.fullmatch(text) is not None)) > 0
    user = (
        _by_text(slices, slices.category_id, lambda text: int(_ROCM_RANGES.fullmatch(text) is not None)) > 0
    )
    _, tid = _threads(slices)
    given_tid = slices.numbers("tid")
    corr = slices.numbers("corr_id", "correlation_id")
    pids = sorted({track.pid for track in slices.tracks.values() if track.pid >= 0})
    processes = (Process(pid=pids[0] if len(pids) == 1 else None),)
    columns = {
        "process": np.zeros(len(slices.begin), dtype=np.int64),
        "start_ns": slices.start_ns,
        "end_ns": slices.end_ns,
        "pid": np.full(len(slices.begin), pids[0] if len(pids) == 1 else -1),
        "tid": np.where(given_tid < 0, tid, given_tid),
        "corr": np.where(corr < 0, slices.flow, corr),
        "name_id": slices.name_id,
        "text_id": slices.name_id,
    }
    mask = slices_where(slices, kinds >= 0)
    stream, device = slices.numbers("stream_ID", "stream_id"), slices.numbers("agent")
    tracks = _of_track(slices, lambda track: _first_number(_STREAM, track.name))
    agents = _of_track(slices, lambda track: _first_number(_AGENT, track.name))
    copies = _by_text(slices, slices.name_id, lambda text: _ROCM_COPIES.get(text, -1))
    more = {
        "kind": kinds,
        "stream": np.where(stream < 0, tracks, stream),
        "device": np.where(device < 0, np.where(tracks >= 0, agents, -1), device),
        "bytes": slices.numbers("bytes", "size"),
        "copy_kind": np.where(kinds == MEMCPY, copies, -1),
        "regs": slices.numbers("VGPR_Count"),
        "dynamic_smem_bytes": slices.numbers("LDS_Block_Size"),
    }
    ops = _table(OPS_COLUMNS, columns | more, mask)
    problems = [
        *slices.problems,
        "rocprofv3's Perfetto file: grids and blocks are products only, devices are agents (CPUs count), "
        "kernels that overlapped were cut in the middle of the overlap; its database (rocpd) has all of it",
    ]
    touching = _touching(ops)
    if touching:
        problems.append(
            f"{plural(touching, 'operation')} of {len(ops)} end exactly where the next one of the stream "
            "begins: times of those may be cut short"
        )
    return _capture(
        slices,
        path,
        "rocprofv3",
        ops=ops,
        api=_table(API_COLUMNS, columns, api),
        ranges=_ranges(slices, columns, [(user, PUSH_POP, {})]),
        processes=processes,
        problems=problems,
        lacks=(_discarded(len(ops)), *_losses(slices, len(ops))),
    )


def _discarded(num_ops: int) -> Lack:
    """rocprofv3's buffer of 1 GiB drops what does not fit, and its file does not say whether it did."""
    text = "rocprofv3 drops what does not fit its Perfetto buffer without a word: read its database instead"
    return Lack("gpu", "all", "pftrace", -1, 0, num_ops, None, text, unknown=True)


def _losses(slices: Slices, num_ops: int) -> tuple[Lack, ...]:
    """What the file itself says was lost on the way into it."""
    found = []
    for key, rule, text in (
        ("dropped", "packets", "gaps in the packets of a sequence, as Perfetto marked them"),
        ("lost", "buffer", "packets or chunks that Perfetto's own statistics count as lost"),
        ("unpaired", "pairs", "begins or ends of slices without their partner"),
        ("stages", "stages", "GPU render stages of kinds that lab does not know"),
    ):
        count = slices.dropped[key]
        if count:
            what = f"{count} {text}"
            found.append(Lack("gpu", "hole", rule, -1, count, num_ops + count, None, what))
    return tuple(found)


def _touching(ops: Table) -> int:
    order = np.lexsort((ops.start_ns, ops.stream, ops.device))
    same = (ops.stream[order][1:] == ops.stream[order][:-1]) & (
        ops.device[order][1:] == ops.device[order][:-1]
    )
    return int((same & (ops.end_ns[order][:-1] == ops.start_ns[order][1:])).sum())


def _capture(
    slices: Slices,
    path: Path,
    writer: str,
    *,
    ops: Table,
    api: Table,
    ranges: Table,
    processes: tuple[Process, ...],
    problems: list[str],
    lacks: tuple[Lack, ...],
) -> Capture:
    if slices.dropped["samples"]:
        problems.append(f"{plural(slices.dropped['samples'], 'sample')} of GPU counters left out")
    if slices.dropped["instants"]:
        problems.append(f"{plural(slices.dropped['instants'], 'instant')} left out")
    return Capture(
        source=path,
        collector="pftrace",
        version=None,
        schema=None,
        ops=ops,
        api=api,
        ranges=ranges,
        sync=concat([], SYNC_COLUMNS),
        strings=slices.strings.texts,
        devices=(),
        problems=problems,
        info={"writer": writer},
        processes=processes,
        lacks=lacks,
    )


def _table(schema: Schema, columns: dict[str, np.ndarray], mask: np.ndarray) -> Table:
    rows = np.flatnonzero(mask)
    rows = rows[np.argsort(columns["start_ns"][rows], kind="stable")]
    return filled(
        schema,
        len(rows),
        {name: _fit(columns[name][rows], schema[name]) for name in schema if name in columns},
    )


def _fit(values: np.ndarray, kind: Any) -> np.ndarray:
    """Values that a column cannot hold count as not recorded."""
    info = np.iinfo(kind)
    return np.where((values >= info.min) & (values <= info.max), values, -1)


def _ranges(slices: Slices, columns: dict[str, np.ndarray], parts: Sequence[_Part]) -> Table:
    tables = []
    for mask, kind, more in parts:
        names, seqs = slices.strings.stripped(columns["name_id"][mask])
        bare = columns["name_id"].copy()
        bare[mask] = names
        own = {"kind": np.full(len(mask), kind), "name_id": bare, "seq": np.full(len(mask), -1)} | more
        if "seq" not in more:
            own["seq"][mask] = seqs
        tables.append(_table(RANGE_COLUMNS, columns | own, mask))
    return concat([{name: getattr(one, name) for name in RANGE_COLUMNS} for one in tables], RANGE_COLUMNS)


def _shapes(slices: Slices) -> dict[str, np.ndarray]:
    found = {column: slices.texts(key, column.removesuffix("_id")) for column, key in _SHAPES.items()}
    return found | {"concrete_id": slices.texts("Concrete Inputs")}


def _processes(slices: Slices, kinds: np.ndarray) -> tuple[np.ndarray, tuple[Process, ...], bool]:
    """The process (n,) of each slice, the processes, and whether lab merged them from several ranks."""
    named = {uuid: _MERGED.fullmatch(_process_name(slices, track)) for uuid, track in slices.tracks.items()}
    if any(named.values()):
        ranks = sorted({int(one[1]) for one in named.values() if one})
        pids = {
            int(one[1]): int(one[3])
            for one in named.values()
            if one and one[2] == "CPU" and one[3].isdecimal()
        }
        at = {uuid: ranks.index(int(one[1])) if one else 0 for uuid, one in named.items()}
        process = _by_number(slices.track, lambda uuid: at.get(uuid, 0))
        return process, tuple(Process(pid=pids.get(rank), rank=rank) for rank in ranks), True
    pid, _ = _threads(slices)
    on_cpu = kinds != _TABLES.index("kernels")
    on_cpu &= _by_text(slices, slices.category_id, lambda text: int(not text.startswith("gpu_"))) > 0
    cpus = np.unique(pid[on_cpu & (pid >= 0)])
    if len(cpus) <= 1:
        return np.zeros(len(pid), dtype=np.int64), (Process(pid=int(cpus[0]) if len(cpus) else None),), False
    process = np.where(on_cpu & (pid >= 0), np.searchsorted(cpus, pid), -1)
    corr = slices.numbers("correlation")
    corr = np.where(corr < 0, slices.flow, corr)
    calls = np.flatnonzero((kinds == _TABLES.index("runtime")) & (corr >= 0))
    keys, first, count = np.unique(corr[calls], return_index=True, return_counts=True)
    place = np.minimum(np.searchsorted(keys, corr), max(len(keys) - 1, 0))
    if len(keys):
        sure = (process < 0) & (keys[place] == corr) & (count[place] == 1)
        process = np.where(sure, process[calls[first[place]]], process)
    processes = [Process(pid=int(one)) for one in cpus]
    if (process < 0).any():
        processes.append(Process(name="GPU rows whose process the file does not tell"))
        process = np.where(process < 0, len(processes) - 1, process)
    return process, tuple(processes), False


def _process_name(slices: Slices, track: Track) -> str:
    """The name of the process of a track, up to its root."""
    for _ in range(16):
        if track.process:
            return track.process
        above = slices.tracks.get(track.parent)
        if above is None:
            break
        track = above
    return ""


def _threads(slices: Slices) -> tuple[np.ndarray, np.ndarray]:
    """pid and tid (n,) of each slice's track, or of the one above."""

    def numbers(uuid: int) -> tuple[int, int]:
        track = slices.tracks.get(uuid, Track())
        for _ in range(16):
            if track.pid >= 0 or track.tid >= 0:
                return track.pid, track.tid
            track = slices.tracks.get(track.parent, Track())
        return -1, -1

    return (
        _by_number(slices.track, lambda uuid: numbers(uuid)[0]),
        _by_number(slices.track, lambda uuid: numbers(uuid)[1]),
    )


def _of_track(slices: Slices, number_of: Callable[[Any], int]) -> np.ndarray:
    return _by_number(slices.track, lambda uuid: number_of(slices.tracks.get(uuid, Track())))


def _by_number(values: np.ndarray, number_of: Callable[[Any], int]) -> np.ndarray:
    used, which = np.unique(values, return_inverse=True)
    found = np.array([number_of(one) for one in used.tolist()], dtype=np.int64)
    return found[which] if len(used) else np.empty(0, dtype=np.int64)


def _by_text(slices: Slices, ids: np.ndarray, number_of: Callable[[Any], int]) -> np.ndarray:
    return _by_number(ids, lambda one: number_of(slices.strings.texts[one] if one >= 0 else ""))


def _item(slices: Slices, ids: np.ndarray, index: int) -> np.ndarray:
    """The number (n,) at `index` of the list of which the text is the JSON, or -1."""

    def number(text: str) -> int:
        if not text.startswith("["):
            return -1
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return -1
        one = value[index] if index < len(value) else None
        return one if type(one) is int and abs(one) < 1 << 31 else -1

    return _by_text(slices, ids, number)


def _first_number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    digits = next((one for one in (found.groups() if found else ()) if one), "")
    return int(digits) if digits and len(digits) < 10 else -1
