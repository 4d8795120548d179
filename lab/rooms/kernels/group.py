"""`lab kernels`: catalogue, launches and Gantt chart of traces; C++ and audits. No GPU, no torch.

A run of `lab run kernels profile` or bare Kineto traces, of any torch and vendor, will do.
"""

from __future__ import annotations

import click

from lab.cli import LazyGroup

READERS = {
    "unique": (
        "lab.rooms.kernels.catalogue_cli:unique",
        "Distinct launches: kernel, geometry, op, arguments, counts, times.",
    ),
    "launches": (
        "lab.rooms.kernels.catalogue_cli:launches",
        "Every launch of a trace, with the op that owns it.",
    ),
    "gantt": (
        "lab.rooms.kernels.catalogue_cli:gantt",
        "A chart of compute, communication and copies by stream.",
    ),
    "cpp": ("lab.rooms.kernels.cpp_cli:cpp", "A C++ program that replays the catalogue."),
    "audit": ("lab.rooms.kernels.audit_cli:audit", "Refuse numbers that cannot be, and say why."),
}


@click.group("kernels", cls=LazyGroup, lazy=READERS)
def kernels() -> None:
    """Read what was profiled: distinct kernels, launches, chart; generate C++; audit numbers.

    Profiles, replays and energy runs are made by `lab run kernels ...`.
    """
