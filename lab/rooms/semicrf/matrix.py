"""The matrix of a diagnosis in sentences: how many trainings failed where, drift, the guide's four steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lab.core.words import plural

Row = dict[str, Any]
AXES = {
    "backend": "",
    "lengths": "lengths ",
    "reg": "regularisation ",
}  # key of a cell -> its name in a sentence
DRIFT = 20.0  # the guide's threshold for a parameter's magnitude
DIVERGED = 1000.0  # scores this large make every choice certain, and no gradient leads back


def matrix_sentences(cells: Iterable[Row]) -> list[str]:
    """How many trainings of each half of the matrix failed, where any did."""
    cells = list(cells)
    if not cells:
        return []
    failed = sum(cell["outcome"] == "failed" for cell in cells)
    if not failed:
        return [f"None of {plural(len(cells), 'training')} of the matrix failed.", *repeat_sentences(cells)]
    parts = []
    for key, name in AXES.items():
        for value in sorted({cell[key] for cell in cells}, key=str):
            half = [cell for cell in cells if cell[key] == value]
            parts.append(f"{name}{value} {sum(c['outcome'] == 'failed' for c in half)}/{len(half)}")
    trainings = plural(len(cells), "training")
    return [f"{failed} of {trainings} of the matrix failed ({', '.join(parts)}).", *repeat_sentences(cells)]


def repeat_sentences(cells: Iterable[Row]) -> list[str]:
    """Trainings with the same seed, batches and backend that ended with different weights."""
    ends: dict[tuple[Any, ...], set[Any]] = {}
    for cell in cells:
        if cell["outcome"] == "passed":
            key = (cell["backend"], cell["lengths"], cell["reg"], cell["order"])
            ends.setdefault(key, set()).add(cell.get("weights"))
    moved = [key for key, weights in ends.items() if len(weights) > 1]
    if not moved:
        return []
    names = " and ".join(sorted({str(key[0]) for key in moved}))
    return [
        f"{len(moved)} of {plural(len(ends), 'repeated training')} ended with different weights, all on "
        f"{names}: the same input gives different bits."
    ]


def drift_sentences(cells: Iterable[Row]) -> list[str]:
    """A warning where a parameter passed the guide's threshold."""
    cells = [cell for cell in cells if cell.get("transition_max") is not None]
    pairs = [(cell["transition_max"], cell["duration_max"]) for cell in cells]
    worst = max((max(pair) for pair in pairs if None not in pair), default=0.0)
    if worst <= DRIFT:
        return []
    return [f"The largest parameter reached {worst:.1f}, above the guide's {DRIFT:g}."]


def divergence(cells: Iterable[Row]) -> str:
    """The worst training whose parameters left every useful size, as a clause; "" if there is none."""
    sizes = {
        max(c["transition_max"], c["duration_max"]): c for c in cells if c.get("transition_max") is not None
    }
    largest = max(sizes, default=0.0)
    if largest <= DIVERGED:
        return ""
    cell = sizes[largest]
    trail = [step["loss"] for step in cell.get("trail", ()) if "loss" in step]
    losses = f", the loss went from {trail[0]:.4g} to {trail[-1]:.4g}" if trail else ""
    rate = f" at the learning rate {cell['lr']:g}" if cell.get("lr") else ""
    return (
        f"the training diverged{rate}: after {plural(cell['step'], 'step')} the largest parameter is "
        f"{largest:.4g}{losses}"
    )


def classic_steps(cells: Sequence[Row], tested: str, reference: str) -> list[Row]:
    """The guide's four steps, answered from the cells. None is read as a cause where nothing failed."""
    plain = [c for c in cells if c["backend"] == reference and c["reg"] > 0 and c["lengths"] == "variable"]
    unregularised = [c for c in cells if c["backend"] == tested and c["reg"] == 0]
    fixed = [c for c in unregularised if c["lengths"] == "fixed"]
    variable = [c for c in unregularised if c["lengths"] == "variable"]
    sizes = drift_sentences(cells)
    failing = _failed(variable)
    stale = f"{tested} fails with code compiled from its present source: no stale kernel"
    apart = f"{tested} is suspect: {reference} passes" if not _failed(plain) else "shared code: both fail"
    lengths = "not the lengths: it fails with one length too" if _failed(fixed) else "boundary handling"
    return [
        {
            "step": "1 clear the kernel cache",
            "answer": f"compiled code is found by the hash of its source; {_passed(variable)}",
            "reading": stale if failing else NOTHING,
        },
        {
            "step": f"2 {reference} with --crf-reg 0.01",
            "answer": _passed(plain),
            "reading": NOTHING if not failing else apart if plain else NOT_RUN,
        },
        {
            "step": "3 --fixed-length",
            "answer": _passed(fixed),
            "reading": NOTHING if not failing else lengths if fixed else NOT_RUN,
        },
        {
            "step": "4 parameter magnitudes",
            "answer": sizes[0] if sizes else "no parameter above 20",
            "reading": "parameter drift" if sizes else "no drift",
        },
    ]


NOTHING, NOT_RUN = "nothing to explain: step 1 passes", "not run: no answer"


def _failed(cells: Sequence[Row]) -> bool:
    return any(cell["outcome"] == "failed" for cell in cells)


def _passed(cells: Sequence[Row]) -> str:
    return f"{sum(c['outcome'] == 'passed' for c in cells)} of {len(cells)} pass" if cells else "not run"
