"""What must not change a bit: a repeat, another batch, NaN in padding and in free memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lab.rooms.semicrf.workload.cases.case import poison_free_memory
from lab.rooms.semicrf.workload.cases.solution import bits_equal, same_bits
from lab.rooms.semicrf.workload.checks.subject import Row, Subject, as_row, drawn


def repeats(subject: Subject) -> Iterator[Row]:
    shape = (8, 200, 30, 24)
    case = drawn(subject.seed + 300, shape).to(dtype=torch.float32)
    reference = subject.solve(case)
    apart = sum(not same_bits(reference, subject.solve(case)) for _ in range(subject.repeats - 1))
    yield as_row(
        "same bits again",
        shape,
        torch.float32,
        apart,
        0,
        f"{apart} of {subject.repeats - 1} repeats differ in bits",
    )


def composition(subject: Subject) -> Iterator[Row]:
    """A sequence's log Z and posteriors do not depend on the batch it is in."""
    shape = (7, 90, 12, 24)
    case = drawn(subject.seed + 310, shape).to(dtype=torch.float32)
    together = subject.solve(case)
    apart = 0
    for b in range(shape[0]):
        alone = subject.solve(case.rows([b]))
        frames = alone.score_BTC.shape[1]
        apart += not (
            bits_equal(alone.logZ_B[0], together.logZ_B[b])
            and bits_equal(alone.score_BTC[0], together.score_BTC[b, :frames])
        )
    yield as_row(
        "any batch composition",
        shape,
        torch.float32,
        apart,
        0,
        f"{apart} of {shape[0]} sequences change in bits",
    )


def poison(subject: Subject) -> Iterator[Row]:
    """NaN in padding and in free memory changes no bit."""
    for number, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + 320 + number, shape).to(dtype=torch.float32)
        plain = subject.solve(case)
        poison_free_memory(subject.device)
        dirty = subject.solve(case.padded(3, math.nan))
        inside = (torch.arange(shape[1]) < case.lengths_B[:, None])[..., None].to(subject.device)
        unpadded = torch.where(inside, dirty.score_BTC[:, : shape[1]], plain.score_BTC)
        good = bits_equal(dirty.logZ_B, plain.logZ_B) and bits_equal(unpadded, plain.score_BTC)
        wild = dirty.first_nonfinite(case.lengths_B)
        text = f"not finite: {wild}" if wild else "no bit changes" if good else "bits change"
        yield as_row("poisoned memory", shape, torch.float32, 0 if good and not wild else 1, 0, text)
