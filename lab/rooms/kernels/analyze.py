"""The catalogue summed up: where the time goes by class, op, module and phase, and how far the products are from the
GPU's ceilings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.roofs import Roof, product_of
from lab.rooms.kernels.schema import Signature

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def frame_of(found: Catalogue) -> pd.DataFrame:
    """A row a launch with what sums are taken over: class, op, module (layers folded), phase, forward, rank, dur_us."""
    ops = {(one.rank, one.op_id): one for one in found.ops}
    rows = []
    for launch in found.launches:
        op = ops.get((launch.rank, launch.op_id))
        rows.append(
            (
                launch.class_,
                op.name if op else "",
                folded(op.module_path) if op else "",
                launch.phase,
                launch.forward,
                launch.rank,
                launch.dur_us,
                launch.kind,
            )
        )
    columns = ["class", "op", "module", "phase", "forward", "rank", "dur_us", "kind"]
    frame: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    return frame


def folded(path: str) -> str:
    """`transformer.h.3.mlp` -> `transformer.h.*.mlp`: layers of a model are one."""
    return _NUMBER.sub("*", path)


def shares(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """launches, time_ms and share per value of `by`, most time first."""
    groups = frame.groupby(by, sort=False)["dur_us"]
    found = groups.agg(launches="size", time_ms="sum").reset_index()
    found["time_ms"] = found["time_ms"] / 1000
    found["share_percent"] = 100 * found["time_ms"] / (found["time_ms"].sum() or 1.0)
    table: pd.DataFrame = found.sort_values("time_ms", ascending=False, kind="stable", ignore_index=True)
    return table


def phases(frame: pd.DataFrame, forwards: dict[str, int], ranks: int) -> pd.DataFrame:
    """Per phase: forwards, launches and kernel time of one forward of one rank; what lies between forwards by itself."""
    rows = []
    for phase, some in frame.groupby("phase", sort=False):
        count = forwards.get(str(phase), 0)
        runs = (count or sum(forwards.values()) or 1) * ranks
        rows.append(
            {
                "phase": phase or ("between forwards" if forwards else "whole trace"),
                "forwards": count,
                "launches": len(some),
                "launches_per_forward": len(some) / runs,
                "kernel_ms_per_forward": some["dur_us"].sum() / 1000 / runs,
                "share_percent": 100 * some["dur_us"].sum() / (frame["dur_us"].sum() or 1.0),
            }
        )
    found: pd.DataFrame = pd.DataFrame(rows)
    return found


def products(signatures: Sequence[Signature], roof: Roof | None) -> pd.DataFrame:
    """A row a matrix product: FLOPs, least bytes, intensity, rate, and the share of its ceiling where one is known."""
    rows = []
    for one in signatures:
        work = product_of(one)
        if work is None or one.dur_us.median <= 0:
            continue
        rate = work.flops / one.dur_us.median * 1e6
        ceiling = min(roof.flops(work.dtype), work.flops / work.bytes * roof.bytes_per_s) if roof else np.nan
        rows.append(
            {
                "sig_id": one.sig_id,
                "kernel": one.kernel,
                "op": one.op,
                "phase": one.phase,
                "dtype": work.dtype,
                "flop": work.flops,
                "least_bytes": work.bytes,
                "intensity": work.flops / work.bytes,
                "rate_tflops": rate / 1e12,
                "memory_gbps": work.bytes / one.dur_us.median / 1e3,
                "of_ceiling_percent": 100 * rate / ceiling,
                "count": one.count,
                "dur_median_us": one.dur_us.median,
            }
        )
    columns = [
        "sig_id",
        "kernel",
        "op",
        "phase",
        "dtype",
        "flop",
        "least_bytes",
        "intensity",
        "rate_tflops",
        "memory_gbps",
        "of_ceiling_percent",
        "count",
        "dur_median_us",
    ]
    found: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    return found


def sources(found: Catalogue) -> pd.DataFrame:
    """Where the arguments of the owning ops came from, in launches and in time."""
    by_sig = {one.sig_id: one.arg_src or "no op" for one in found.signatures.signatures}
    rows = pd.DataFrame(
        {
            "source": [by_sig[one.sig_id] for one in found.launches],
            "dur_us": [one.dur_us for one in found.launches],
        }
    )
    return shares(rows, "source")
