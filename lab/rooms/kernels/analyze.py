"""Sums over the catalogue: time by class, op, module and phase."""

from __future__ import annotations

import re

import pandas as pd

from lab.rooms.kernels.catalogue.build import Catalogue

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def frame_of(catalogue: Catalogue) -> pd.DataFrame:
    """One row per launch with the columns to sum over; layers of the module path are folded."""
    ops = {(one.rank, one.op_id): one for one in catalogue.ops}
    rows = []
    for launch in catalogue.launches:
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
    sums = groups.agg(launches="size", time_ms="sum").reset_index()
    sums["time_ms"] = sums["time_ms"] / 1000
    sums["share_percent"] = 100 * sums["time_ms"] / (sums["time_ms"].sum() or 1.0)
    table: pd.DataFrame = sums.sort_values("time_ms", ascending=False, kind="stable", ignore_index=True)
    return table


def phases(frame: pd.DataFrame, forwards: dict[str, int], ranks: int) -> pd.DataFrame:
    """Per phase, launches and kernel time of one forward of one rank; launches between forwards apart."""
    rows = []
    for phase, launches in frame.groupby("phase", sort=False):
        count = forwards.get(str(phase), 0)
        runs = (count or sum(forwards.values()) or 1) * ranks
        rows.append(
            {
                "phase": phase or ("between forwards" if forwards else "whole trace"),
                "forwards": count,
                "launches": len(launches),
                "launches_per_forward": len(launches) / runs,
                "kernel_ms_per_forward": launches["dur_us"].sum() / 1000 / runs,
                "share_percent": 100 * launches["dur_us"].sum() / (frame["dur_us"].sum() or 1.0),
            }
        )
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def sources(catalogue: Catalogue) -> pd.DataFrame:
    """Sources of the owning ops' arguments, in launches and in time."""
    by_sig = {signature.sig_id: signature.arg_src or "no op" for signature in catalogue.signatures.signatures}
    rows = pd.DataFrame(
        {
            "source": [by_sig[launch.sig_id] for launch in catalogue.launches],
            "dur_us": [launch.dur_us for launch in catalogue.launches],
        }
    )
    return shares(rows, "source")
