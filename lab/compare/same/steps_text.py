"""The sentences of a verdict over recorded training steps: where, why, and what to switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lab.compare.same.places import unwritten_text
from lab.compare.same.steps import Place, Record, Verdict
from lab.core.words import plural, ranks_text


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
    """What no verdict rests on, then the recorder's notes."""
    unwritten = record.recording.unwritten
    return [*([unwritten_text(unwritten, 10)] if unwritten else []), *record.recording.notes]


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
        f"{verdict.outcome}: first difference at {place}.",
        f"Compared: {place.between[0]} with {place.between[1]} ({covered}{again}).",
        *_cause(verdict, place),
    ]
    if len(verdict.groups) > 1 and verdict.runs > 2:
        agree = [f"{', '.join(group)} agree" for group in verdict.groups if len(group) > 1]
        lines.append(f"{'; '.join(agree) or 'No two runs agree'}.")
    if verdict.repeats_agree and place.comparison == "runs":
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


def _cause(verdict: Verdict, place: Place) -> list[str]:
    lines = []
    made_here = place.equal_inputs is not False
    if place.absent:
        lines.append("The other run did something else here: its control flow differs.")
    lines += _of_inputs(place)
    if verdict.outcome == "input pipeline":
        same = "the same batches in another order" if verdict.same_batches else "other batches"
        lines.append(f"The runs were given {same}; weights were equal until then.")
    if place.kind == "weight" and place.phase == "start":
        lines.append(
            "The weights differed before the first step: their initialisation or checkpoint differs."
            if place.step == 1
            else "The weights were changed after the update before, by something other than the optimizer."
        )
    if place.kind == "weight" and place.phase == "update" and place.comparison == "runs":
        lines.append(
            "The gradients of this update had equal bits: the optimizer's settings (its rate, say) or state "
            "differ, or its own operators do not repeat."
        )
    if place.kind == "used":
        differs_on = f" It differs on {_on(place.outputs_of, place.ranks)}." if place.ranks > 1 else ""
        lines.append(
            "It was changed between the backward and the update, by code that is not recorded there: "
            f"clipping, the program itself, or a collective that is not torch.distributed's.{differs_on}"
        )
    drawn = [name for name in verdict.random_differs if place.kind == "input" or name in ("torch", "cuda")]
    if drawn and (place.random or place.kind in ("input", "weight")):
        lines.append(f"Random numbers of {', '.join(drawn)} differed when that step began: not seeded.")
    elif verdict.random_differs and not made_here and place.comparison == "runs":
        names = ", ".join(verdict.random_differs)
        lines.append(
            f"Random numbers of {names} differed when that step began, not seeded: perhaps one of them."
        )
    if place.switch:
        lines.append(f"Known: {place.explanation}. Switch: {place.switch}.")
    elif made_here and place.kind in ("op", "comm"):
        lines.append("No known source of differences: a custom operator, a race, or a fault of the hardware.")
    if place.comparison == "ranks":
        is_open = "others" not in place.between[1]
        lines.append(f"Replicas must agree here{'; which of two is wrong is open' if is_open else ''}.")
    return lines


def _of_inputs(place: Place) -> list[str]:
    """Whether the difference came in or was made here."""
    is_collective = place.kind == "comm"
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
        "first": msgspec.to_builtins(verdict.first_place),
        "events": verdict.rows,
        **{name: getattr(verdict, name) for name in ("runs", "ranks", "steps", "repeats")},
    }
