"""Columns and classes that several steps of the pipeline share."""

from __future__ import annotations

from lab.rooms.sweep.tables import KEY, column_names

# What makes two GEMMs the same. Never the kernel's name: libraries choose another kernel for another tile.
GROUP = ["op", "B", "M", "N", "K", "bias", "strides", "dtype", "dims"]
FREE, PARTIAL, FULL = "free", "partial", "full"
NO_LAUNCH = "(launched before the window)"
INSTANCES = [
    *KEY,
    "rank",
    *GROUP,
    *column_names(
        "transpose step correlation uid ts_ns dur_ns end_ns overlap comm_ns comm_share other_ns cold "
        "unfinished family kernels file"
    ),
]
