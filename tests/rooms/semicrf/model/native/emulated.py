"""semicrf.cu compiled as C++ with cuda_on_cpu.h, and a machine that launches it without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import torch

from lab.rooms.semicrf.model.native import cuda as native_cuda
from lab.rooms.semicrf.model.native.cuda_plan import Plan, Sizes, kernels

HEADER = Path(__file__).parent / "cuda_on_cpu.h"
SMALL = Sizes(
    4, 16, 4, stage=5, parts=4, count_frames=8, count_blocks=2, near_blocks=2, table_rows=8, narrowest=4
)
"""Sizes at which a short sequence has several of everything."""


def build(
    folder: Path,
    dtype: torch.dtype,
    wide: int = 4,
    mutant: tuple[str, str] | None = None,
    sizes: Sizes = SMALL,
    more: tuple[Any, ...] = (),
) -> ctypes.CDLL:
    """The library for these sizes and what else `source_text` takes; `mutant` is a piece of the source and
    another.
    """
    text = native_cuda.source_text(dtype, wide, sizes, *more)
    if mutant:
        assert text.count(mutant[0]) == 1, f"{mutant[0]!r} is there {text.count(mutant[0])} times"
        text = text.replace(*mutant)
    names = kernels()
    table = ", ".join(
        f"{{{name!r}, Caller<decltype(&{name}), &{name}>::call}}".replace("'", '"') for name in names
    )
    source = folder / f"kernels{len(list(folder.iterdir()))}.cpp"
    source.write_text(
        f'#include "{HEADER}"\n{text}\nconst Named kernels[] = {{{table}, {{nullptr, nullptr}}}};\n'
    )
    command = [
        "g++",
        "-std=c++17",
        "-O0",
        "-w",
        "-fPIC",
        "-shared",
        str(source),
        "-o",
        f"{source}.so",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return ctypes.CDLL(f"{source}.so")


class Emulated:
    """A machine on the CPU. `order`: 0 threads by number, 1 backwards, 2 shuffled between barriers."""

    def __init__(self, library: ctypes.CDLL, order: int = 0) -> None:
        self.library, self.order = library, order
        self.launched: list[str] = []

    def fetched(self, value: torch.Tensor) -> torch.Tensor:
        """The values as they are now: a tensor gives its numbers as numpy, too."""
        return value.clone()

    def run(self, plan: Plan, **tensors: torch.Tensor) -> None:
        words = plan.words(tensors)
        for launch in plan.launches:
            self.launched.append(launch.kernel)
            grid = (*launch.grid, 1, 1)[:3]
            _slots, addresses = launch.arguments(words)
            status = self.library.emulate(
                launch.kernel.encode(), *grid, launch.threads, addresses, self.order
            )
            reason = ("", "no such kernel", "threads wait for a barrier that never comes")[status]
            assert status == 0, f"{launch.kernel}: {reason}"
