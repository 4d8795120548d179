"""From the visits of GPUs to which of them differs from the others. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.core.words import plural
from lab.rooms.trials.gpus.config import SLOWER, Check, Visit, Visits
from lab.rooms.trials.gpus.health import concerns
from lab.workload.recorder.format import majority


@dataclass(frozen=True)
class Row:
    """One GPU and one check over all visits; `odd`: repeats whose bits were not those of the most."""

    uuid: str
    name: str
    check: str
    repeats: int
    odd: int
    distinct: int
    median_ms: float | None
    ratio: float | None = None  # of its median time to the median of the other GPUs' medians
    error: str = ""


@dataclass(frozen=True)
class Suspect:
    """One GPU and why; kind: bits, itself, slower, error, counters."""

    uuid: str
    kind: str
    evidence: str


@dataclass(frozen=True)
class Finding:
    rows: list[Row]
    suspects: list[Suspect]
    tested: list[str]  # UUIDs of GPUs with at least one check that ended
    open_pairs: list[str] = field(default_factory=list)  # sentences: GPUs that differ, and no majority


def judge(rounds: Sequence[Visits]) -> Finding:
    """Equal GPUs (name, torch) against each other: bits by majority, times by the others' median."""
    visits = [visit for one in rounds for visit in one.visits]
    tested = sorted({v.uuid for v in visits if v.device == "cuda" and any(c.bits for c in v.checks)})
    suspects = _errors(visits)
    rows: list[Row] = []
    open_pairs: list[str] = []
    for kind in dict.fromkeys((v.name, v.device, v.torch) for v in visits if v.checks):
        of_kind = [v for v in visits if (v.name, v.device, v.torch) == kind]
        for check in dict.fromkeys(c.name for v in of_kind for c in v.checks):
            rows_of_check, named, pair = _of_check(check, of_kind)
            rows += rows_of_check
            suspects += named
            open_pairs += pair
    suspects += [one for one in _slow(rows) if one.uuid in tested]
    suspects += _counters(rounds, {v.uuid for v in visits})
    return Finding(rows, suspects, tested, open_pairs)


def _of_check(check: str, visits: Sequence[Visit]) -> tuple[list[Row], list[Suspect], list[str]]:
    per_gpu: dict[str, list[Check]] = {}
    for visit in visits:
        per_gpu.setdefault(visit.uuid, []).extend(c for c in visit.checks if c.name == check)
    # Each GPU has one vote, its most frequent bits: a GPU visited more often weighs no more.
    counts_of = {
        uuid: Counter(bits for check in checks for bits in check.bits) for uuid, checks in per_gpu.items()
    }
    votes = [majority(counts.elements())[0] for counts in counts_of.values() if counts]
    if not votes:
        errors = [(uuid, next((c.error for c in checks if c.error), "")) for uuid, checks in per_gpu.items()]
        name = visits[0].name
        return [Row(uuid, name, check, 0, 0, 0, None, None, error) for uuid, error in errors], [], []
    usual, num_usual, sure = majority(votes)
    medians = {u: _median([ms for c in checks for ms in c.ms]) for u, checks in per_gpu.items()}
    rows, suspects = [], []
    for uuid, checks in per_gpu.items():
        counts = counts_of[uuid]
        odd = sum(n for bits, n in counts.items() if bits != usual)
        elsewhere_ms = [ms for other, ms in medians.items() if other != uuid and ms is not None]
        own_ms = medians[uuid]
        ratio = own_ms / statistics.median(elsewhere_ms) if own_ms and elsewhere_ms else None
        error = next((c.error for c in checks if c.error), "")
        total = counts.total()
        rows.append(Row(uuid, visits[0].name, check, total, odd, len(counts), own_ms, ratio, error))
        if len(counts) > 1:
            less = total - counts.most_common(1)[0][1]
            evidence = f"{check}: {less} of {plural(total, 'repeat')} gave other bits than its own usual ones"
            suspects.append(Suspect(uuid, "itself", evidence))
        elif odd and sure:
            evidence = f"{check}: its bits differ from those of {plural(num_usual, 'equal GPU')}"
            suspects.append(Suspect(uuid, "bits", evidence))
    pair = [] if sure else [f"{check}: {' and '.join(sorted(counts_of))} differ, and which is wrong is open"]
    return rows, suspects, pair


def _median(values: Sequence[float]) -> float | None:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return statistics.median(positive) if positive else None


def _errors(visits: Sequence[Visit]) -> list[Suspect]:
    suspects = [Suspect(v.uuid, "error", f"round {v.round}: {v.error}") for v in visits if v.error]
    for visit in visits:
        suspects += [
            Suspect(visit.uuid, "error", f"round {visit.round}, {c.name}: {c.error}")
            for c in visit.checks
            if c.error
        ]
    return suspects


def _slow(rows: Sequence[Row]) -> list[Suspect]:
    """Slower than the others in a matmul or memory check: the ones long enough to time."""
    return [
        Suspect(row.uuid, "slower", f"{row.check}: {row.ratio:.2f} times the others' median time")
        for row in rows
        if row.ratio is not None and row.ratio > SLOWER and row.check.startswith(("matmul", "memory"))
    ]


def _counters(rounds: Sequence[Visits], visited: set[str]) -> list[Suspect]:
    suspects: dict[tuple[str, str], Suspect] = {}
    for visits in rounds:
        for uuid, numbers in visits.health.items():
            for words in concerns(numbers) if uuid in visited else ():
                suspects[uuid, words] = Suspect(uuid, "counters", words)
        for uuid, events in (visits.xids or {}).items():
            for event in events if uuid in visited else ():
                suspects[uuid, event] = Suspect(uuid, "counters", f"Xid {event}")
    return list(suspects.values())
