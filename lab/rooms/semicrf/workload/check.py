"""This device's kernels of one backend against plain float64; runs where the GPU is.

    python -m lab.rooms.semicrf.workload.check --config check.json --backend triton --out DIR

Writes checks.json: a row per check with its value beside its limit. A check that raises is a failed row, and the others
go on. Limits are those of docs/semicrf.md.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.rooms.semicrf.config import CheckConfig
from lab.rooms.semicrf.model import api, naive
from lab.rooms.semicrf.model.cases import (
    Case,
    Solution,
    bits_equal,
    ledger,
    poison_free_memory,
    random_case,
    same_bits,
    solve,
)
from lab.rooms.semicrf.model.ledger import mass_by_durations
from lab.rooms.semicrf.model.problem import make_problem
from lab.rooms.semicrf.workload.train import set_up_logging, write_environment
from lab.workload.rank import choose_device
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.semicrf")
Row = dict[str, Any]
# (B, T, K, C): one frame, one label, K > T, K = 1, labels that are no power of two, more labels than a warp.
SMALL = (
    (1, 1, 1, 1),
    (2, 7, 3, 2),
    (3, 9, 20, 5),
    (2, 30, 8, 1),
    (4, 33, 8, 33),
    (3, 40, 16, 39),
    (2, 64, 1, 17),
)
LONG = ((4, 500, 30, 24), (2, 2000, 100, 16))
FORBIDDEN = -math.inf


@dataclass(frozen=True)
class Subject:
    """What is checked, where, and how hard."""

    backend: str
    device: torch.device
    interpreted: bool
    batches: int
    seed: int

    @property
    def repeats(self) -> int:
        return 100 if self.device.type == "cuda" else 3 if self.interpreted else 10

    def solve(self, case: Case) -> Solution:
        return solve(case.to(self.device), self.backend)

    def shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        return SMALL[:3] if self.interpreted else SMALL


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.check")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--backend", required=True)
    args, context = start(parser, argv)
    set_up_logging(context)
    device = choose_device(context)
    write_environment(args.out, device, context)
    config = read_config(args.config, CheckConfig)
    interpreted = args.backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    batches = min(config.batches, 5) if interpreted else config.batches
    subject = Subject(
        args.backend, torch.device("cpu") if interpreted else device, interpreted, batches, config.seed
    )
    rows = list(all_checks(subject))
    write_json(args.out / "checks.json", {"device": str(device), "interpreted": interpreted, "checks": rows})


def all_checks(subject: Subject) -> Iterator[Row]:
    """Every check in turn; one that raises is a failed row."""
    for check in every_check():
        try:
            for row in check(subject):
                log.info(
                    "%-4s %-28s %-18s %-8s %s",
                    row["verdict"],
                    row["check"],
                    row["shape"],
                    row["dtype"],
                    row["text"],
                )
                yield row
        except Exception as error:  # noqa: BLE001  a crash of one check is its result
            words = (str(error).splitlines() or [""])[0]
            yield made(check.__name__, "", "", None, None, f"{type(error).__name__}: {words}", ok=False)


def every_check() -> tuple[Callable[[Subject], Iterator[Row]], ...]:
    return (
        accuracy,
        accuracy_long,
        ledgers,
        decoding,
        repeats,
        composition,
        poison,
        infeasible,
        hostile,
        entropies,
        sampling,
    )


def accuracy(subject: Subject) -> Iterator[Row]:
    """log Z and every gradient against the definition in float64, float64 and float32 inputs."""
    for at, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + at, shape)
        for dtype in (torch.float64, torch.float32):
            given = case.to(dtype=dtype)
            yield from compared(
                subject.solve(given), solve(given.to(dtype=torch.float64), "naive"), shape, dtype
            )


def accuracy_long(subject: Subject) -> Iterator[Row]:
    """Longer than the definition can follow: against the factorised torch form in float64."""
    for at, shape in enumerate(() if subject.interpreted or subject.backend in ("torch", "naive") else LONG):
        case = drawn(subject.seed + 50 + at, shape)
        for dtype in (torch.float64, torch.float32):
            given = case.to(dtype=dtype)
            yield from compared(
                subject.solve(given), solve(given.to(dtype=torch.float64), "torch"), shape, dtype
            )


def compared(found: Solution, exact: Solution, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Row]:
    wide = dtype == torch.float64
    gap = (found.logZ_B.double().cpu() - exact.logZ_B.double()).abs()
    allowed = exact.logZ_B.abs() * (1e-12 if wide else 1e-8) + (1e-11 if wide else 2e-5)
    at = int((gap / allowed).argmax())
    yield made("log Z", shape, dtype, float(gap[at]), float(allowed[at]), f"|d log Z| {float(gap[at]):.2g}")
    for name, limit in (
        ("score_BTC", 1e-10 if wide else 2e-5),
        ("transition_CC", 1e-10 if wide else 1e-5),
        ("duration_KC", 1e-10 if wide else 1e-5),
    ):
        mine, right = getattr(found, name).double().cpu(), getattr(exact, name)
        scale = 1.0 if name == "score_BTC" else max(1.0, float(right.abs().max()))
        worst = float((mine - right).abs().max()) / scale
        title = "posteriors" if name == "score_BTC" else f"gradient of {name.split('_')[0]}"
        yield made(title, shape, dtype, worst, limit, f"worst {worst:.2g}")


def ledgers(subject: Subject) -> Iterator[Row]:
    """Posterior mass balances; parameter gradients are float32 sums over the batch, so the limit is float32's."""
    for at, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + 100 + at, shape).to(dtype=torch.float32)
        lines = ledger(case, subject.solve(case))
        name, worst = max(lines.items(), key=lambda item: item[1])
        yield made("ledger", shape, torch.float32, worst, 2e-5, f"the worst line is {name}: {worst:.2g}")
        yield watched_mass(subject, case, shape)


def watched_mass(subject: Subject, case: Case, shape: tuple[int, ...]) -> Row:
    """What the alarm looks at in training: the mass of the worst frame as the backend itself found it."""
    on = case.to(subject.device)
    found = api.posteriors(
        on.score_BTC,
        on.transition_CC,
        on.duration_KC,
        case.lengths_B,
        start_C=on.start_C,
        end_C=on.end_C,
        backend=subject.backend,
    )
    covered_B = mass_by_durations(found.duration_BKC, case.lengths_B.to(subject.device), found.log_z_B)
    worst = float(torch.maximum(found.mass_error_B, covered_B).max())
    return made("posterior mass", shape, torch.float32, worst, 2e-5, f"worst sequence is off by {worst:.2g}")


def decoding(subject: Subject) -> Iterator[Row]:
    """The best score is the definition's, and the segments returned have it."""
    for at, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + 200 + at, shape)
        on = case.to(subject.device)
        scores, paths = api.viterbi(
            on.score_BTC,
            on.transition_CC,
            on.duration_KC,
            case.lengths_B,
            start_C=on.start_C,
            end_C=on.end_C,
            backend=subject.backend,
        )
        problem = make_problem(
            case.score_BTC, case.transition_CC, case.duration_KC, case.lengths_B, case.start_C, case.end_C
        )
        right, _ = naive.viterbi(problem)
        own = torch.stack([naive.path_score(problem, b, path) for b, path in enumerate(paths)])
        worst = float(torch.maximum((scores.double().cpu() - right).abs(), (own - right).abs()).max())
        yield made("viterbi", shape, torch.float64, worst, 1e-9, f"scores and paths within {worst:.2g}")


def repeats(subject: Subject) -> Iterator[Row]:
    shape = subject.shapes()[-1] if subject.interpreted else (8, 200, 30, 24)
    case = drawn(subject.seed + 300, shape).to(dtype=torch.float32)
    first = subject.solve(case)
    apart = sum(not same_bits(first, subject.solve(case)) for _ in range(subject.repeats - 1))
    yield made(
        "same bits again",
        shape,
        torch.float32,
        apart,
        0,
        f"{apart} of {subject.repeats - 1} repeats differ in bits",
    )


def composition(subject: Subject) -> Iterator[Row]:
    """A sequence's log Z and posteriors do not depend on the batch it is in."""
    shape = subject.shapes()[2]
    shape = (5, *shape[1:]) if subject.interpreted else (7, 90, 12, 24)
    case = drawn(subject.seed + 310, shape).to(dtype=torch.float32)
    whole = subject.solve(case)
    apart = 0
    for b in range(shape[0]):
        alone = subject.solve(case.rows([b]))
        frames = alone.score_BTC.shape[1]
        apart += not (
            bits_equal(alone.logZ_B[0], whole.logZ_B[b])
            and bits_equal(alone.score_BTC[0], whole.score_BTC[b, :frames])
        )
    yield made(
        "any batch composition",
        shape,
        torch.float32,
        apart,
        0,
        f"{apart} of {shape[0]} sequences change in bits",
    )


def poison(subject: Subject) -> Iterator[Row]:
    """NaN in padding and in free memory changes no bit."""
    for at, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + 320 + at, shape).to(dtype=torch.float32)
        plain = subject.solve(case)
        poison_free_memory(subject.device)
        dirty = subject.solve(case.padded(3, math.nan))
        inside = (torch.arange(shape[1]) < case.lengths_B[:, None])[..., None].to(subject.device)
        kept = torch.where(inside, dirty.score_BTC[:, : shape[1]], plain.score_BTC)
        good = bits_equal(dirty.logZ_B, plain.logZ_B) and bits_equal(kept, plain.score_BTC)
        wild = dirty.first_nonfinite(case.lengths_B)
        text = f"not finite: {wild}" if wild else "no bit changes" if good else "bits change"
        yield made("poisoned memory", shape, torch.float32, 0 if good and not wild else 1, 0, text)


def infeasible(subject: Subject) -> Iterator[Row]:
    """What forbids every segmentation gives log Z = -inf and gradients 0; its neighbours in the batch are untouched."""
    case = drawn(subject.seed + 400, (3, 9, 4, 3))
    case = replace(case, lengths_B=torch.tensor([9, 7, 5]))
    score = case.score_BTC.clone()
    score[1, 3] = FORBIDDEN
    closed = {
        "a frame that no label may cover": replace(case, score_BTC=score),
        "no duration at all": replace(case, duration_KC=torch.full_like(case.duration_KC, FORBIDDEN)),
        "no start": replace(case, start_C=torch.full_like(case.start_C, FORBIDDEN)),
    }
    for name, one in closed.items():
        for dtype in (torch.float64, torch.float32):
            given = one.to(dtype=dtype)
            found, exact = subject.solve(given), solve(given.to(dtype=torch.float64), "naive")
            wrong = int((torch.isneginf(found.logZ_B.cpu()) != torch.isneginf(exact.logZ_B)).sum())
            dead = torch.isneginf(exact.logZ_B)
            wild = found.first_nonfinite(given.lengths_B)
            mass = float(found.score_BTC.cpu()[dead].abs().max()) if bool(dead.any()) else 0.0
            text = (
                f"not finite: {wild}" if wild else f"{wrong} sequences misjudged, greatest gradient {mass:g}"
            )
            yield made(
                f"infeasible: {name}",
                (3, 9, 4, 3),
                dtype,
                wrong + mass,
                0,
                text,
                ok=not (wrong or mass or wild),
            )


def hostile(subject: Subject) -> Iterator[Row]:
    """Random batches of the worst kind: not one NaN, no probability beyond 1."""
    dice = torch.Generator().manual_seed(subject.seed)
    wild, beyond, first = 0, 0.0, ""
    for batch in range(subject.batches):
        case, kinds = hostile_case(dice, 6 if subject.interpreted else 24)
        found = subject.solve(case)
        bad = found.first_nonfinite(case.lengths_B)
        if bad:
            wild += 1
            first = first or f"; first in batch {batch} ({kinds}): {bad}"
        beyond = max(beyond, float(torch.nan_to_num(found.score_BTC).max()) - 1)
    yield made(
        "hostile batches",
        "",
        torch.float32,
        wild,
        0,
        f"{wild} of {subject.batches} with a NaN or +inf{first}",
    )
    yield made("probabilities at most 1", "", torch.float32, beyond, 1e-4, f"greatest excess {beyond:.2g}")


def hostile_case(dice: torch.Generator, frames: int = 24) -> tuple[Case, str]:
    """±1e30, -inf masks, length 1, K > T, C = 1, grammar rows with no way out; -> (case, what is hostile in it)."""

    def roll(high: int) -> int:
        return int(torch.randint(0, high, (1,), generator=dice))

    shape = (1 + roll(4), 1 + roll(frames), 1 + roll(30), 1 + roll(9))
    case = random_case(dice, *shape, scale=(1.0, 30.0, 1e4)[roll(3)], dtype=torch.float32)
    changes: dict[str, Callable[[Case], Case]] = {
        "1e30": lambda c: replace(c, score_BTC=c.score_BTC.masked_fill(chance(c.score_BTC, dice), 1e30)),
        "-1e30": lambda c: replace(c, score_BTC=c.score_BTC.masked_fill(chance(c.score_BTC, dice), -1e30)),
        "masked scores": lambda c: replace(
            c, score_BTC=c.score_BTC.masked_fill(chance(c.score_BTC, dice), FORBIDDEN)
        ),
        "masked transitions": lambda c: replace(
            c, transition_CC=c.transition_CC.masked_fill(chance(c.transition_CC, dice, 0.5), FORBIDDEN)
        ),
        "masked durations": lambda c: replace(
            c, duration_KC=c.duration_KC.masked_fill(chance(c.duration_KC, dice, 0.5), FORBIDDEN)
        ),
        "empty grammar row": lambda c: replace(c, transition_CC=emptied(c.transition_CC)),
        "length 1": lambda c: replace(c, lengths_B=torch.ones_like(c.lengths_B)),
        "NaN padding": lambda c: c.padded(2, math.nan),
    }
    chosen = [name for name in changes if roll(3) == 0]
    for name in chosen:
        case = changes[name](case)
    return case, ", ".join(chosen) or "plain"


def entropies(subject: Subject) -> Iterator[Row]:
    """H against the enumeration of every segmentation."""
    shape = (2, 5, 3, 2)
    case = replace(drawn(subject.seed + 500, shape), lengths_B=torch.tensor([5, 4]))
    on = case.to(subject.device)
    found = api.entropy(
        on.score_BTC,
        on.transition_CC,
        on.duration_KC,
        case.lengths_B,
        start_C=on.start_C,
        end_C=on.end_C,
        backend=subject.backend,
    )
    problem = make_problem(
        case.score_BTC, case.transition_CC, case.duration_KC, case.lengths_B, case.start_C, case.end_C
    )
    right = []
    for b in range(2):
        logs = torch.log_softmax(naive.enumerate_segmentations(problem, b)[1], 0)
        right.append(-(logs.exp() * logs).sum())
    worst = float((found.double().cpu() - torch.stack(right)).abs().max())
    yield made("entropy", shape, torch.float64, worst, 1e-10, f"within {worst:.2g} of the enumeration")


def sampling(subject: Subject) -> Iterator[Row]:
    """Frequencies of 2,000 samples against posteriors: within 5 standard deviations at every frame and label."""
    case = drawn(subject.seed + 600, (1, 8, 4, 3))
    count = 200 if subject.interpreted else 2000
    paths = api.sample(
        case.score_BTC,
        case.transition_CC,
        case.duration_KC,
        start_C=case.start_C,
        end_C=case.end_C,
        samples=count,
        seed=subject.seed,
    )[0]
    seen = torch.zeros(8, 3, dtype=torch.float64)
    for path in paths:
        for begin, end, label in path:
            seen[begin:end, label] += 1 / count
    right = solve(case, "naive").score_BTC[0]
    sigma = (right * (1 - right) / count).sqrt().clamp(min=1e-3)
    worst = float(((seen - right).abs() / sigma).max())
    yield made(
        "samples",
        (1, 8, 4, 3),
        torch.float64,
        worst,
        5.0,
        f"frequencies within {worst:.1f} standard deviations",
    )


def drawn(seed: int, shape: tuple[int, ...]) -> Case:
    batch, frames, longest, classes = shape
    return random_case(torch.Generator().manual_seed(seed), batch, frames, longest, classes)


def chance(values: Tensor, dice: torch.Generator, share: float = 0.1) -> Tensor:
    return torch.rand(values.shape, generator=dice) < share


def emptied(transition: Tensor) -> Tensor:
    found = transition.clone()
    found[0] = FORBIDDEN
    return found


def made(
    check: str,
    shape: Any,
    dtype: Any,
    value: float | None,
    limit: float | None,
    text: str,
    *,
    ok: bool | None = None,
) -> Row:
    """A row; without `ok` it passes when the value is there and within its limit."""
    good = ok if ok is not None else value is not None and limit is not None and value <= limit
    number = None if value is None or not math.isfinite(value) else float(value)
    return {
        "check": check,
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).replace("torch.", ""),
        "value": number,
        "limit": limit,
        "verdict": "pass" if good else "fail",
        "text": text,
    }


if __name__ == "__main__":
    main()
