"""The rules that lead from dirty probes to one cause, in the order of the argument. Pure.

A broken input makes every later answer meaningless, an objective that is not a probability drifts whatever
the kernels do, and a race must be excluded before one wrong result is called a logic error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Row = dict[str, Any]


class Ruling(NamedTuple):
    """A key of verdict.CAUSES, what speaks for it, and what to do."""

    cause: str
    evidence: str
    advice: str


def input_fault(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    row = _first(dirty, "input")
    advice = "fix or leave out what is named; kernels and objective were probed with sound input"
    return Ruling("input", row["text"], advice) if row else None


def boundary_in_data(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    """A sequence that no backend can take, as opposed to a kernel that reads past one."""
    row = _first([row for row in dirty if not row["backend"]], "boundary")
    advice = "leave such utterances out: a sequence has at least one frame"
    return Ruling("boundary", row["text"], advice) if row else None


def objective(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    row = _first(dirty, "objective")
    advice = "use one definition of the score for gold path and partition; --crf-reg only hides the drift"
    return Ruling("objective", row["text"], advice) if row else None


def race(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    row = _first(dirty, "race")
    advice = (
        "put a barrier between the stores and loads of one buffer, or keep the state in registers; until "
        "then use the other backend"
    )
    if row is None:
        return None
    evidence = f"{row['backend']} gives different bits for the same input ({row['text']})"
    return Ruling("race", evidence, advice)


def shared(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    """Both backends fail the same probe."""
    by_backend = [{row["probe"] for row in dirty if row["backend"] == name} for name in (tested, reference)]
    probes = by_backend[0] & by_backend[1]
    if not probes or tested == reference:
        return None
    evidence = f"{tested} and {reference} fail the same probes ({', '.join(sorted(probes))})"
    return Ruling("shared", evidence, "check what both have in common: scores, masks, lengths")


def boundary(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    row = _first(dirty, "boundary")
    advice = "mask every load by the sequence's length; the reproducer shows the smallest case"
    if row is None:
        return None
    evidence = f"the {row['backend']} kernel reads beyond the mask ({row['text']})"
    return Ruling("boundary", evidence, advice)


def kernel(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    row = _first(dirty, "kernel")
    advice = "compare its steps with float64; the reproducer shows the smallest case"
    if row is None:
        return None
    evidence = f"{row['backend']} is wrong in the same way every time ({row['text']})"
    return Ruling("kernel", evidence, advice)


def precision(dirty: list[Row], tested: str, reference: str) -> Ruling | None:
    row = _first(dirty, "precision")
    return (
        Ruling("precision", row["text"], "use float64, or a backend with local prefix sums") if row else None
    )


RULES: tuple[Callable[[list[Row], str, str], Ruling | None], ...] = (
    *(input_fault, boundary_in_data, objective, race),
    *(shared, boundary, kernel, precision),
)


def _first(dirty: list[Row], cause: str) -> Row | None:
    return next((row for row in dirty if row["cause"] == cause), None)
