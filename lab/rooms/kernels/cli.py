"""`lab run kernels` runs on the GPU; `lab kernels` reads what it recorded, without GPU or torch.

The readers take a run of `lab run kernels profile`, or bare Kineto traces of any torch and vendor.
"""

from __future__ import annotations

import click

from lab.terminal.group import LazyGroup

RUN = {
    "profile": (
        "lab.rooms.kernels.run_cli:profile",
        "Generate text under the profiler and the recorder.",
    ),
    "replay": (
        "lab.rooms.kernels.run_cli:replay",
        "Run the op of every launch again, and prove that the kernel is the same.",
    ),
    "energy": ("lab.rooms.kernels.run_cli:energy", "Joules per launch, per kernel, per token."),
}


@click.group("kernels", cls=LazyGroup, lazy=RUN)
def run_kernels() -> None:
    """Every launch of a model: profiled, replayed, measured in joules."""


READERS = {
    "unique": (
        "lab.rooms.kernels.catalogue.cli:unique",
        "Distinct launches (or every one): kernel, geometry, op, arguments, counts, times.",
    ),
    "gantt": (
        "lab.rooms.kernels.catalogue.cli:gantt",
        "A chart of compute, communication and copies by stream.",
    ),
    "cpp": ("lab.rooms.kernels.cpp.cli:cpp", "A C++ program that replays the catalogue."),
    "energy": ("lab.rooms.kernels.energy.log_cli:energy_of_log", "Joules of a power log over a window."),
    "audit": ("lab.rooms.kernels.audit.cli:audit", "Refuse impossible numbers, with the reason."),
}


@click.group("kernels", cls=LazyGroup, lazy=READERS)
def kernels() -> None:
    """Read profiles: distinct kernels, every launch, chart; generate C++; audit numbers.

    Profiles, replays and energy runs are made by `lab run kernels ...`.
    """
