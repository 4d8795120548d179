"""Processes drawn in memory: a step of kernels on one stream, with what equal processes differ by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.compare.check.samples import Process, _process
from lab.compare.side import Work, read_works
from lab.compare.units import by_step
from tests.compare.made import trace

KERNELS = 12
OPS = ("aten::mm", "aten::gelu", "aten::native_layer_norm", "aten::add")


@dataclass(frozen=True)
class Plant:
    """What a process has more than BASE: a factor on all kernels, one on some kernels, one on all kernels of
    every n-th step, and idle time per step (us)."""

    factor: float = 1.0
    kernels: tuple[tuple[int, float], ...] = ()
    every: int = 0
    every_factor: float = 1.0
    idle_us: float = 0.0


NOTHING = Plant()


class Program:
    """One program; `draw` makes a process of it."""

    def __init__(self, folder: Path, steps: int = 8) -> None:
        sizes_us = np.geomspace(4, 60, KERNELS)
        step = [
            (OPS[index % len(OPS)], [[64 * (index + 1), 64]], f"kernel_{index}", float(us))
            for index, us in enumerate(sizes_us)
        ]
        (self.work,) = read_works(trace(folder / "program.json", [step] * steps))
        keys, which = self.work.keys
        self.kernel = np.array([int(key[3].removeprefix("kernel_")) for key in keys])[which]
        self.steps = steps

    def draw(
        self,
        rng: np.random.Generator,
        plant: Plant = NOTHING,
        *,
        own: float = 0.002,  # of a process: its speed
        each: float = 0.004,  # of a kernel in a process
        noise: float = 0.01,  # of one launch
        idle_us: float = 50.0,  # per step, with as much scatter from step to step
        idle_own: float = 0.05,  # of a process: its idle time
    ) -> Work:
        step = np.repeat(np.arange(self.steps), KERNELS)
        speed = plant.factor * np.exp(rng.normal(0, own))
        factor = speed * np.exp(rng.normal(0, each, KERNELS))[self.kernel]
        for kernel, share in plant.kernels:
            factor[self.kernel == kernel] *= share
        if plant.every:
            factor[step % plant.every == plant.every - 1] *= plant.every_factor
        dur_ns = np.rint(self.work.dur_ns * factor * np.exp(rng.normal(0, noise, len(step)))).astype(np.int64)
        mean_us = (idle_us + plant.idle_us) * np.exp(rng.normal(0, idle_own))
        gap_us = np.maximum(rng.normal(mean_us, idle_us / 2, self.steps), 1.0)
        gaps_ns = np.zeros(len(step), dtype=np.int64)
        gaps_ns[KERNELS // 2 :: KERNELS] = np.rint(1000 * gap_us)
        first = np.flatnonzero(np.diff(step, prepend=-1))
        ends_ns = np.cumsum(dur_ns + gaps_ns)
        offset_ns = np.repeat(self.work.start_ns[first] - (ends_ns - dur_ns)[first], KERNELS)
        work = replace(self.work)
        shared = {name: getattr(self.work, name) for name in ("order", "launched_ns", "_call", "keys")}
        start_ns = ends_ns - dur_ns + offset_ns
        ops = self.work.ops.with_columns(start_ns=start_ns, end_ns=start_ns + dur_ns)
        vars(work).update(shared, ops=ops)
        return work


def as_sample(work: Work) -> Process:
    """As `lab check` reads it."""
    return _process([by_step(work)])
