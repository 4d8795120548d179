"""Rule B: copies and matrix products that are faster than twice what their board can do: durations too short.

A board that is not in `lab.perfmodel.boards` has no such limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lab.core.words import plural
from lab.perfmodel.boards import Board, board_of
from lab.perfmodel.dtypes import rate_name
from lab.perfmodel.products import is_product
from lab.recordings.capture import Capture
from lab.recordings.lacks import Lack
from lab.recordings.names import is_matmul
from lab.recordings.owners import first_index
from lab.recordings.tables import MEMCPY, MEMSET, Table
from lab.recordings.views import gemm_flops, gemm_instances
from lab.stats.columns import distinct

MARGIN = 2.0
# Smaller copies within a GPU, and fills, may run in its cache (256 MiB of an MI300X is the largest).
CACHE_BYTES = 256 << 20
_WITHIN_A_GPU = 8  # copy_kind
# A product competes with the fastest of these. Not float64: cuBLAS emulates it on the units for int8.
_RATES = {"fp32": ("fp32", "tf32", "fp32_matrix"), "fp16": ("fp16", "fp16_acc16")}


def limit_lacks(capture: Capture) -> list[Lack]:
    """The findings, one per process and kind of work."""
    boards = dict(_boards(capture))
    if not boards:
        return []
    rows = {"copy or fill": _fast_copies(capture, boards), "matrix product": _fast_products(capture, boards)}
    lacks = []
    for kind, (fast, judged) in rows.items():
        for process in distinct(fast.process).tolist():
            ratio = float(fast.ratio[fast.process == process].max())
            n, of = int((fast.process == process).sum()), int((judged == process).sum())
            plurals = "copies and fills" if kind.startswith("copy") else "matrix products"
            text = (
                f"{n:,} of {plural(of, kind, plurals)} took less than half of the time that the GPU's data "
                f"sheet allows (up to {ratio:,.3g} times its peak): times are at least what is printed"
            )
            lacks.append(Lack("gpu", "all", "B", process, n, of, None, text, unknown=True))
    return lacks


def _boards(capture: Capture) -> Iterator[tuple[tuple[int, int], Board]]:
    """(process, device) -> its board."""
    for process in range(max(len(capture.processes), 1)):
        for device in capture.devices:
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
    """By operator: all kernels that it launched together, at least one of which multiplies by its name."""
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
