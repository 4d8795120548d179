"""What limits a comparison: sentences that stand below its findings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.compare.diff.judge import BELOW
from lab.compare.diff.split import MOST, Row
from lab.compare.side import Work, steps_overlap
from lab.compare.units import Units
from lab.core.words import first_few, plural
from lab.perfmodel.communication import communication
from lab.recordings.integrity.words import sentences

ODD = 5  # sentences about what was odd in a recording


def notes(a: Work, b: Work, of_a: Units, of_b: Units) -> list[str]:
    """Notes on the limits of the recordings, their steps, and the calls."""
    texts = []
    sides = (("A", a, of_a), ("B", b, of_b))
    for side, work, units in sides:
        unlinked = int((~work.has_op).sum())
        if unlinked and "op" not in work.drop:
            total = plural(len(work.dur_ns), "GPU operation")
            texts.append(f"{side}: {unlinked} of {total} have no known op and are aligned by kernel name")
        odd = [first_few(work.trace.problems, ODD, between="; ")] if work.trace.problems else []
        texts += [f"{side}: {text}" for text in (*sentences(work.trace.lacks), *odd)]
        if (gpus := len(np.unique(work.ops.device))) > 1:
            texts.append(
                f"{side}: one process on {gpus} GPUs: idle is when none of them works, overlap is across them"
            )
        marked = plural(len(work.steps_ns), "step")
        if units.empty:
            texts.append(
                f"{side}: {units.empty} of {marked} launched no GPU operation and are in no mean: "
                f"means are over the other {int(units.count)}"
            )
        if units.cut:
            texts.append(f"{side}: {units.cut} of {marked} lost GPU operations and are in no mean")
        if units.outside:
            outside = plural(units.outside, "GPU operation")
            texts.append(f"{side}: {outside} launched outside every step, left out")
    texts += [f"{side} records no API calls: they are not compared" for side, _, of in sides if not of.calls]
    if a.trace.meta.vendor != b.trace.meta.vendor:
        texts.append("GPUs of two vendors: API calls are listed (-o, --json), none is named")
    elif a.plain and of_a.calls and of_b.calls and of_a.calls.keys() != of_b.calls.keys():
        texts.append(
            "recorded by two tools: of API functions that only one side has, waits alone are named; all are "
            "listed (-o, --json)"
        )
    if (longest := max(len(of_a.sequence), len(of_b.sequence))) > MOST:
        texts.append(
            f"a step has {longest:,} GPU operations, more than {MOST:,}: ops that replaced others are not "
            "joined, and timelines are left out"
        )
    if of_a.unit != "step":
        return [*texts, without_steps(a, b)]
    single = [side for side, _, units in sides if units.count < 2]
    if single:
        texts.append(f"{' and '.join(single)}: one step only, so how much steps vary is not known")
    return texts


def without_steps(a: Work, b: Work) -> str:
    sides = (("A", a), ("B", b))
    marked = [side for side, work in sides if len(work.steps_ns)]
    reason = f"only {marked[0]} marks steps" if marked else "no steps are marked"
    if overlap := [side for side, work in sides if steps_overlap(work)]:
        verb = "marks" if len(overlap) == 1 else "mark"
        reason = f"{' and '.join(overlap)} {verb} steps that overlap, as several processes or threads do: "
        reason += "none is a unit; the longest kernel's calls are"
    return f"{reason}: counts that the edges of a recorded window explain are not named"


def of_collectives(rows: Sequence[Row]) -> list[str]:
    """A kernel of a collective is as long as its ranks wait for each other."""
    named = [row for row in rows if row.confidence != BELOW and row.kind == "same_kernel_duration"]
    if not any(row.kernel_a and communication(row.kernel_a) is not None for row in named):
        return []
    return ["a collective's kernel also waits for the last rank: `lab ranks` tells waiting from transfer"]
