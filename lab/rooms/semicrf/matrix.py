"""The matrix of a diagnosis in sentences: how many trainings failed where, drift, the guide's four steps."""

from __future__ import annotations

from collections.abc import Iterable
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


def drift(cells: Iterable[Row]) -> str:
    """The training that passed the guide's threshold by most, as a clause; "" if there is none."""
    return _outgrown(cells, DRIFT, "a parameter passed the guide's threshold of 20")


def divergence(cells: Iterable[Row]) -> str:
    """The worst training whose parameters left every useful size, as a clause; "" if there is none."""
    return _outgrown(cells, DIVERGED, "the training diverged")


def _outgrown(cells: Iterable[Row], limit: float, words: str) -> str:
    sizes = {
        max(c["transition_max"], c["duration_max"]): c
        for c in cells
        if c.get("transition_max") is not None and c.get("duration_max") is not None
    }
    largest = max(sizes, default=0.0)
    if largest <= limit:
        return ""
    cell = sizes[largest]
    trail = [step["loss"] for step in cell.get("trail", ()) if "loss" in step]
    losses = f", the loss went from {trail[0]:.4g} to {trail[-1]:.4g}" if trail else ""
    rate = f" at the learning rate {cell['lr']:g}" if cell.get("lr") else ""
    steps = plural(cell["step"], "step")
    return f"{words}{rate}: after {steps} the largest parameter is {largest:.4g}{losses}"
