"""log Z, gradients and posterior mass against the definition in float64."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import torch

from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.ledger import mass_by_durations
from lab.rooms.semicrf.workload.cases.case import Case
from lab.rooms.semicrf.workload.cases.solution import Solution, mass_lines, solve
from lab.rooms.semicrf.workload.checks.subject import LONG, Row, Subject, as_row, drawn
from lab.rooms.semicrf.workload.faults import planted, stale_messages


def accuracy(subject: Subject) -> Iterator[Row]:
    """log Z and every gradient against the definition in float64, float64 and float32 inputs."""
    for number, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + number, shape)
        for dtype in (torch.float64, torch.float32):
            typed = case.to(dtype=dtype)
            yield from compared(
                subject.solve(typed), solve(typed.to(dtype=torch.float64), "naive"), shape, dtype
            )


def accuracy_long(subject: Subject) -> Iterator[Row]:
    """Too long for the definition: against the factorised torch form in float64."""
    for number, shape in enumerate(() if subject.backend in ("torch", "naive") else LONG):
        case = drawn(subject.seed + 50 + number, shape)
        if shape[2] > 100:  # else hardly a segment lasts as long
            case = replace(case, transition_CC=case.transition_CC - shape[2] ** 0.5)
        for dtype in (torch.float64, torch.float32):
            typed = case.to(dtype=dtype)
            yield from compared(
                subject.solve(typed), solve(typed.to(dtype=torch.float64), "torch"), shape, dtype
            )


def compared(
    solution: Solution, exact: Solution, shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Row]:
    wide = dtype == torch.float64
    gap = (solution.logZ_B.double().cpu() - exact.logZ_B.double()).abs()
    allowed = exact.logZ_B.abs() * (1e-12 if wide else 1e-8) + (1e-11 if wide else 2e-5)
    row = int((gap / allowed).argmax())
    yield as_row(
        "log Z", shape, dtype, float(gap[row]), float(allowed[row]), f"|d log Z| {float(gap[row]):.2g}"
    )
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


def ledgers(subject: Subject) -> Iterator[Row]:
    """Posterior mass balances. Parameter gradients are float32 sums over the batch, so the limit is
    float32's.
    """
    for number, shape in enumerate(subject.shapes()):
        case = drawn(subject.seed + 100 + number, shape).to(dtype=torch.float32)
        lines = mass_lines(case, subject.solve(case))
        name, worst = max(lines.items(), key=lambda item: item[1])
        yield as_row("ledger", shape, torch.float32, worst, 2e-5, f"the worst line is {name}: {worst:.2g}")
        yield watched_mass(subject, case, shape)


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
    faulty = functools.partial(stale_messages if audits_itself else planted("stale"), backend=subject.backend)
    solution = solve(on, faulty)
    exact = solve(case, "naive")
    fault = "messages" if audits_itself else "counts"
    text = f"planted stale {fault} {'were noticed' if solution.mended else 'went unnoticed'}"
    yield as_row(
        "audit of the counts", shape, torch.float64, None, None, text, ok=solution.mended is not None
    )
    for row in compared(solution, exact, shape, torch.float64):
        yield {**row, "check": f"mended {row['check']}"}


def watched_mass(subject: Subject, case: Case, shape: tuple[int, ...]) -> Row:
    """The quantity that the alarm watches in training: the worst frame's mass, as the backend computed it."""
    on = case.to(subject.device)
    posteriors = api.posteriors(**on.inputs(), backend=subject.backend)
    covered_B = mass_by_durations(
        posteriors.duration_BKC, case.lengths_B.to(subject.device), posteriors.log_z_B
    )
    worst = float(torch.maximum(posteriors.mass_error_B, covered_B).max())
    return as_row(
        "posterior mass", shape, torch.float32, worst, 2e-5, f"worst sequence is off by {worst:.2g}"
    )
