"""log Z, gradients, the head's loss and the best segmentation against the definition in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lab.rooms.semicrf.model import api, naive
from lab.rooms.semicrf.model.autograd import log_partition
from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.problem import Posteriors, Problem, make_problem
from lab.rooms.semicrf.workload.cases import Case, Solution, random_case, solve

# What is checked, the cases it is checked on, and the row that a check writes; `hostile` takes them from
# here.

Row = dict[str, Any]
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


def drawn(seed: int, shape: tuple[int, ...]) -> Case:
    batch, frames, longest, classes = shape
    return random_case(torch.Generator().manual_seed(seed), batch, frames, longest, classes)


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


def accuracy(subject: Subject) -> Iterator[Row]:
    """log Z and every gradient against the definition in float64, float64 and float32 inputs."""
    for number, shape in enumerate(SMALL):
        case = drawn(subject.seed + number, shape)
        for dtype in (torch.float64, torch.float32):
            typed = case.to(dtype=dtype)
            exact = solve(typed.to(dtype=torch.float64), "naive")
            yield from compared(subject.solve(typed), exact, shape, dtype)


def accuracy_long(subject: Subject) -> Iterator[Row]:
    """Too long for the definition: against the factorised torch form in float64."""
    for number, shape in enumerate(() if subject.backend in ("torch", "naive") else LONG):
        case = drawn(subject.seed + 50 + number, shape)
        if shape[2] > 100:  # else hardly a segment lasts as long
            case = replace(case, transition_CC=case.transition_CC - shape[2] ** 0.5)
        for dtype in (torch.float64, torch.float32):
            typed = case.to(dtype=dtype)
            exact = solve(typed.to(dtype=torch.float64), "torch")
            yield from compared(subject.solve(typed), exact, shape, dtype)


def compared(
    solution: Solution, exact: Solution, shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Row]:
    wide = dtype == torch.float64
    gap = (solution.logZ_B.double().cpu() - exact.logZ_B.double()).abs()
    allowed = exact.logZ_B.abs() * (1e-12 if wide else 1e-8) + (1e-11 if wide else 2e-5)
    row = int((gap / allowed).argmax())
    worst, limit = float(gap[row]), float(allowed[row])
    yield as_row("log Z", shape, dtype, worst, limit, f"|d log Z| {worst:.2g}")
    for name, limit in (
        ("score_BTC", 1e-10 if wide else 2e-5),
        ("transition_CC", 1e-10 if wide else 1e-5),
        ("duration_KC", 1e-10 if wide else 1e-5),
    ):
        value, right = getattr(solution, name).double().cpu(), getattr(exact, name)
        scale = 1.0 if name == "score_BTC" else max(1.0, float(right.abs().max()))
        worst = float((value - right).abs().max()) / scale
        title = "posteriors" if name == "score_BTC" else f"gradient of {name.split('_')[0]}"
        yield as_row(title, shape, dtype, worst, limit, f"worst {worst:.2g}")


def audit(subject: Subject) -> Iterator[Row]:
    """A planted fault is noticed, and the gradients that come out are right all the same.

    Stale messages where the form audits its own counts, stale counts elsewhere.
    """
    if subject.backend == "naive":
        return  # the definition has no counts of its own to audit
    shape = (3, 9, 4, 3)
    case = drawn(subject.seed + 600, shape).to(dtype=torch.float64)
    on = case.to(subject.device)
    audits_itself = on.score_BTC.is_cuda and api.resolve_backend(subject.backend, on.score_BTC) == "native"
    faulty = functools.partial(stale_messages if audits_itself else stale_counts, backend=subject.backend)
    solution = solve(on, faulty)
    exact = solve(case, "naive")
    fault = "messages" if audits_itself else "counts"
    text = f"planted stale {fault} {'were noticed' if solution.mended else 'went unnoticed'}"
    noticed = solution.mended is not None
    yield as_row("audit of the counts", shape, torch.float64, None, None, text, ok=noticed)
    for row in compared(solution, exact, shape, torch.float64):
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
        case = drawn(subject.seed + 200 + number, shape)
        on = case.to(subject.device)
        scores, paths = api.viterbi(**on.inputs(), backend=subject.backend)
        problem = make_problem(*case.inputs().values())
        right, _ = naive.viterbi(problem)
        path_scores = torch.stack([naive.path_score(problem, b, path) for b, path in enumerate(paths)])
        worst = float(torch.maximum((scores.double().cpu() - right).abs(), (path_scores - right).abs()).max())
        yield as_row("viterbi", shape, torch.float64, worst, 1e-9, f"scores and paths within {worst:.2g}")


def head_loss(subject: Subject) -> Iterator[Row]:
    """The head's loss of the best segmentation is what the definition makes of it, however two of the frames
    are masked: a number common to all labels of a frame cancels.
    """
    shape = (3, 9, 4, 3)
    case = drawn(subject.seed + 800, shape)
    score_BTC = case.score_BTC.clone()
    score_BTC[:, 2:4] = 0.0
    problem = make_problem(**replace(case, score_BTC=score_BTC).inputs())
    labels_BT, starts_BT = torch.zeros(shape[:2], dtype=torch.int64), torch.zeros(shape[:2], dtype=torch.bool)
    right = []
    for b, path in enumerate(naive.viterbi(problem)[1]):
        right.append(naive.log_partition(problem.rows([b]))[0] - naive.path_score(problem, b, path))
        for start, end, label in path:
            labels_BT[b, start:end], starts_BT[b, start] = label, True
    head = SemiCRF(shape[3], shape[2], backend=subject.backend).double()
    head.load_state_dict({name: value for name, value in case.inputs().items() if name in head.state_dict()})
    worst = 0.0
    for mask in (0.0, -1e9, -1e13, -1e30, torch.finfo(torch.float64).min):
        score_BTC[:, 2:4] = mask
        inputs = (value.to(subject.device) for value in (score_BTC, case.lengths_B, labels_BT, starts_BT))
        loss_B = head.to(subject.device).loss(*inputs, reduction="none").detach().cpu()
        worst = max(worst, float((loss_B - torch.stack(right)).abs().max()))
    text = f"within {worst:.2g} for every mask"
    yield as_row("loss of the head", shape, torch.float64, worst, 1e-9, text)
