"""Matrix products: one row per distinct op, timed over all kernels that it launched, under the roof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.perfmodel.boards import Board
from lab.perfmodel.calls import OpCall, Work
from lab.perfmodel.products import is_product, product_work
from lab.perfmodel.roofs import excess_of, roof_of
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.schema import Launch, Signature

_COLUMNS = (
    "sig_id kernel op phase dtype flop least_bytes intensity rate_tflops memory_gbps of_ceiling_percent "
    "ceiling count dur_median_us note"
)
_MULTIPLIES = ("gemm", "gemv")


def products(catalogue: Catalogue, board: Board | None) -> pd.DataFrame:
    """Describe every distinct product: FLOPs, least bytes, intensity, rate, share of its ceiling and which
    of the board's rates that is, if known.

    A product is an op, not a kernel: one that is split in K multiplies and adds up, and both count.
    sig_id is that of the kernel that multiplies first; kernel names all of them.
    """
    by_id = {signature.sig_id: signature for signature in catalogue.signatures.signatures}
    runs: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for launches in _launches_by_op(catalogue.launches):
        if not is_product(by_id[launches[0].sig_id].op):
            continue
        main = next((launch for launch in launches if launch.class_ in _MULTIPLIES), launches[0])
        key = (main.sig_id, *(launch.sig_id for launch in launches))
        runs[key].append(sum(launch.dur_us for launch in launches))
    rows = []
    for (main_id, *launch_ids), durs_us in runs.items():
        work = product_work(call_of(by_id[main_id]))
        if work is not None and sum(durs_us) > 0:
            kernels = [by_id[sig_id] for sig_id in launch_ids]
            rows.append(_row(by_id[main_id], kernels, work, board, durs_us))
    rows.sort(key=lambda row: -row["count"] * row["dur_median_us"])
    table: pd.DataFrame = pd.DataFrame(rows, columns=_COLUMNS.split())
    return table


def call_of(signature: Signature) -> OpCall:
    """Return a signature's op and arguments as the performance model reads them."""
    args = signature.args
    return OpCall(
        signature.op,
        [arg.shape if arg.shape is not None else [] for arg in args],
        [arg.dtype or ("Scalar" if arg.shape is None else "") for arg in args],
        [arg.stride or [] for arg in args],
        [str(arg.value) for arg in args],
    )


def _launches_by_op(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Group kernels, not fills and copies, by the product that launched them, in order of time."""
    groups: dict[tuple[int, int], list[Launch]] = defaultdict(list)
    for launch in launches:
        if launch.kind in ("kernel", "cpu_op") and launch.op_id >= 0:
            groups[launch.rank, launch.op_id].append(launch)
    return list(groups.values())


def _row(
    main: Signature, kernels: Sequence[Signature], work: Work, board: Board | None, durs_us: Sequence[float]
) -> dict[str, Any]:
    """Rates are all work over all time, as in the roofline of `lab analyze`."""
    dur_us = float(np.mean(durs_us))
    roof = roof_of(work, board, " ".join(kernel.name for kernel in kernels))
    return {
        "sig_id": main.sig_id,
        "kernel": " ; ".join(kernel.kernel for kernel in kernels),
        "op": main.op,
        "phase": main.phase,
        "dtype": work.dtype,
        "flop": int(work.flops),
        "least_bytes": work.num_bytes,
        "intensity": work.flops / work.num_bytes,
        "rate_tflops": work.flops / dur_us / 1e6,
        "memory_gbps": work.num_bytes / dur_us / 1e3,
        "of_ceiling_percent": 100 * roof.least_s * 1e6 / dur_us if roof else float("nan"),
        "ceiling": roof.rate if roof else "",
        "count": len(durs_us),
        "dur_median_us": float(np.median(durs_us)),
        "note": excess_of(roof, dur_us * 1e-6) if roof else "" if board else "unknown board",
    }
