"""From the matrix and the probes to one cause, in sentences. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lab.core.words import plural
from lab.rooms.semicrf.config import DRIFT

Row = dict[str, Any]
CAUSES = {
    "input": "the input",
    "objective": "parameter drift: the objective is not a probability",
    "race": "a kernel with a race",
    "shared": "code that both backends share",
    "boundary": "boundary handling",
    "kernel": "a kernel",
    "precision": "precision",
    "optimiser": "the optimiser",
    "none": "nothing",
    "unseen": "not known",
}
RULES = ("input", "objective", "race", "shared", "boundary", "kernel", "precision")
"""In the order of the argument: a broken input makes every later answer meaningless, an objective that is not
a probability drifts whatever the kernels do, and a race must be excluded before one wrong result is called a
logic error."""
EVIDENCE = {
    "race": "{backend} gives different bits for the same input ({text})",
    "boundary": "the {backend} kernel reads beyond the mask ({text})",
    "kernel": "{backend} is wrong in the same way every time ({text})",
}
ADVICE = {
    "input": "fix or leave out what is named; kernels and objective were probed with sound input",
    "objective": "use one definition of the score for gold path and partition; --crf-reg only hides drift",
    "race": "put a barrier between the stores and loads of one buffer, or keep the state in registers; until "
    "then use the other backend",
    "shared": "check what both have in common: scores, masks, lengths",
    "boundary": "mask every load by the sequence's length; the reproducer shows the smallest case",
    "kernel": "compare its steps with float64; the reproducer shows the smallest case",
    "precision": "use float64, or a backend with local prefix sums",
    "optimiser": "lower --lr until the loss falls; clipping does not help where the rate is too high",
}
IN_KERNEL = ("race", "boundary", "kernel")
AXES = {"backend": "", "lengths": "lengths ", "reg": "regularisation "}
"""Keys of a cell, by their names in a sentence."""
DIVERGED = 1000.0  # scores this large make every choice certain, and no gradient leads back
RISEN = 10.0  # a loss this many times its lowest has left it for good


@dataclass(frozen=True)
class Diagnosis:
    """`cause` is a key of CAUSES; `sentences` give the verdict, then its evidence, then what to do."""

    cause: str
    sentences: list[str]
    evidence: list[str] = field(default_factory=list)

    @property
    def status(self) -> Literal["ok", "fail"]:
        return "ok" if self.cause == "none" else "fail"


def diagnose(cells: Sequence[Row], probes: Sequence[Row], tested: str, reference: str) -> Diagnosis:
    """One cause. Without probes only the matrix counts."""
    dirty = [row for row in probes if not row["clean"]]
    for cause in RULES:
        evidence = evidence_of(cause, dirty, tested, reference)
        if evidence:
            # A race and a boundary fault dirty the kernel's probes too: all of them are evidence.
            causes = IN_KERNEL if cause in (*IN_KERNEL, "shared") else (cause,)
            rows = (row for row in dirty if row["cause"] in causes)
            names = ((row["probe"], f" ({row['backend']})" if row["backend"] else "", row) for row in rows)
            listed = [f"{probe}{backend}: {row['text']}." for probe, backend, row in names]
            return Diagnosis(cause, sentences_of(cause, evidence, cells), listed)
    return by_matrix(cells, probes, tested, reference)


def evidence_of(cause: str, dirty: list[Row], tested: str, reference: str) -> str:
    """What the dirty probes say of a cause, as a clause; "" if nothing."""
    if cause == "shared":
        failed = [{row["probe"] for row in dirty if row["backend"] == name} for name in (tested, reference)]
        probes = sorted(failed[0] & failed[1]) if tested != reference else []
        return f"{tested} and {reference} fail the same probes ({', '.join(probes)})" if probes else ""
    row = next((row for row in dirty if row["cause"] == cause), None)
    return EVIDENCE.get(cause, "{text}").format(**row) if row else ""


def sentences_of(cause: str, evidence: str, cells: Sequence[Row]) -> list[str]:
    head = f"The cause is {CAUSES[cause]}: {evidence}."
    return [head, *matrix_sentences(cells), f"What to do: {ADVICE[cause]}."]


def of_kernel(probes: Sequence[Row], name: str) -> Diagnosis:
    """The user's kernel by the first probe that fails: they go from the simple to the hard."""
    dirty = [row for row in probes if not row["clean"]]
    if not probes:
        return Diagnosis("unseen", [f"Nothing was looked at: the probes of {name} did not finish."])
    if not dirty:
        asked = ", ".join(row["probe"] for row in probes)
        return Diagnosis("none", [f"Nothing was found in {name}. Looked at, against float64: {asked}."])
    failed = dirty[0]
    sentences = [f"{name} fails at the probe '{failed['probe']}': {failed['text']}."]
    if dirty[1:]:
        names = ", ".join(row["probe"] for row in dirty[1:])
        sentences.append(f"So do {plural(len(dirty) - 1, 'later probe')}, which may follow from it: {names}.")
    return Diagnosis(failed["cause"], sentences, [f"{row['probe']}: {row['text']}." for row in dirty])


def by_matrix(cells: Sequence[Row], probes: Sequence[Row], tested: str, reference: str) -> Diagnosis:
    """The guide's reading, where every probe is clean: which half of the matrix fails."""
    if not cells and not probes:
        return Diagnosis("unseen", ["Nothing was looked at: no part of this run finished."])
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    # A failed training is the consequence of one that diverged.
    grown = outgrown(cells, "diverged") or ("" if failed else outgrown(cells, "drifting"))
    if grown:
        return Diagnosis("optimiser", sentences_of("optimiser", f"the training {grown}", []))
    if not failed:
        # What was looked at, by name: a clean answer is about that, and nothing else.
        trained = Counter(cell["backend"] for cell in cells)
        looked = [f"{plural(count, 'training')} on {name}" for name, count in trained.items()]
        steps = plural(sum(cell["step"] for cell in cells), "step")
        looked += [f"{steps} in all by loss, gradient and parameters"] if cells else []
        looked += list(dict.fromkeys(row["probe"] for row in probes))
        head = f"Nothing was found. Looked at: {', '.join(looked)}."
        return Diagnosis("none", [head] if probes else [head, "The probes did not run."])
    failing = {key: {cell[key] for cell in failed} for key in AXES}
    ran = {key: {cell[key] for cell in cells} for key in AXES}
    only = {key: failing[key] for key in failing if failing[key] != ran[key]}
    if only.get("lengths") == {"variable"}:
        cause, reason = "boundary", "with one length for all nothing fails"
    elif only.get("backend") == {tested} and tested != reference:
        cause, reason = "kernel", f"{tested} fails and {reference} passes on the same batches"
    elif only.get("reg") == {0.0}:
        cause, reason = "objective", "regularisation alone keeps it from failing"
    elif "backend" not in only and len(ran["backend"]) > 1:
        cause, reason = "shared", f"{tested} and {reference} both fail"
    else:
        cause = "optimiser"
        reason = "kernels, objective and input are clean, and a training still failed"
    return Diagnosis(cause, sentences_of(cause, reason, cells), [f"{failed[0]['message']}."])


def matrix_sentences(cells: Sequence[Row]) -> list[str]:
    """How many trainings of each half of the matrix failed, and repeats that ended with different weights."""
    if not cells:
        return []
    trainings, parts = plural(len(cells), "training"), []
    failed = sum(cell["outcome"] == "failed" for cell in cells)
    if not failed:
        return [f"None of {trainings} of the matrix failed.", *repeat_sentences(cells)]
    for key, name in AXES.items():
        for value in sorted({cell[key] for cell in cells}, key=str):
            half = [cell for cell in cells if cell[key] == value]
            parts.append(f"{name}{value} {sum(c['outcome'] == 'failed' for c in half)}/{len(half)}")
    return [f"{failed} of {trainings} of the matrix failed ({', '.join(parts)}).", *repeat_sentences(cells)]


def repeat_sentences(cells: Sequence[Row]) -> list[str]:
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


def outgrown(cells: Sequence[Row], word: str) -> str:
    """The clause of the training that grew most of those that "diverged" or are "drifting"; "" if none."""
    clauses = {}
    for cell in cells:
        sizes = [cell[name] for name in ("transition_max", "duration_max") if cell.get(name) is not None]
        losses = [step["loss"] for step in cell.get("trail", ()) if "loss" in step]
        kind, clause = growth(sizes, losses, cell.get("lr", math.nan))
        if kind == word:
            clauses[max(sizes, default=0.0)] = clause
    return clauses[max(clauses)] if clauses else ""


def growth(sizes: Sequence[float], losses: Sequence[float], lr: float) -> tuple[str, str]:
    """Whether a training "diverged" or is "drifting", by its parameters' largest sizes and its losses, and
    the clause that says so; "" and "" else.
    """
    largest = max(sizes, default=0.0)
    rose = len(losses) > 1 and losses[-1] > RISEN * max(min(losses), 1.0)
    if not (largest > DRIFT or rose):
        return "", ""
    diverged = largest > DIVERGED or rose
    went = f", the loss went from {losses[0]:.4g} to {losses[-1]:.4g}" if losses else ""
    head = "diverged" if diverged else "is drifting"
    rate = f" at the learning rate {lr:g}" if math.isfinite(lr) else ""  # older runs did not note it
    clause = f"{head}{rate}: its largest parameter reached {largest:.4g}{went}"
    return "diverged" if diverged else "drifting", clause
