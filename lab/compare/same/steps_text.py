"""The sentences of a verdict over recorded training steps: where, why, and what to switch."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.compare.same.steps import Place, Record, Verdict
from lab.core.words import first_few, plural, ranks_text
from lab.workload.recorder.format import Row

KINDS = {
    "random": "random numbers",
    "weight": "weights",
    "buffer": "buffers",
    "input": "batch",
    "module": "output",
    "op": "operator",
    "grad": "gradient",
    "reduced": "gradient after the reduction",
    "used": "gradient that the update uses",
    "comm": "collective",
}


class Source(NamedTuple):
    """A known source of differences, a row of sources.csv."""

    ops: str
    reason: str
    switch: str


@functools.cache
def _sources() -> list[tuple[re.Pattern[str], Source]]:
    with Path(__file__).with_name("sources.csv").open(newline="", encoding="ascii") as file:
        sources = [Source(**row) for row in csv.DictReader(line for line in file if line[0] != "#")]
    return [(re.compile(rf"(?:{source.ops})_?"), source) for source in sources]


def source_of(name: str) -> Source | None:
    """The known source behind `aten.index_add_.default` or `mylib.atomic_add.default`; None: none known."""
    library, _, operator = name.partition(".")
    word = operator.split(".")[0] if operator else library
    for pattern, source in _sources():
        if pattern.fullmatch(word):
            return source
    of_library = _sources()[-1][1]
    return of_library if re.match(of_library.ops, library) else None


def source_at(place: Place) -> Source | None:
    """The known source of a difference that may have been made at this place."""
    made_here = place.equal_inputs is not False and place.row.kind in ("op", "comm")
    return source_of(place.row.op) if made_here else None


def missing(verdict: Verdict, *, runs: int = 2, steps: int = 0, repeats: int = 0) -> list[str]:
    """What the verdict does not cover of what was asked for."""
    lines = []
    is_seen = verdict.outcome != "nothing seen"
    if not is_seen:
        lines.append("nothing was seen: no training step of a model was recorded")
    if verdict.steps < steps:
        lines.append(f"{verdict.steps} of {plural(steps, 'step')} recorded in every run")
    if repeats and is_seen and not verdict.repeats:
        lines.append("no step was run again inside its process (see Notes)")
    if verdict.runs < 2 and runs > 1:
        lines.append("only one run has a record: nothing to compare it with")
    if len(verdict.recorded) > 1:  # a run that ended early is equal as far as it went
        steps_text = plural(verdict.recorded[-1], "step")
        lines.append(f"from {verdict.steps} to {steps_text} recorded: not compared beyond the fewest")
    if verdict.worlds > 1:
        lines.append("the runs have different numbers of ranks")
    return lines


def notes_of(record: Record) -> list[str]:
    """What no verdict rests on, because it holds what was in memory before; then the recorder's notes."""
    unwritten = record.recording.unwritten
    lines = []
    if unwritten:
        outputs = plural(sum(unwritten.values()), "output")
        names = first_few([f"{count:,} of {name}" for name, count in unwritten.items()], 10)
        lines = [f"{outputs} that need not be written were not compared: {names}"]
    return [*lines, *record.recording.notes]


def sentences(verdict: Verdict) -> list[str]:
    """The verdict first, then where, why and what to switch."""
    covered = (
        f"{plural(verdict.steps, 'step')} of {plural(verdict.runs, 'run')} on {plural(verdict.ranks, 'rank')}"
    )
    again = f", {plural(verdict.repeats, 'repeat')} of steps" if verdict.repeats else ""
    if verdict.outcome == "nothing seen":
        return ["Nothing was seen: no training step was recorded."]
    place = verdict.first_place
    if place is None:
        drawn = ", ".join(verdict.random_differs)
        unseeded = f"Random numbers of {drawn} are not seeded; nothing that was recorded drew them."
        return [
            f"bitwise: {covered}{again} agree in {plural(verdict.rows, 'tensor')}.",
            f"A rate of differing runs of up to {1 - 0.05 ** (1 / verdict.runs):.0%} stays possible.",
            *([unseeded] if drawn else []),
        ]
    lines = [
        f"{verdict.outcome}: first difference at {place_text(place)}.",
        f"Compared: {place.between[0]} with {place.between[1]} ({covered}{again}).",
        *_cause(verdict, place),
    ]
    if len(verdict.groups) > 1 and verdict.runs > 2:
        agree = [f"{', '.join(group)} agree" for group in verdict.groups if len(group) > 1]
        lines.append(f"{'; '.join(agree) or 'No two runs agree'}.")
    if verdict.repeats_agree and place.kind == "runs":
        lines.append(_of_repeats(place))
    return lines


def _of_repeats(place: Place) -> str:
    """Say what agreeing repeats inside one process prove: of the model's forward and backward alone."""
    # A backward whose inputs differed began with the loss, which is not repeated.
    needs_equal_inputs = {"forward": False, "backward": True}.get(place.direction)
    if needs_equal_inputs is None or (needs_equal_inputs and place.equal_inputs is not True):
        return (
            "Forward and backward repeat inside one process; what comes before and after them (data, loss, "
            "collectives, update) does not run again."
        )
    hint = " (such as the order of a set: PYTHONHASHSEED=0)" if place.equal_inputs is False else ""
    return f"Inside one process the same step repeats: the difference needs another process{hint}."


def place_text(place: Place) -> str:
    """`step 2, rank 1, blocks.0.attn, backward: operator aten.index_add in IndexAddBackward0`."""
    row = place.row
    name = f" {row.op}" if row.kind not in ("input", "module") else ""
    node = f" in {row.node}" if row.node else ""
    location = f"step {place.step}, rank {place.rank}, {row.module or 'model'}, {place.direction}"
    return f"{location}: {kind_text(row)}{name}{node}"


def kind_text(row: Row) -> str:
    is_gradient = row.kind == "module" and row.phase == "bwd"
    return "gradient of the output" if is_gradient else KINDS.get(row.kind, row.kind)


def _cause(verdict: Verdict, place: Place) -> list[str]:
    row, lines = place.row, []
    made_here = place.equal_inputs is not False
    if place.absent:
        lines.append("The other run did something else here: its control flow differs.")
    lines += _of_inputs(place)
    if verdict.outcome == "input pipeline":
        same = "the same batches in another order" if verdict.same_batches else "other batches"
        lines.append(f"The runs were given {same}; weights were equal until then.")
    if row.kind == "weight" and row.phase == "start":
        lines.append(
            "The weights differed before the first step: their initialisation or checkpoint differs."
            if place.step == 1
            else "The weights were changed after the update before, by something other than the optimizer."
        )
    if row.kind == "weight" and row.phase == "update" and place.kind == "runs":
        lines.append(
            "The gradients of this update had equal bits: the optimizer's settings (its rate, say) or state "
            "differ, or its own operators do not repeat."
        )
    if row.kind == "used":
        differs_on = f" It differs on {_on(place.outputs_of, place.ranks)}." if place.ranks > 1 else ""
        lines.append(
            "It was changed between the backward and the update, by code that is not recorded there: "
            f"clipping, the program itself, or a collective that is not torch.distributed's.{differs_on}"
        )
    drawn = [name for name in verdict.random_differs if row.kind == "input" or name in ("torch", "cuda")]
    if drawn and (row.random or row.kind in ("input", "weight")):
        lines.append(f"Random numbers of {', '.join(drawn)} differed when that step began: not seeded.")
    elif verdict.random_differs and not made_here and place.kind == "runs":
        names = ", ".join(verdict.random_differs)
        lines.append(
            f"Random numbers of {names} differed when that step began, not seeded: perhaps one of them."
        )
    if source := source_at(place):
        lines.append(f"Known: {source.reason}. Switch: {source.switch}.")
    elif made_here and row.kind in ("op", "comm"):
        lines.append("No known source of differences: a custom operator, a race, or a fault of the hardware.")
    if place.kind == "ranks":
        is_open = "others" not in place.between[1]
        lines.append(f"Replicas must agree here{'; which of two is wrong is open' if is_open else ''}.")
    return lines


def _of_inputs(place: Place) -> list[str]:
    """Whether the difference came in or was made here."""
    is_collective = place.row.kind == "comm"
    if place.inputs_of:
        return [
            f"It is a collective whose inputs differed on {_on(place.inputs_of, place.ranks)}: the "
            "difference is made there, in code before it that is not seen, and reaches the others through it."
        ]
    if place.equal_inputs and is_collective and place.ranks > 1:
        return [
            f"The inputs of all {place.ranks} ranks had equal bits and the output differs on "
            f"{_on(place.outputs_of, place.ranks)}: the difference is made in the collective."
        ]
    if place.equal_inputs:
        return ["Its inputs had equal bits, so the difference is made here."]
    if place.equal_inputs is None:
        unknown = "Whether the inputs of all ranks were equal is not known: some ranks have no record of it."
        return [unknown] if is_collective else []
    return [
        "Its inputs differed already: the difference is made in code before it that is not seen: numpy, "
        "Python, a clock or a library gave a number, or nothing had written its memory (torch.empty)."
    ]


def _on(ranks: Sequence[int], of: int) -> str:
    """`rank 1 alone`, `ranks 0, 2` or `all 4 ranks`."""
    if len(ranks) == of:
        return f"all {of} ranks"
    return f"{ranks_text(ranks, 16)}{' alone' if len(ranks) == 1 else ''}"


def answer(verdict: Verdict) -> dict[str, Any]:
    """Verdict as scripts read it."""
    return {
        "replay": verdict.outcome,
        "first": verdict.first_place and place_row(verdict.first_place),
        "runs": verdict.runs,
        "ranks": verdict.ranks,
        "steps": verdict.steps,
        "repeats": verdict.repeats,
        "events": verdict.rows,
    }


def place_row(place: Place) -> dict[str, Any]:
    """A place as scripts read it."""
    row, source = place.row, source_at(place)
    return {
        "step": place.step,
        "rank": place.rank,
        "module": row.module,
        "direction": place.direction,
        "kind": row.kind,
        "op": row.op,
        "node": row.node,
        "equal_inputs": place.equal_inputs,
        "inputs_differ_on": place.inputs_of,
        "outputs_differ_on": place.outputs_of,
        "compared": place.kind,
        "why": source and source.reason,
        "switch": source and source.switch,
    }
