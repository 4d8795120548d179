"""Sums over the catalogue: time by class, op, module and phase; and its matrix products."""

from __future__ import annotations

import re

import pandas as pd

from lab.perfmodel.products import is_product
from lab.recordings.views import op_roofs
from lab.rooms.kernels.catalogue.build import Catalogue

# Of the roofline, and what products.csv calls them.
_PRODUCT_COLUMNS = (
    "op shapes dtype kernels count mean_us gflop mbytes intensity tflops gb_per_s percent_of_roof"
)
_PRODUCT_NAMES = {
    "kernels": "kernel",
    "tflops": "rate_tflops",
    "gb_per_s": "memory_gbps",
    "percent_of_roof": "of_ceiling_percent",
    "rate": "ceiling",
}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def frame_of(catalogue: Catalogue) -> pd.DataFrame:
    """One row per launch with the columns to sum over; layers of the module path are folded."""
    launches = catalogue.launches
    frame: pd.DataFrame = pd.DataFrame(
        {
            "class": [launch.class_ for launch in launches],
            "op": catalogue.op_names,
            "module": [folded(path) for path in catalogue.modules],
            "phase": [launch.phase for launch in launches],
            "dur_us": [launch.own_us for launch in launches],
        }
    )
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


def products(catalogue: Catalogue) -> pd.DataFrame:
    """The matrix products of the roofline: work and rate over all kernels of an op, share of the roof."""
    roofs = [pd.DataFrame(op_roofs(rank.trace).as_dict()) for rank in catalogue.ranks if rank.on_gpu]
    products_of_ranks = [table[table["op"].map(is_product) & table["gflop"].notna()] for table in roofs]
    rows: pd.DataFrame = pd.concat(products_of_ranks, ignore_index=True) if roofs else pd.DataFrame()
    columns = [*_PRODUCT_COLUMNS.split(), "rate", "note"]
    table: pd.DataFrame = rows.reindex(columns=columns).rename(columns=_PRODUCT_NAMES)
    return table


def shortened(frame: pd.DataFrame, max_chars: int = 40) -> pd.DataFrame:
    """Long texts cut in the middle, for a terminal."""
    table: pd.DataFrame = frame.map(lambda cell: _cut(cell, max_chars) if isinstance(cell, str) else cell)
    return table


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 14]}…{text[-13:]}"
