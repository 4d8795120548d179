"""The probes of a diagnosis: each asks one question whose answer points at one cause.

A probe gives rows {probe, cause, backend, clean, value, limit, text}. `cause` is what a dirty answer speaks for: input,
boundary, objective, race, kernel, precision or optimiser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lab.rooms.semicrf.model.cases import (
    Case,
    Partition,
    bits_equal,
    difference,
    ledger,
    poison_free_memory,
    same_bits,
    solve,
)
from lab.rooms.semicrf.model.corpus import Corpus
from lab.rooms.semicrf.model.guards import seed_log_partition
from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.linter import lint_objective

Row = dict[str, Any]
REPEATS = 20
LEDGER_LIMIT = 2e-4  # float32 parameters sum over a batch; a stale message costs 1e-1 and more
PADDING = 5
DRIFT_STEPS = 100
GUARD_FRAMES = 2000
GROWTH = (50, 100, 200, 400)  # frames at which float32 is held against float64


@dataclass(frozen=True)
class Bench:
    """A case, the backend under test (with its partition) and the device it is tried on."""

    case: Case
    backend: str
    partition: Partition
    device: torch.device

    def on_device(self, case: Case | None = None) -> Case:
        return (case or self.case).to(self.device)


def data_probes(corpus: Corpus, longest: int) -> Iterator[Row]:
    """Look at every utterance before any model does."""
    wild, empty, labels, over = [], [], [], 0
    for split in ("train", "dev", "test"):
        for utterance in getattr(corpus, split):
            bad = ~np.isfinite(utterance.features)
            if bad.any():
                t, d = np.argwhere(bad)[0].tolist()
                wild.append(
                    f"{split} utterance {utterance.name}: frame {t}, feature {d} is {utterance.features[t, d]}"
                )
            if not len(utterance.features):
                empty.append(f"{split} utterance {utterance.name}")
            labels += [
                utterance.name for s, e, c in utterance.segments if not 0 <= c < len(corpus.phones) or e <= s
            ]
            over += sum(1 for s, e, _ in utterance.segments if e - s > longest)
    yield row(
        "features are finite", "input", not wild, len(wild), 0, _some(wild) or "every feature is finite"
    )
    yield row(
        "lengths are positive",
        "boundary",
        not empty,
        len(empty),
        0,
        f"length 0: {_some(empty)}" if empty else "every utterance has a frame",
    )
    yield row(
        "labels are in range", "input", not labels, len(labels), 0, _some(labels) or "every label is a phone"
    )
    yield row(
        "gold fits the support",
        "input",
        True,
        over,
        0,
        f"{over} gold segments are longer than {longest} frames and are split"
        if over
        else "no gold segment is too long",
    )


def score_probes(case: Case) -> Iterator[Row]:
    """Scores of the model as it stands: -inf is a mask and legal, but not for every label of a frame."""
    inside = torch.arange(case.score_BTC.shape[1]) < case.lengths_B[:, None]
    score = case.score_BTC.cpu()
    wild = (torch.isnan(score) | (score == math.inf)).any(2) & inside
    closed = (score == -math.inf).all(2) & inside
    yield row(
        "scores are finite or -inf",
        "input",
        not bool(wild.any()),
        int(wild.sum()),
        0,
        f"first at sequence {_place(wild)}" if bool(wild.any()) else "no NaN, no +inf",
    )
    yield row(
        "every frame allows a label",
        "input",
        not bool(closed.any()),
        int(closed.sum()),
        0,
        f"all labels are -inf at sequence {_place(closed)}: no segmentation is possible"
        if bool(closed.any())
        else "no frame has -inf for every label",
    )


def objective_probes(head: SemiCRF) -> Iterator[Row]:
    """Is the loss a probability? And does a small training with it come to rest?"""
    for finding in lint_objective(head):
        yield row(
            f"linter: {finding.check}", "objective", finding.ok, finding.value, finding.limit, finding.text
        )
    yield drift_probe(head)


def drift_probe(head: SemiCRF) -> Row:
    """Train parameters alone on a tiny problem: with a probability the gradient falls as they grow, and NLL >= 0."""
    dice = torch.Generator().manual_seed(3)
    classes, longest, frames = 4, 6, 20
    state = torch.random.get_rng_state()
    torch.manual_seed(3)
    small = SemiCRF(classes, longest, backend="torch")
    torch.random.set_rng_state(state)
    small.partition, small.gold = head.partition, head.gold
    score = 0.1 * torch.randn(4, frames, classes, generator=dice)
    labels = torch.randint(0, classes, (4, frames // 5), generator=dice).repeat_interleave(5, dim=1)
    optimizer = torch.optim.Adam(small.parameters(), lr=0.2)
    losses, norms = [], []
    for _ in range(DRIFT_STEPS):
        optimizer.zero_grad()
        loss = small.loss(score, None, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        norms.append(
            math.sqrt(sum(float(p.grad.pow(2).sum()) for p in small.parameters() if p.grad is not None))
        )
        optimizer.step()
    greatest = max(small.magnitudes())
    clean = min(losses) >= -1e-6
    text = (
        f"{DRIFT_STEPS} steps on a tiny problem: loss {losses[0]:.2f} to {losses[-1]:.2f}, gradient norm "
        f"{norms[0]:.2f} to {norms[-1]:.2f}, greatest parameter {greatest:.1f}"
    )
    return row(
        "parameters come to rest",
        "objective",
        clean,
        min(losses),
        0.0,
        text
        + (
            "" if clean else ": below 0, so the loss is no likelihood and pulls the parameters on without end"
        ),
    )


def kernel_probes(bench: Bench) -> Iterator[Row]:
    """Bits, padding, poison, batch composition, mass and float64 of one backend."""
    for probe in (_repeats, _padding, _composition, _mass, _replay):
        try:
            found = probe(bench)
        except (RuntimeError, ValueError, FloatingPointError) as error:
            words = str(error).splitlines()[0]
            found = row(
                probe.__name__.strip("_"), "kernel", False, math.nan, 0, f"{type(error).__name__}: {words}"
            )
        yield {**found, "backend": bench.backend}


def _repeats(bench: Bench) -> Row:
    case = bench.on_device()
    first = solve(case, bench.backend, bench.partition)
    repeats = (
        3 if bench.backend == "naive" else REPEATS
    )  # the definition is slow and has one order of its sums
    apart = sum(not same_bits(first, solve(case, bench.backend, bench.partition)) for _ in range(repeats - 1))
    return row(
        "same input, same bits",
        "race",
        not apart,
        apart,
        0,
        f"{apart} of {repeats - 1} repeats differ from the first in bits"
        if apart
        else f"{repeats} runs, one bit pattern",
    )


def _padding(bench: Bench) -> Row:
    """What lies past a sequence's end, NaN too, and what lay in memory before, must not change one bit."""
    plain = solve(bench.on_device(), bench.backend, bench.partition)
    poison_free_memory(bench.device)
    dirty = solve(bench.on_device().padded(PADDING, math.nan), bench.backend, bench.partition)
    frames = bench.case.score_BTC.shape[1]
    inside = (torch.arange(frames) < bench.case.lengths_B[:, None])[..., None].to(bench.device)
    kept = torch.where(inside, dirty.score_BTC[:, :frames], torch.zeros_like(plain.score_BTC))
    before = torch.where(inside, plain.score_BTC, torch.zeros_like(plain.score_BTC))
    wild = dirty.first_nonfinite(bench.case.lengths_B)
    apart = not (bits_equal(dirty.logZ_B, plain.logZ_B) and bits_equal(kept, before))
    text = (
        f"NaN past the ends gives {wild} not finite"
        if wild
        else "NaN past the ends changes the result"
        if apart
        else "NaN past the ends and in free memory changes no bit"
    )
    return row("padding and poisoned memory", "boundary", not (wild or apart), int(apart), 0, text)


def _composition(bench: Bench) -> Row:
    """Each sequence alone, and the batch turned round, against the whole batch."""
    case = bench.on_device()
    whole = solve(case, bench.backend, bench.partition).logZ_B
    order = list(range(len(whole)))[::-1]
    turned = solve(case.rows(order), bench.backend, bench.partition).logZ_B.flip(0)
    alone = torch.cat([solve(case.rows([b]), bench.backend, bench.partition).logZ_B for b in order[::-1]])
    apart = int((whole != turned).sum() + (whole != alone).sum())
    return row(
        "batch order and size",
        "kernel",
        not apart,
        apart,
        0,
        f"{apart} of {2 * len(whole)} log Z change in bits" if apart else "log Z keeps its bits in any batch",
    )


def _mass(bench: Bench) -> Row:
    case = bench.on_device()
    lines = ledger(bench.case, solve(case, bench.backend, bench.partition))
    name, worst = max(lines.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])
    clean = worst <= LEDGER_LIMIT
    return row(
        "posterior mass balances",
        "kernel",
        clean,
        worst,
        LEDGER_LIMIT,
        f"the worst line of the ledger is {name}: off by {worst:.3g}",
    )


def _replay(bench: Bench) -> Row:
    text = difference(bench.case, solve(bench.on_device(), bench.backend, bench.partition))
    return row(
        "float64 replay",
        "kernel",
        text is None,
        0 if text is None else 1,
        0,
        text or "log Z and posteriors agree with plain float64",
    )


def precision_rows(bench: Bench) -> Iterator[Row]:
    """|d log Z| against float64 as a sequence grows: rounding grows smoothly, a fault jumps."""
    dice = torch.Generator().manual_seed(5)
    classes, longest = bench.case.score_BTC.shape[2], len(bench.case.duration_KC)
    for frames in GROWTH:
        score = torch.randn(1, frames, classes, generator=dice)
        case = replace(bench.case, score_BTC=score, lengths_B=torch.tensor([frames]))
        exact = solve(case.to("cpu", torch.float64), "torch").logZ_B
        found = solve(case.to(bench.device, torch.float32), bench.backend).logZ_B.double().cpu()
        gap, limit = float((found - exact).abs().max()), 1e-8 * float(exact.abs().max()) + 2e-5
        yield {
            **row(
                f"float32 at T={frames}, K={longest}",
                "precision",
                gap <= limit,
                gap,
                limit,
                f"log Z is {gap:.2g} from float64",
            ),
            "backend": bench.backend,
        }


def guard_rows(case: Case) -> Iterator[dict[str, Any]]:
    """What the guide's guards change, on the case at hand and where they bite: a quantity, exact, and with guards."""
    frames = GUARD_FRAMES
    dice = torch.Generator().manual_seed(7)
    classes = case.score_BTC.shape[2]
    small = replace(
        case.to("cpu", torch.float32),
        score_BTC=case.score_BTC[:1, : int(case.lengths_B[0])].cpu().float(),
        lengths_B=case.lengths_B[:1],
    )
    long = replace(
        small,
        score_BTC=torch.randn(1, frames, classes, generator=dice) + 2.0,
        lengths_B=torch.tensor([frames]),
    )
    closed = replace(small, duration_KC=torch.full_like(small.duration_KC, -math.inf))
    for name, one in (
        ("a batch of this run", small),
        (f"T={frames}: one cumulative sum", long),
        ("no duration is allowed", closed),
    ):
        exact = solve(one.to(dtype=torch.float64), "torch")
        guarded = solve(one, "guards", seed_log_partition)
        yield {
            "case": name,
            "logZ_exact": _number(exact.logZ_B[0]),
            "logZ_guards": _number(guarded.logZ_B[0]),
            "posterior_error": float((guarded.score_BTC.double() - exact.score_BTC).abs().max()),
            "mass_error_exact": ledger(one, exact)["coverage"],
            "mass_error_guards": ledger(one, guarded)["coverage"],
            "transition_gradient_error": float(
                (guarded.transition_CC.double() - exact.transition_CC).abs().max()
            ),
        }


def row(probe: str, cause: str, clean: bool, value: float, limit: float, text: str) -> Row:
    return {
        "probe": probe,
        "cause": cause,
        "backend": "",
        "clean": bool(clean),
        "value": _number(value),
        "limit": limit,
        "text": text,
    }


def _number(value: float | torch.Tensor) -> float | None:
    """JSON has no NaN and no infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def _place(found: torch.Tensor) -> str:
    b, t = found.nonzero()[0].tolist()
    return f"{b}, frame {t}"


def _some(texts: list[str], most: int = 3) -> str:
    return "; ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
