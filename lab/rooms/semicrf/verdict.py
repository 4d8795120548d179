"""From the matrix and the probes to one cause in words. Pure; the rows are those of workload/diagnose.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lab.core.words import plural
from lab.rooms.semicrf.matrix import AXES, divergence, drift, matrix_sentences
from lab.rooms.semicrf.rules import RULES

Row = dict[str, Any]
CAUSES = {
    "input": "the input",
    "boundary": "boundary handling",
    "objective": "parameter drift: the objective is not a probability",
    "race": "a kernel with a race",
    "kernel": "a kernel",
    "shared": "code that both backends share",
    "precision": "precision",
    "optimiser": "the optimiser",
    "none": "nothing",
    "unseen": "not known",
}
IN_KERNEL = ("race", "boundary", "kernel")
LOWER_RATE = "What to do: lower --lr until the loss falls; clipping does not help where the rate is too high."


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
    for rule in RULES:
        ruling = rule(dirty, tested, reference)
        if ruling:
            head = f"The cause is {CAUSES[ruling.cause]}: {ruling.evidence}."
            sentences = [head, *matrix_sentences(cells), f"What to do: {ruling.advice}."]
            return Diagnosis(ruling.cause, sentences, _evidence(dirty, ruling.cause))
    return by_matrix(cells, probes, tested, reference)


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
    """The guide's reading: which half of the matrix fails."""
    failed = [cell for cell in cells if cell["outcome"] == "failed"]
    diverged = divergence(cells)
    if diverged:  # the probes are clean, so a failed training is its consequence
        return Diagnosis("optimiser", [f"The cause is the optimiser: {diverged}.", LOWER_RATE])
    if not cells and not probes:
        return Diagnosis("unseen", ["Nothing was looked at: no part of this run finished."])
    if not failed:
        drifting = drift(cells)
        if drifting:
            return Diagnosis("optimiser", [f"The training is drifting: {drifting}.", LOWER_RATE])
        return Diagnosis("none", [_all_clear(cells, probes), *_not_probed(probes)])
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
        reason = (
            "kernels, objective and input are clean, and a training still failed: learning rate or clipping"
        )
    sentences = [f"The cause is {CAUSES[cause]}: {reason}.", *matrix_sentences(cells)]
    return Diagnosis(cause, sentences, [f"{failed[0]['message']}."])


def _all_clear(cells: Sequence[Row], probes: Sequence[Row]) -> str:
    """What was looked at, by name: a clean answer is about that, and nothing else."""
    trained = Counter(cell["backend"] for cell in cells)
    steps = sum(cell["step"] for cell in cells)
    looked = [f"{plural(count, 'training')} on {name}" for name, count in trained.items()]
    looked += [f"{plural(steps, 'step')} in all by loss, gradient and parameters"] if cells else []
    looked += list(dict.fromkeys(row["probe"] for row in probes))
    return f"Nothing was found. Looked at: {', '.join(looked)}."


def _not_probed(probes: Sequence[Row]) -> list[str]:
    return [] if probes else ["The probes did not run."]


def _evidence(dirty: list[Row], cause: str) -> list[str]:
    """A race and a boundary fault dirty the kernel's probes too: all of them are evidence."""
    causes = IN_KERNEL if cause in (*IN_KERNEL, "shared") else (cause,)
    rows = [row for row in dirty if row["cause"] in causes]
    return [f"{row['probe']}{_of(row)}: {row['text']}." for row in rows]


def _of(row: Row) -> str:
    return f" ({row['backend']})" if row["backend"] else ""
