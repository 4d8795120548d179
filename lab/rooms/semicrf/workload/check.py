"""This device's kernels of one backend against plain float64; runs where the GPU is.

    python -m lab.rooms.semicrf.workload.check --config check.json --backend auto --out DIR

Writes checks.json: one row per check with its value beside its limit. A check that raises is a failed row,
and the others go on. Limits are those of docs/semicrf.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.config import CheckConfig
from lab.rooms.semicrf.model import api, naive
from lab.rooms.semicrf.model.autograd import log_partition
from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.ledger import LOG_Z_TOLERANCE
from lab.rooms.semicrf.model.problem import Posteriors, Problem, inside, make_problem
from lab.rooms.semicrf.model.segments import marked
from lab.rooms.semicrf.workload.cases import (
    Case,
    Row,
    Solution,
    bits_equal,
    finite_number,
    poison_free_memory,
    random_case,
    same_bits,
    solve,
    words_of,
)
from lab.rooms.semicrf.workload.common import begin, log
from lab.workload.start import write_json

# (B, T, K, C): one frame, one label, K > T, K = 1, labels not a power of two, more labels than a warp,
# than one tile of a product.
SMALL = (
    (1, 1, 1, 1),
    (2, 7, 3, 2),
    (3, 9, 20, 5),
    (2, 30, 8, 1),
    (4, 33, 8, 33),
    (3, 40, 16, 39),
    (2, 64, 1, 17),
    (2, 12, 5, 100),
)
# Many frames, durations beyond what a block of threads holds at once, more sequences than processors.
LONG = ((4, 500, 30, 24), (2, 2000, 100, 16), (1, 3000, 700, 5), (300, 30, 7, 6))
FORBIDDEN = -math.inf
GRADIENTS = {"score_BTC": 2e-5, "transition_CC": 1e-5, "duration_KC": 1e-5}
"""Limits in float32; in float64 1e-10."""
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Errors of any value of a hostile case, relative beyond 1."""


def main(argv: Sequence[str] | None = None) -> None:
    args, config, device = begin("check", CheckConfig, argv, "--backend")
    subject = Subject(args.backend, device, config.batches, config.seed)
    ran = api.resolve_backend(args.backend, torch.zeros(1, 1, 1, device=device))
    rows = list(all_checks(subject))
    write_json(args.out / "checks.json", {"device": str(device), "backend": ran, "checks": rows})


@dataclass(frozen=True)
class Subject:
    """The backend under test, its device, and how many cases it gets."""

    backend: str
    device: torch.device
    batches: int
    seed: int

    @property
    def repeats(self) -> int:
        return 100 if self.device.type == "cuda" else 10

    def solve(self, case: Case) -> Solution:
        return solve(case.to(self.device), self.backend)


def all_checks(subject: Subject) -> Iterator[Row]:
    """Every check in turn; one that raises is a failed row."""
    for check in every_check():
        try:
            for row in check(subject):
                names = ("verdict", "check", "shape", "dtype", "text")
                log.info("%-4s %-28s %-18s %-8s %s", *(row[name] for name in names))
                yield row
        except Exception as error:  # noqa: BLE001  a crash of one check is its result
            yield as_row(check.__name__, "", "", None, None, words_of(error), ok=False)


def every_check() -> tuple[Callable[[Subject], Iterator[Row]], ...]:
    return (
        *(accuracy, accuracy_long, audit, head_loss, decoding),
        *(repeats, composition, poison, infeasible, hostile),
    )


def as_row(
    check: str,
    shape: Any,
    dtype: Any,
    value: float | None,
    limit: float | None,
    text: str,
    *,
    ok: bool | None = None,
) -> Row:
    """A row; without `ok` it passes if the value is there and within its limit."""
    good = ok if ok is not None else value is not None and limit is not None and value <= limit
    return {
        "check": check,
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).replace("torch.", ""),
        "value": None if value is None else finite_number(value),
        "limit": limit,
        "verdict": "pass" if good else "fail",
        "text": text,
    }


# log Z, gradients, the head's loss and the best segmentation against the definition.


def accuracy(subject: Subject) -> Iterator[Row]:
    """log Z and every gradient against the definition in float64, float64 and float32 inputs."""
    return accurate(subject, subject.seed, SMALL, "naive")


def accuracy_long(subject: Subject) -> Iterator[Row]:
    """Too long for the definition: against the factorised torch form in float64."""
    shapes = () if subject.backend in ("torch", "naive") else LONG
    return accurate(subject, subject.seed + 50, shapes, "torch")


def accurate(subject: Subject, seed: int, shapes: Sequence[tuple[int, ...]], reference: str) -> Iterator[Row]:
    for number, shape in enumerate(shapes):
        case = random_case(seed + number, shape)
        if shape[2] > 100:  # else hardly a segment lasts as long
            case = replace(case, transition_CC=case.transition_CC - shape[2] ** 0.5)
        for dtype in (torch.float64, torch.float32):
            typed = case.to(dtype=dtype)
            exact = solve(typed.to(dtype=torch.float64), reference)
            yield from compared(subject.solve(typed), exact, shape, dtype)


def compared(
    solution: Solution, exact: Solution, shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Row]:
    relative, absolute = LOG_Z_TOLERANCE[dtype]
    gap = (solution.logZ_B.double().cpu() - exact.logZ_B.double()).abs()
    allowed = exact.logZ_B.abs() * relative + absolute
    row = int((gap / allowed).argmax())
    worst, limit = float(gap[row]), float(allowed[row])
    yield as_row("log Z", shape, dtype, worst, limit, f"|d log Z| {worst:.2g}")
    for name, limit in GRADIENTS.items():
        value, right = getattr(solution, name).double().cpu(), getattr(exact, name)
        scale = 1.0 if name == "score_BTC" else max(1.0, float(right.abs().max()))
        worst = float((value - right).abs().max()) / scale
        title = "posteriors" if name == "score_BTC" else f"gradient of {name.split('_')[0]}"
        limit = 1e-10 if dtype == torch.float64 else limit
        yield as_row(title, shape, dtype, worst, limit, f"worst {worst:.2g}")


def audit(subject: Subject) -> Iterator[Row]:
    """A planted fault is noticed, and the gradients that come out are right all the same.

    Stale messages where the form audits its own counts, stale counts elsewhere.
    """
    if subject.backend == "naive":
        return  # the definition has no counts of its own to audit
    shape = (3, 9, 4, 3)
    case = random_case(subject.seed + 600, shape)
    on = case.to(subject.device)
    audits_itself = on.score_BTC.is_cuda and api.resolve_backend(subject.backend, on.score_BTC) == "native"
    solution = solve(on, partial(stale_messages if audits_itself else stale_counts, backend=subject.backend))
    fault = "messages" if audits_itself else "counts"
    text = f"planted stale {fault} {'were noticed' if solution.mended else 'went unnoticed'}"
    noticed = solution.mended is not None
    yield as_row("audit of the counts", shape, torch.float64, None, None, text, ok=noticed)
    for row in compared(solution, solve(case, "naive"), shape, torch.float64):
        yield {**row, "check": f"mended {row['check']}"}


def stale_counts(*, backend: str, **model: Any) -> Tensor:
    """log Z whose counts say too much of the first frame, where the alarm gets them: all numbers stay
    finite, and only the mass is not 1.
    """

    def spoil(posteriors: Posteriors) -> None:
        posteriors.label_BTC[0, 0] *= 1.5
        posteriors.mass_error_B[0] = 0.5
        if posteriors.imbalance_B is not None:  # of a form that audits its own counts
            posteriors.imbalance_B[0] = 0.5

    return api.log_partition(backend=backend, alarm=spoil, **model)


def stale_messages(*, backend: str, **model: Any) -> Tensor:
    """log Z whose way back finds some messages of the first sequence half as large again: the compiled GPU
    form audits its counts while it makes them, so a fault in the counts would come after its audit.
    """
    problem = make_problem(**model)
    engine = api.engine_for(api.resolve_backend(backend, problem.score_BTC), problem)

    def forward(problem: Problem, keep: bool = True) -> Any:
        state = engine.forward(problem, keep, count=False)
        if keep:
            for name in ("arrived", "source"):
                state.buffer(name)[2] *= 1.5  # before, and after, the third frame
        return state

    stale = SimpleNamespace(forward=forward, backward=engine.backward, differentiate=engine.differentiate)
    return log_partition(stale, None, problem)


def decoding(subject: Subject) -> Iterator[Row]:
    """The best score equals the definition's, and the returned segments have that score."""
    for number, shape in enumerate(SMALL):
        case = random_case(subject.seed + 200 + number, shape)
        scores, paths = api.viterbi(**case.to(subject.device).arguments(), backend=subject.backend)
        problem = make_problem(**case.arguments())
        right, _ = naive.viterbi(problem)
        path_scores = torch.stack([naive.path_score(problem, b, path) for b, path in enumerate(paths)])
        worst = float(torch.maximum((scores.double().cpu() - right).abs(), (path_scores - right).abs()).max())
        yield as_row("viterbi", shape, torch.float64, worst, 1e-9, f"scores and paths within {worst:.2g}")


def head_loss(subject: Subject) -> Iterator[Row]:
    """The head's loss of the best segmentation is what the definition makes of it, however two of the frames
    are masked: a number common to all labels of a frame cancels.
    """
    shape = (3, 9, 4, 3)
    case = random_case(subject.seed + 800, shape)
    score_BTC = case.score_BTC.clone()
    score_BTC[:, 2:4] = 0.0
    problem = make_problem(**replace(case, score_BTC=score_BTC).arguments())
    paths = naive.viterbi(problem)[1]
    right = [
        naive.log_partition(problem.rows([b]))[0] - naive.path_score(problem, b, path)
        for b, path in enumerate(paths)
    ]
    gold = marked(paths, problem)
    head = SemiCRF(shape[3], shape[2], backend=subject.backend).double()
    head.load_state_dict(
        {name: value for name, value in case.arguments().items() if name in head.state_dict()}
    )
    worst = 0.0
    for mask in (0.0, -1e9, -1e13, -1e30, torch.finfo(torch.float64).min):
        score_BTC[:, 2:4] = mask
        inputs = (value.to(subject.device) for value in (score_BTC, case.lengths_B, *gold))
        loss_B = head.to(subject.device).loss(*inputs, reduction="none").detach().cpu()
        worst = max(worst, float((loss_B - torch.stack(right)).abs().max()))
    text = f"within {worst:.2g} for every mask"
    yield as_row("loss of the head", shape, torch.float64, worst, 1e-9, text)


# What must not change a bit: a repeat, another batch, poisoned memory.


def repeats(subject: Subject) -> Iterator[Row]:
    shape = (8, 200, 30, 24)
    case = random_case(subject.seed + 300, shape).to(dtype=torch.float32)
    reference = subject.solve(case)
    apart = sum(not same_bits(reference, subject.solve(case)) for _ in range(subject.repeats - 1))
    text = f"{apart} of {subject.repeats - 1} repeats differ in bits"
    yield as_row("same bits again", shape, torch.float32, apart, 0, text)


def composition(subject: Subject) -> Iterator[Row]:
    """A sequence's log Z and posteriors do not depend on the batch it is in."""
    shape = (7, 90, 12, 24)
    case = random_case(subject.seed + 310, shape).to(dtype=torch.float32)
    together = subject.solve(case)
    apart = 0
    for b in range(shape[0]):
        alone = subject.solve(case.only([b]))
        frames = alone.score_BTC.shape[1]
        apart += not (
            bits_equal(alone.logZ_B[0], together.logZ_B[b])
            and bits_equal(alone.score_BTC[0], together.score_BTC[b, :frames])
        )
    text = f"{apart} of {shape[0]} sequences change in bits"
    yield as_row("any batch composition", shape, torch.float32, apart, 0, text)


def poison(subject: Subject) -> Iterator[Row]:
    """NaN in padding and in free memory changes no bit."""
    for number, shape in enumerate(SMALL):
        case = random_case(subject.seed + 320 + number, shape).to(dtype=torch.float32)
        plain = subject.solve(case)
        poison_free_memory(subject.device)
        dirty = subject.solve(case.padded(3, math.nan))
        within = inside(shape[1], case.lengths_B, subject.device)[..., None]
        unpadded = torch.where(within, dirty.score_BTC[:, : shape[1]], plain.score_BTC)
        good = bits_equal(dirty.logZ_B, plain.logZ_B) and bits_equal(unpadded, plain.score_BTC)
        wild = dirty.first_nonfinite()
        text = f"not finite: {wild}" if wild else "no bit changes" if good else "bits change"
        yield as_row("poisoned memory", shape, torch.float32, 0 if good and not wild else 1, 0, text)


# Input chosen to break a kernel.


def infeasible(subject: Subject) -> Iterator[Row]:
    """An infeasible sequence has log Z = -inf and gradients 0; the others of its batch are right."""
    shape = (3, 9, 4, 3)
    case = replace(random_case(subject.seed + 400, shape), lengths_B=torch.tensor([9, 7, 5]))
    score = case.score_BTC.clone()
    score[1, 3] = FORBIDDEN
    closed = {
        "a frame that no label may cover": replace(case, score_BTC=score),
        "no duration at all": replace(case, duration_KC=torch.full_like(case.duration_KC, FORBIDDEN)),
        "no start": replace(case, start_C=torch.full_like(case.start_C, FORBIDDEN)),
    }
    for name, closed_case in closed.items():
        for dtype, limit in LIMITS.items():
            tensor, error = worst_value(subject, closed_case.to(dtype=dtype))
            text = f"worst {error:.2g} ({tensor})"
            yield as_row(f"infeasible: {name}", shape, dtype, error, limit, text)


def hostile(subject: Subject) -> Iterator[Row]:
    """Random hostile batches: log Z and every gradient, value by value, against the definition in float64."""
    for dtype, limit in LIMITS.items():
        dice = torch.Generator().manual_seed(subject.seed)
        worst, where_worst, compared = 0.0, "", 0
        for batch in range(subject.batches):
            case, kinds = hostile_case(dice)
            case = case.to(dtype=dtype)
            compared += len(case.lengths_B)
            name, error = worst_value(subject, case)
            if error > worst:
                worst = error
                where_worst = f" ({name} of batch {batch}: {kinds})"
        text = f"{plural(compared, 'sequence')}, worst {worst:.2g}{where_worst}"
        yield as_row("hostile batches", "", dtype, worst, limit, text)


def worst_value(subject: Subject, case: Case) -> tuple[str, float]:
    """(which tensor, error) of the value farthest from the definition's, relative beyond 1; inf for NaN.

    Counts that the audit had to mend are an error too: the values are right, the backend is not.
    """
    solution, exact = subject.solve(case), solve(case.to("cpu", torch.float64), "naive")
    if solution.mended:
        return f"mended: {solution.mended}", math.inf
    return max(solution.errors(exact).items(), key=lambda item: item[1])


def hostile_case(dice: torch.Generator, frames: int = 24) -> tuple[Case, str]:
    """(case, what is hostile in it): masks of -inf and of large finite numbers, length 1, K > T, C = 1,
    grammar rows without a way out, and soft penalties of 40 to 700, which are where a product of two scaled
    messages underflows.
    """

    def roll(high: int) -> int:
        return int(torch.randint(0, high, (1,), generator=dice))

    def chance(values: Tensor, share: float) -> Tensor:
        return torch.rand(values.shape, generator=dice) < share

    def masked(name: str, value: float, share: float) -> tuple[str, Callable[[Case], Tensor]]:
        return name, lambda case: getattr(case, name).masked_fill(chance(getattr(case, name), share), value)

    def penalised(values: Tensor) -> Tensor:
        """A random half of the values less 40 to 700."""
        penalty = 40 + 660 * torch.rand(values.shape, generator=dice)
        return torch.where(chance(values, 0.5), values - penalty, values)

    def emptied(case: Case) -> Tensor:
        row_C1 = torch.arange(len(case.transition_CC))[:, None]
        return case.transition_CC.masked_fill(row_C1 == 0, FORBIDDEN)

    def one_free(case: Case) -> Tensor:
        """Every duration but the longest costs much: z may be tiny beside the messages' own scales."""
        duration_KC = torch.full_like(case.duration_KC, -(450.0 + 70 * roll(4)))
        duration_KC[-1] = 0.0
        return duration_KC

    shape = (1 + roll(4), 1 + roll(frames), 1 + roll(30), 1 + roll(9))
    case = random_case(dice, shape, scale=(1.0, 30.0, 1e4)[roll(3)], dtype=torch.float32)
    changes: dict[str, tuple[str, Callable[[Case], Tensor]]] = {
        "-2e12": masked("score_BTC", -2e12, 0.1),
        "-1e30": masked("score_BTC", -1e30, 0.1),
        "masked scores": masked("score_BTC", FORBIDDEN, 0.1),
        "masked transitions": masked("transition_CC", FORBIDDEN, 0.5),
        "masked durations": masked("duration_KC", FORBIDDEN, 0.5),
        "empty grammar row": ("transition_CC", emptied),
        "length 1": ("lengths_B", lambda case: torch.ones_like(case.lengths_B)),
        "one free duration": ("duration_KC", one_free),
        "NaN padding": ("score_BTC", lambda case: case.padded(2, math.nan).score_BTC),
    }
    chosen = [name for name in changes if roll(3) == 0]
    for field, change in map(changes.__getitem__, chosen):
        case = replace(case, **{field: change(case)})
    for name in ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C"):
        if roll(3) == 0:
            case = replace(case, **{name: penalised(getattr(case, name))})
            chosen.append(f"soft {name.partition('_')[0]}")
    return case, ", ".join(chosen) or "plain"


if __name__ == "__main__":
    main()
