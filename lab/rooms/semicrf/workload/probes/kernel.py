"""Probes of one backend's kernels: bits, padding, batch composition, mass, float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lab.errors import LabError
from lab.rooms.semicrf.workload.cases.case import Case, Partition, poison_free_memory
from lab.rooms.semicrf.workload.cases.solution import bits_equal, difference, mass_lines, same_bits, solve
from lab.rooms.semicrf.workload.probes.row import Row, row

REPEATS = 20
LEDGER_LIMIT = 2e-4  # float32 parameters sum over a batch; a stale message costs 1e-1 and more
PADDING = 5


Answer = tuple[bool, float, float, str]
"""Whether a probe is clean, its value, its limit, and the answer in a sentence."""


@dataclass(frozen=True)
class Bench:
    """A case, the backend under test with its partition, and the device it runs on."""

    case: Case
    backend: str
    partition: Partition
    device: torch.device

    def on_device(self, case: Case | None = None) -> Case:
        return (case or self.case).to(self.device)


def kernel_probes(bench: Bench) -> Iterator[Row]:
    """Bits, padding, poison, batch composition, mass and float64 of one backend."""
    for title, cause, probe in (
        ("same input, same bits", "race", _repeats),
        ("padding and poisoned memory", "boundary", _padding),
        ("batch order and size", "kernel", _composition),
        ("posterior mass balances", "kernel", _mass),
        ("float64 replay", "kernel", _replay),
    ):
        try:
            clean, value, limit, text = probe(bench)
        except (RuntimeError, ValueError, FloatingPointError, LabError) as error:
            words = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            clean, value, limit, text = False, math.nan, 0, words
        yield {**row(title, cause, clean, value, limit, text), "backend": bench.backend}


def _repeats(bench: Bench) -> Answer:
    case = bench.on_device()
    reference = solve(case, bench.backend, bench.partition)
    repeats = (
        3 if bench.backend == "naive" else REPEATS
    )  # the definition is slow and has one order of its sums
    apart = sum(
        not same_bits(reference, solve(case, bench.backend, bench.partition)) for _ in range(repeats - 1)
    )
    return (
        not apart,
        apart,
        0,
        f"{apart} of {repeats - 1} repeats differ from the first in bits"
        if apart
        else f"{repeats} runs, one bit pattern",
    )


def _padding(bench: Bench) -> Answer:
    """Padding, NaN included, and the former content of memory must not change a single bit."""
    plain = solve(bench.on_device(), bench.backend, bench.partition)
    poison_free_memory(bench.device)
    dirty = solve(bench.on_device().padded(PADDING, math.nan), bench.backend, bench.partition)
    frames = bench.case.score_BTC.shape[1]
    inside = (torch.arange(frames) < bench.case.lengths_B[:, None])[..., None].to(bench.device)
    unpadded = torch.where(inside, dirty.score_BTC[:, :frames], torch.zeros_like(plain.score_BTC))
    expected = torch.where(inside, plain.score_BTC, torch.zeros_like(plain.score_BTC))
    wild = dirty.first_nonfinite(bench.case.lengths_B)
    apart = not (bits_equal(dirty.logZ_B, plain.logZ_B) and bits_equal(unpadded, expected))
    text = (
        f"NaN past the ends gives {wild} not finite"
        if wild
        else "NaN past the ends changes the result"
        if apart
        else "NaN past the ends and in free memory changes no bit"
    )
    return (not (wild or apart), int(apart), 0, text)


def _composition(bench: Bench) -> Answer:
    """Each sequence alone, and the batch in reverse order, against the whole batch."""
    case = bench.on_device()
    together = solve(case, bench.backend, bench.partition).logZ_B
    order = list(range(len(together)))[::-1]
    turned = solve(case.rows(order), bench.backend, bench.partition).logZ_B.flip(0)
    alone = torch.cat([solve(case.rows([b]), bench.backend, bench.partition).logZ_B for b in order[::-1]])
    apart = int((together != turned).sum() + (together != alone).sum())
    return (
        not apart,
        apart,
        0,
        f"{apart} of {2 * len(together)} log Z change in bits"
        if apart
        else "log Z keeps its bits in any batch",
    )


def _mass(bench: Bench) -> Answer:
    case = bench.on_device()
    solution = solve(case, bench.backend, bench.partition)
    lines = mass_lines(bench.case, solution)
    name, worst = max(lines.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])
    clean = worst <= LEDGER_LIMIT and not solution.mended
    return (
        clean,
        worst,
        LEDGER_LIMIT,
        solution.mended or f"the worst line of the ledger is {name}: off by {worst:.3g}",
    )


def _replay(bench: Bench) -> Answer:
    text = difference(bench.case, solve(bench.on_device(), bench.backend, bench.partition))
    return (
        text is None,
        0 if text is None else 1,
        0,
        text or "log Z and posteriors agree with plain float64",
    )
