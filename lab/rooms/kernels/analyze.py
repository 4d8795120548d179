"""Sums over the catalogue: time by class, op, module and phase; matrix products against ceilings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.gpus.roofs import Roof
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.roofs import Work, product_of
from lab.rooms.kernels.schema import Signature

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def frame_of(found: Catalogue) -> pd.DataFrame:
    """One row per launch with the columns to sum over; layers of the module path are folded."""
    ops = {(one.rank, one.op_id): one for one in found.ops}
    rows = []
    for launch in found.launches:
        op = ops.get((launch.rank, launch.op_id))
        names = (op.name, folded(op.module_path)) if op else ("", "")
        rows.append((launch.class_, *names, launch.phase, launch.own_us))
    columns = ["class", "op", "module", "phase", "dur_us"]
    frame: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    return frame


def folded(path: str) -> str:
    """`transformer.h.3.mlp` -> `transformer.h.*.mlp`: all layers of a model count as one."""
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
    """Per phase, launches and kernel time of one forward of one rank; launches between forwards apart."""
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
    """One row per matrix product: FLOPs, least bytes, intensity, rate, share of its ceiling if known."""
    pairs = [(one, product_of(one)) for one in signatures if one.dur_us.median > 0]
    rows = [_product(one, work, roof) for one, work in pairs if work is not None]
    found: pd.DataFrame = pd.DataFrame(rows, columns=_PRODUCT_COLUMNS.split())
    return found


_PRODUCT_COLUMNS = (
    "sig_id kernel op phase dtype flop least_bytes intensity rate_tflops memory_gbps of_ceiling_percent "
    "count dur_median_us"
)


def _product(one: Signature, work: Work, roof: Roof | None) -> dict[str, Any]:
    rate = work.flops / one.dur_us.median * 1e6
    ceiling = min(roof.flops(work.dtype), work.flops / work.bytes * roof.bytes_per_s) if roof else np.nan
    return {
        **{name: getattr(one, name) for name in ("sig_id", "kernel", "op", "phase", "count")},
        "dtype": work.dtype,
        "flop": work.flops,
        "least_bytes": work.bytes,
        "intensity": work.flops / work.bytes,
        "rate_tflops": rate / 1e12,
        "memory_gbps": work.bytes / one.dur_us.median / 1e3,
        "of_ceiling_percent": 100 * rate / ceiling,
        "dur_median_us": one.dur_us.median,
    }


def sources(found: Catalogue) -> pd.DataFrame:
    """Sources of the owning ops' arguments, in launches and in time."""
    by_sig = {one.sig_id: one.arg_src or "no op" for one in found.signatures.signatures}
    rows = pd.DataFrame(
        {
            "source": [by_sig[one.sig_id] for one in found.launches],
            "dur_us": [one.dur_us for one in found.launches],
        }
    )
    return shares(rows, "source")
