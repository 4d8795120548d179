"""From the matrix and the probes to one cause in words. Pure; the rows are those of workload_diagnose.

The order of the rules is the argument: a broken input makes every later answer meaningless, an objective that
is no probability drifts whatever the kernels do, and a race must be excluded before one wrong result is
called logic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Row = dict[str, Any]
CAUSES = {
    "input": "the input",
    "boundary": "boundary handling",
    "objective": "parameter drift: the objective is no probability",
    "race": "a kernel with a race",
    "kernel": "a kernel",
    "shared": "code that both backends share",
    "precision": "precision",
    "optimiser": "the optimiser",
    "none": "nothing",
}


@dataclass(frozen=True)
class Diagnosis:
    """`cause` is a key of CAUSES; `sentences` give the verdict, then its evidence, then what to do."""

    cause: str
    sentences: list[str]
    evidence: list[str] = field(default_factory=list)

    @property
    def status(self) -> Literal["ok", "warn", "fail"]:
        return (
            "ok" if self.cause == "none" else "warn" if self.cause in ("precision", "optimiser") else "fail"
        )


def diagnose(cells: Sequence[Row], probes: Sequence[Row], tested: str, reference: str) -> Diagnosis:
    """One cause. Without probes (the classic workflow) only the matrix speaks."""
    dirty = [row for row in probes if not row["clean"]]
    failing = matrix_words(cells)
    for rule in (_input, _boundary_data, _objective, _race, _shared, _boundary, _kernel, _precision):
        found = rule(dirty, tested, reference)
        if found:
            cause, what, todo = found
            evidence = [f"{row['probe']}{_of(row)}: {row['text']}." for row in dirty if _speaks(row, cause)]
            return Diagnosis(
                cause, [f"The cause is {CAUSES[cause]}: {what}.", *failing, f"What to do: {todo}."], evidence
            )
    return by_matrix(cells, tested, reference, probed=bool(probes))


def by_matrix(cells: Sequence[Row], tested: str, reference: str, *, probed: bool) -> Diagnosis:
    """The guide's reading: which half of the matrix fails."""
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    words = matrix_words(cells)
    if not failed:
        passed = ["every training of the matrix passed"] if cells else []
        clean = ["every probe is clean"] if probed else []
        more = [] if probed else ["The probes were not asked: diagnose without --classic asks them too."]
        return Diagnosis(
            "none", [f"Nothing was found: {' and '.join(passed + clean)}.", *drift_words(cells), *more]
        )
    where = {key: {cell[key] for cell in failed} for key in ("backend", "lengths", "reg")}
    ran = {key: {cell[key] for cell in cells} for key in ("backend", "lengths", "reg")}
    only = {key: where[key] for key in where if where[key] != ran[key]}
    said = [f"{cell['message']}." for cell in failed[:1]]
    if "lengths" in only and where["lengths"] == {"variable"}:
        cause, why = "boundary", "with one length for all nothing fails"
    elif "backend" in only and where["backend"] == {tested} and tested != reference:
        cause, why = "kernel", f"{tested} fails and {reference} passes on the same batches"
    elif "reg" in only and where["reg"] == {0.0}:
        cause, why = "objective", "regularisation alone keeps it from failing"
    elif "backend" not in only and len(ran["backend"]) > 1:
        cause, why = "shared", f"{tested} and {reference} both fail"
    else:
        cause, why = (
            "optimiser",
            "kernels, objective and input are clean, and a training still failed: learning rate or clipping",
        )
    return Diagnosis(cause, [f"The cause is {CAUSES[cause]}: {why}.", *words], said)


def matrix_words(cells: Iterable[Row]) -> list[str]:
    """How many trainings of each half of the matrix failed, where any did."""
    cells = list(cells)
    if not cells:
        return []
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    if not failed:
        return [f"None of {len(cells)} trainings of the matrix failed.", *repeat_words(cells)]
    parts = []
    for key, name in (("backend", ""), ("lengths", "lengths "), ("reg", "regularisation ")):
        for value in sorted({cell[key] for cell in cells}, key=str):
            of = [cell for cell in cells if cell[key] == value]
            parts.append(f"{name}{value} {sum(c['outcome'] == 'failed' for c in of)}/{len(of)}")
    return [
        f"{len(failed)} of {len(cells)} trainings of the matrix failed ({', '.join(parts)}).",
        *repeat_words(cells),
    ]


def repeat_words(cells: Iterable[Row]) -> list[str]:
    """Trainings with the same seed, batches and backend that ended with other weights."""
    ends: dict[tuple[Any, ...], set[Any]] = {}
    for cell in cells:
        if cell["outcome"] == "passed":
            ends.setdefault((cell["backend"], cell["lengths"], cell["reg"], cell["order"]), set()).add(
                cell.get("weights")
            )
    moved = [key for key, weights in ends.items() if len(weights) > 1]
    if not moved:
        return []
    names = " and ".join(sorted({str(key[0]) for key in moved}))
    return [
        f"{len(moved)} of {len(ends)} repeated trainings end with other weights, all on {names}: the same input gives other bits."
    ]


def drift_words(cells: Iterable[Row], threshold: float = 20.0) -> list[str]:
    """A warning where parameters passed the guide's threshold."""
    sizes = [
        (cell["transition_max"], cell["duration_max"])
        for cell in cells
        if cell.get("transition_max") is not None
    ]
    worst = max((max(pair) for pair in sizes if None not in pair), default=0.0)
    return (
        [f"The greatest parameter reached {worst:.1f}, above the guide's {threshold:g}."]
        if worst > threshold
        else []
    )


def classic_steps(cells: Sequence[Row], tested: str, reference: str) -> list[Row]:
    """The guide's four steps, answered from the cells."""
    plain = [c for c in cells if c["backend"] == reference and c["reg"] > 0 and c["lengths"] == "variable"]
    fixed = [c for c in cells if c["backend"] == tested and c["lengths"] == "fixed" and c["reg"] == 0]
    first = [c for c in cells if c["backend"] == tested and c["lengths"] == "variable" and c["reg"] == 0]
    sizes = drift_words(cells)
    return [
        {
            "step": "1 clear the Triton cache",
            "answer": f"every run has a cache of its own; {_passed(first)}",
            "reading": "still failing: no stale kernel",
        },
        {
            "step": f"2 {reference} with --crf-reg 0.01",
            "answer": _passed(plain),
            "reading": "all pass: the Triton kernels are suspect; a failure: shared code",
        },
        {
            "step": "3 --fixed-length",
            "answer": _passed(fixed),
            "reading": "all pass where step 1 fails: boundary handling",
        },
        {
            "step": "4 parameter magnitudes",
            "answer": sizes[0] if sizes else "no parameter above 20",
            "reading": "above 20: parameter drift",
        },
    ]


def _input(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "input"]
    if not rows:
        return None
    return (
        "input",
        rows[0]["text"],
        "mend or leave out what is named; kernels and objective were asked with sound input",
    )


def _boundary_data(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "boundary" and not row["backend"]]
    return (
        ("boundary", rows[0]["text"], "leave such utterances out: a sequence has at least one frame")
        if rows
        else None
    )


def _objective(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "objective"]
    if not rows:
        return None
    return (
        "objective",
        rows[0]["text"],
        "give gold score and partition one definition; --crf-reg only hides it",
    )


def _race(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "race"]
    if not rows:
        return None
    return (
        "race",
        f"{rows[0]['backend']} gives other bits for the same input ({rows[0]['text']})",
        "put a barrier between the stores and loads of one buffer, or keep the state in registers; until then use the other backend",
    )


def _shared(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    by_backend = [{row["probe"] for row in dirty if row["backend"] == name} for name in (tested, reference)]
    both = by_backend[0] & by_backend[1]
    if not both or tested == reference:
        return None
    return (
        "shared",
        f"{tested} and {reference} fail the same probes ({', '.join(sorted(both))})",
        "look at what is common to both: scores, masks, lengths",
    )


def _boundary(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "boundary"]
    if not rows:
        return None
    return (
        "boundary",
        f"the {rows[0]['backend']} kernel reads beyond the mask ({rows[0]['text']})",
        "mask every load by the sequence's length; the reproducer shows the smallest case",
    )


def _kernel(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "kernel"]
    if not rows:
        return None
    return (
        "kernel",
        f"{rows[0]['backend']} is wrong in the same way every time ({rows[0]['text']})",
        "hold its steps against float64; the reproducer shows the smallest case",
    )


def _precision(dirty: list[Row], tested: str, reference: str) -> tuple[str, str, str] | None:
    rows = [row for row in dirty if row["cause"] == "precision"]
    return (
        ("precision", rows[0]["text"], "use float64, or a backend with local prefix sums") if rows else None
    )


def _speaks(row: Row, cause: str) -> bool:
    """A race and a boundary fault dirty the kernel's probes too: all of them are evidence."""
    if cause in ("race", "boundary", "shared", "kernel"):
        return row["cause"] in ("race", "boundary", "kernel")
    return bool(row["cause"] == cause)


def _of(row: Row) -> str:
    return f" ({row['backend']})" if row["backend"] else ""


def _passed(cells: Sequence[Row]) -> str:
    return f"{sum(c['outcome'] == 'passed' for c in cells)} of {len(cells)} pass" if cells else "not run"
