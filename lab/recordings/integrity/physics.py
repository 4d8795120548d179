"""What a GPU cannot have done: rules K, P, U, W and Z of each process, and B against its board.

Each rule of PHYSICS takes the recording and one process' rows of `ops` and of `api`, and yields faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lab.core.words import plural
from lab.perfmodel.boards import Board, board_of
from lab.perfmodel.dtypes import rate_name
from lab.perfmodel.products import is_product
from lab.recordings.calls import WAIT, call_kinds, launch_calls, replayed, uncalled
from lab.recordings.capture import Capture
from lab.recordings.lacks import Axis, Lack, doubt
from lab.recordings.names import is_matmul
from lab.recordings.owners import first_index
from lab.recordings.tables import GRAPH, KERNEL, MEMCPY, MEMSET, NO_SYMBOL, Table
from lab.recordings.views import gemm_flops, gemm_instances
from lab.stats.columns import distinct, distinct_rows

# Boost clocks and rounded times beat a data sheet by some percent: twice its peak is a fault.
MARGIN = 2.0
# Smaller copies within a GPU, and fills, may run in its cache (256 MiB of an MI300X is the largest).
CACHE_BYTES = 256 << 20
_WITHIN_A_GPU = 8  # copy_kind
_TRANSFERS, _PRODUCTS = ("copy or fill", "copies and fills"), ("matrix product",)
# A product competes with the fastest of these. Not float64: cuBLAS emulates it on the units for int8.
_RATES = {"fp32": ("fp32", "tf32", "fp32_matrix"), "fp16": ("fp16", "fp16_acc16")}


def limit_lacks(capture: Capture) -> list[Lack]:
    """The findings, one per process and kind of work."""
    boards = dict(_boards(capture))
    if not boards:
        return []
    rows = {_TRANSFERS: _fast_copies(capture, boards), _PRODUCTS: _fast_products(capture, boards)}
    lacks = []
    for nouns, (fast, judged) in rows.items():
        for process in distinct(fast.process).tolist():
            ratio = float(fast.ratio[fast.process == process].max())
            n, of = int((fast.process == process).sum()), int((judged == process).sum())
            words = (
                "took less than half of the time that the GPU's data sheet allows "
                f"(up to {ratio:,.3g} times its peak): times are at least what is printed"
            )
            lacks.append(Fault(n, of, words, *nouns).lack("gpu", "B", process))
    return lacks


def _boards(capture: Capture) -> Iterator[tuple[tuple[int, int], Board]]:
    """(process, device) -> its board."""
    for process in range(max(len(capture.processes), 1)):
        for device in capture.devices:
            # Two processes of one host may both call their GPU 0: the pid decides whose board it is.
            is_its = device.process in (-1, process) and (
                device.pid < 0 or device.pid == capture.processes[process].pid
            )
            board = board_of(device.name, device.num_sms) if is_its else None
            if board:
                yield (process, device.device), board


def _fast_copies(capture: Capture, boards: dict[tuple[int, int], Board]) -> tuple[Table, np.ndarray]:
    ops = capture.ops
    is_local = (ops.kind == MEMSET) | (ops.copy_kind == _WITHIN_A_GPU) | (ops.copy_kind < 0)
    sized = np.isin(ops.kind, (MEMCPY, MEMSET)) & (ops.bytes > np.where(is_local, CACHE_BYTES, 0))
    rows = ops.where(sized & (ops.dur_ns > 0))
    bytes_per_s = _of_boards(rows, {key: board.bytes_per_s for key, board in boards.items()})
    return _faster(rows, rows.bytes / np.maximum(rows.dur_ns, 1) * 1e9, bytes_per_s)


def _fast_products(capture: Capture, boards: dict[tuple[int, int], Board]) -> tuple[Table, np.ndarray]:
    """Judge by operator: all kernels it launched together, at least one of which multiplies by its name."""
    if not any(map(is_product, capture.strings)):
        return _faster(capture.ops.part(len(capture.ops)), np.empty(0), np.empty(0))
    gemms = gemm_instances(capture)
    flops = gemm_flops(capture)[capture.operator_rows[gemms.op_row]]
    names = {text: any(map(is_matmul, text.split(" ; "))) for text in set(gemms.kernels.tolist())}
    multiplies = np.array([names[text] for text in gemms.kernels.tolist()], dtype=bool)
    used = np.flatnonzero((flops > 0) & (gemms.dur_ns > 0) & multiplies)
    rows = capture.operators.take(gemms.op_row[used])
    kernel = first_index(gemms.correlation[used], capture.ops.corr)
    rows = rows.with_columns(device=np.where(kernel >= 0, capture.ops.device[kernel], -1))
    peaks = np.zeros(len(rows))
    dtypes = np.array([rate_name(dtype) for dtype in gemms.dtype[used].tolist()], dtype=object)
    for rate in set(dtypes.tolist()):
        rates = _RATES.get(rate, (rate,) if rate != "fp64" else ())
        by_board = {
            key: max((board.flops_per_s(name) or 0.0 for name in rates), default=0.0)
            for key, board in boards.items()
        }
        peaks = np.where(dtypes == rate, _of_boards(rows, by_board), peaks)
    return _faster(rows, flops[used] / np.maximum(gemms.dur_ns[used], 1) * 1e9, peaks)


def _of_boards(rows: Table, peaks: dict[tuple[int, int], float]) -> np.ndarray:
    """The peak (n,) of the board of each row; 0 where it is not known."""
    column = np.zeros(len(rows))
    for (process, device), peak in peaks.items():
        column[(rows.process == process) & (rows.device == device)] = peak
    return column


def _faster(rows: Table, per_s: np.ndarray, peak: np.ndarray) -> tuple[Table, np.ndarray]:
    """Columns process and ratio of the rows that beat their peak by too much; the process of all judged."""
    judged = peak > 0
    ratio = per_s[judged] / peak[judged]
    process = rows.process[judged]
    return Table({"process": process[ratio > MARGIN], "ratio": ratio[ratio > MARGIN]}), process


# A kernel may seem to begin a little before its call (clocks drift); a queue may hold it for seconds.
EARLIEST_NS, LATEST_NS = 10_000_000, 60_000_000_000
# A wait returns after the row that it waited for; 8 us before its end was the most in recordings.
OUTLASTS_NS = 1_000_000
# Times rounded to whole microseconds may put a row's end up to 1 us behind that of its successor.
ORDER_NS = 2_000
# Programmatic launches let a row begin before its predecessor has ended, not before several have.
MOST_AT_ONCE = 4
_PLACE = ("start_ns", "device", "context", "stream", "name_id", "kind")
_IDENTITY = (*_PLACE, "end_ns", "corr", "graph_node")
_CALL_IDENTITY = ("start_ns", "end_ns", "pid", "tid", "corr", "name_id")

_DIFFER = "differ, and times across them mean nothing"


class Fault(NamedTuple):
    """`n` of `of` rows, and what is wrong with them; none where n is 0."""

    n: int
    of: int
    words: str
    noun: str = "GPU row"
    nouns: str | None = None

    def lack(self, axis: Axis, rule: str, process: int) -> Lack:
        text = f"{self.n:,} of {plural(self.of, self.noun, self.nouns)} {self.words}"
        return doubt(axis, rule, text, process=process, n=self.n, of=self.of)


def _stream_order(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule P: rows that end after a later row of their stream has ended, or after the fourth has begun.

    A stream runs one row after the other: rows may begin before their predecessor ended (programmatic
    dependent launch), but not end before it. 0 of 20,000 dispatches of an MI350X and of 17 real traces do
    (a recorded duration of 1.6 s for 2 ms of work: AMD-AGI/TraceLens#669). The rows of one graph replay may
    run beside each other, so a replay counts as one row.
    """
    rows = ops[(of.ops.kind[ops] != GRAPH) & ~uncalled(of)[ops]]
    if len(rows) < 2:
        return
    begin_ns, end_ns, stream, members = _units(of, rows)
    order = np.lexsort((end_ns, begin_ns, stream))
    stream, begin_ns, end_ns = stream[order], begin_ns[order], end_ns[order]
    # From the back, the earliest end among the rows that begin later on the same stream.
    late = np.zeros(len(order), dtype=bool)
    for lane in np.split(np.arange(len(order)), np.flatnonzero(np.diff(stream)) + 1):
        ends = end_ns[lane]
        earliest = np.minimum.accumulate(ends[::-1])[::-1]
        late[lane[:-1]] = ends[:-1] > earliest[1:] + ORDER_NS
        if len(lane) > MOST_AT_ONCE:
            late[lane[:-MOST_AT_ONCE]] |= ends[:-MOST_AT_ONCE] > begin_ns[lane[MOST_AT_ONCE:]] + ORDER_NS
    longest_ms = int(durations_ns(of, rows).max()) / 1e6
    words = (
        f"outlast later rows of their stream, which no stream allows (the longest takes {longest_ms:,.3f} ms)"
    )
    yield Fault(int(members[order][late].sum()), len(ops), f"{words}: times are at most what is printed")


def _units(of: Capture, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Begin, end, stream and number of rows of what runs as one: a row, or all rows of one graph replay."""
    lanes = distinct_rows(np.stack([of.ops.device[rows], of.ops.context[rows], of.ops.stream[rows]], axis=1))[
        1
    ]
    begin_ns, end_ns = of.ops.start_ns[rows], of.ops.end_ns[rows]
    in_graph = (of.ops.graph_node[rows] > 0) | (of.ops.graph[rows] > 0)
    if not in_graph.any():
        return begin_ns, end_ns, lanes, np.ones(len(rows), dtype=np.int64)
    # Rows outside graphs get numbers of their own, beyond any correlation.
    launch = np.where(in_graph, of.ops.corr[rows], -1 - np.arange(len(rows)))
    unit = distinct_rows(np.stack([lanes, launch], axis=1))[1]
    order = np.argsort(unit, kind="stable")
    heads = np.flatnonzero(np.append(True, np.diff(unit[order]) > 0))
    return (
        np.minimum.reduceat(begin_ns[order], heads),
        np.maximum.reduceat(end_ns[order], heads),
        lanes[order][heads],
        np.diff(np.append(heads, len(rows))),
    )


def _clocks(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule K: rows that begin before their call, or later than a queue explains: two clocks, or two units."""
    ops_known = ops[launch_calls(of)[ops] >= 0]
    if not len(ops_known):
        return
    delay_ns = of.ops.start_ns[ops_known] - of.api.start_ns[launch_calls(of)[ops_known]]
    calls_ns = of.api.start_ns[api]
    # A kernel is not queued longer than the program ran; ten times that allows for a short window.
    most_ns = max(LATEST_NS, 10 * int(calls_ns.max() - calls_ns.min()))
    early, late = delay_ns < -EARLIEST_NS, delay_ns > most_ns
    for rows, side in ((early, "before"), (late, "after")):
        far_s = int(np.abs(delay_ns[rows]).max(initial=0)) / 1e9
        words = (
            f"begin up to {far_s:,.3g} s {side} the call that launched them: clocks or units of GPU and host"
        )
        yield Fault(int(rows.sum()), len(ops), f"{words} {_DIFFER}")


def _waits(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule K: rows that end after a wait for the whole device that began when they were launched already.

    A wait covers the current device only, so a process with several is not judged. Nor is a wait of 0 ns,
    which is how readers give a call without an end: its return was not recorded.
    """
    waits = api[(call_kinds(of)[api] == WAIT) & (of.api.end_ns[api] > of.api.start_ns[api])]
    called = ops[launch_calls(of)[ops] >= 0]
    if not len(waits) or not len(called) or len(distinct(of.ops.device[ops])) > 1:
        return
    waits = waits[np.argsort(of.api.start_ns[waits], kind="stable")]
    launched_ns = of.api.end_ns[launch_calls(of)[called]]
    position = np.searchsorted(of.api.start_ns[waits], launched_ns, side="left")
    covered = position < len(waits)
    # Of the waits for a row, the one that begins first.
    over_ns = of.ops.end_ns[called[covered]] - of.api.end_ns[waits[position[covered]]]
    late_ns = over_ns[over_ns > OUTLASTS_NS]
    far_s = int(late_ns.max(initial=0)) / 1e9
    words = f"end up to {far_s:,.3g} s after the return of a call that waited for them"
    yield Fault(len(late_ns), len(ops), f"{words}: clocks of GPU and host {_DIFFER}")


def _rows_twice(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule W: equal rows. A stream runs one row at a time, so the second is a copy, whatever its number; not
    of rows of graphs, whose branches may begin together."""
    is_single = ~replayed(of)[ops]
    if not _is_fine(of, ops):  # two short rows may begin in the same microsecond
        is_single[:] = False
    is_single &= durations_ns(of, ops) > 0
    n = _written_twice(of.ops, ops[is_single], _PLACE) + _written_twice(of.ops, ops[~is_single], _IDENTITY)
    words = "are there twice (same stream, start and name): counts and times are too high"
    yield Fault(n, len(ops), words)


def _calls_twice(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule W: a correlation is one call's, so the second equal call is a copy."""
    numbered = api[of.api.corr[api] > 0]
    n = _written_twice(of.api, numbered, _CALL_IDENTITY)
    words = "are there twice (same thread, start, end, name and correlation): counts are too high"
    yield Fault(n, len(api), words, "API call")


def _numbers_twice(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule K: different calls of one name with one number, as where the processes 1 of two containers stand
    in one file: their rows cannot be told apart."""
    numbered = api[of.api.corr[api] > 0]
    in_order = np.sort(of.api.corr[numbered], kind="stable")
    if not (in_order[1:] == in_order[:-1]).any():
        return
    keys = np.stack([getattr(of.api, name)[numbered].astype(np.int64) for name in _CALL_IDENTITY], axis=1)
    number = _CALL_IDENTITY.index("corr"), _CALL_IDENTITY.index("name_id")
    calls = distinct_rows(keys)[0][:, number]
    n = len(calls) - len(distinct_rows(calls)[0])
    words = "have the number of another call of their process, as in recordings merged by hand"
    yield Fault(n, len(api), f"{words}: who launched which row is unknown", "API call")


def _written_twice(table: Table, rows: np.ndarray, identity: Sequence[str]) -> int:
    """How many of these rows repeat another one in every column of `identity`."""
    order = rows[np.argsort(table.start_ns[rows], kind="stable")]
    start_ns = table.start_ns[order]
    # Only rows that start together can be equal: one sorted column spares comparing all of them.
    tied = np.flatnonzero(start_ns[1:] == start_ns[:-1])
    if not len(tied):
        return 0
    alike = order[np.union1d(tied, tied + 1)]
    keys = np.stack([getattr(table, name)[alike].astype(np.int64) for name in identity], axis=1)
    return len(alike) - len(distinct_rows(keys)[0])


def _unmeasured(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule Z: kernels, copies and fills that took no time, in a recording that resolves less than a µs; of
    any resolution if no kernel took time."""
    fine = _is_fine(of, ops)
    for kinds, nouns in (((KERNEL,), ("kernel",)), ((MEMCPY, MEMSET), _TRANSFERS)):
        rows = ops[np.isin(of.ops.kind[ops], kinds)]
        n = int((durations_ns(of, rows) <= 0).sum())
        if n and (fine or (kinds == (KERNEL,) and n == len(rows))):
            yield Fault(n, len(rows), "took 0 ns: their times were not measured", *nouns)


def _is_fine(of: Capture, ops: np.ndarray) -> bool:
    """Whether the recording resolves less than a microsecond."""
    return bool((durations_ns(of, ops) % 1000).any())


def _unnamed(of: Capture, ops: np.ndarray, api: np.ndarray) -> Iterator[Fault]:
    """Rule U: kernels whose name is not in the recording; no table can tell them apart."""
    kernels = ops[of.ops.kind[ops] == KERNEL]
    blank = [index for index in distinct(of.ops.name_id[kernels]) if index < 0 or is_blank(of.strings[index])]
    rows = kernels[np.isin(of.ops.name_id[kernels], blank)]
    whole_ns = int(durations_ns(of, kernels).sum())
    share = int(durations_ns(of, rows).sum()) / max(whole_ns, 1)
    words = "have no name in the recording: they stand as one kernel without a name"
    yield Fault(len(rows), len(kernels), f"({share:.1%} of kernel time) {words}", "kernel")


def is_blank(name: str) -> bool:
    """Whether this stands for the name of a kernel that is not in the recording."""
    return not name.strip() or name.endswith(NO_SYMBOL)


def durations_ns(of: Capture, rows: np.ndarray) -> np.ndarray:
    dur: np.ndarray = of.ops.end_ns[rows] - of.ops.start_ns[rows]
    return dur


# The rule, the axis that it speaks of, and what finds its faults.
PHYSICS: tuple[tuple[str, Axis, Callable[[Capture, np.ndarray, np.ndarray], Iterator[Fault]]], ...] = (
    ("P", "gpu", _stream_order),
    ("K", "gpu", _clocks),
    ("K", "gpu", _waits),
    ("W", "gpu", _rows_twice),
    ("W", "host", _calls_twice),
    ("K", "gpu", _numbers_twice),
    ("Z", "gpu", _unmeasured),
    ("U", "gpu", _unnamed),
)


def impossible(of: Capture, process: int, ops: np.ndarray, api: np.ndarray) -> Iterator[Lack]:
    """What a process cannot have done, by every rule: ops and api are its rows of these tables."""
    for rule, axis, faults in PHYSICS:
        for fault in faults(of, ops, api):
            if fault.n:
                yield fault.lack(axis, rule, process)
