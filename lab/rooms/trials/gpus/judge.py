"""From the visits of GPUs to which of them differs from the others. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lab.core.words import plural
from lab.rooms.trials.gpus.config import SLOWER, Check, Visit
from lab.workload.recorder.format import majority

# Counter -> what it says where it is not 0; correctable errors are normal.
SERIOUS = {
    "ecc_uncorrectable": "{} uncorrectable ECC errors",
    "rows_remapped_uncorrectable": "{} rows remapped after uncorrectable errors",
    "pages_retired": "{} pages retired after double-bit errors",
    "remap_pending": "a row remapping that waits for a reset",
    "remap_failed": "a row remapping that failed",
}
# NVML's clock event reasons that no program's load explains.
SLOWDOWNS = {0x8: "a hardware slowdown", 0x40: "a thermal slowdown", 0x80: "a power brake"}


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
    """tested: UUIDs of GPUs with at least one check that ended. open_pairs: GPUs that differ, no majority."""

    rows: list[Row]
    suspects: list[Suspect]
    tested: list[str]
    open_pairs: list[str]


def judge(visits: Sequence[Visit]) -> Finding:
    """Equal GPUs (name, torch) against each other: bits by majority, times by the others' median."""
    tested = sorted({v.uuid for v in visits if v.device == "cuda" and any(c.bits for c in v.checks)})
    finding = Finding([], [], tested, [])
    for visit in visits:
        errors = [visit.error, *(f"{check.name}: {check.error}" for check in visit.checks if check.error)]
        finding.suspects.extend(
            Suspect(visit.uuid, "error", f"round {visit.round}: {error}") for error in errors if error
        )
    for kind in dict.fromkeys((v.name, v.device, v.torch) for v in visits if v.checks):
        of_kind = [v for v in visits if (v.name, v.device, v.torch) == kind]
        for check in dict.fromkeys(c.name for v in of_kind for c in v.checks):
            _judge_check(check, of_kind, finding)
    concerns = {(visit.uuid, text): None for visit in visits for text in _concerns(visit)}
    finding.suspects.extend(Suspect(uuid, "counters", text) for uuid, text in concerns)
    return finding


def _judge_check(check: str, visits: Sequence[Visit], finding: Finding) -> None:
    """Add the rows of one check on equal GPUs, and whom they accuse."""
    per_gpu: dict[str, list[Check]] = {}
    for visit in visits:
        per_gpu.setdefault(visit.uuid, []).extend(c for c in visit.checks if c.name == check)
    counts_of = {uuid: Counter(bits for c in checks for bits in c.bits) for uuid, checks in per_gpu.items()}
    # Each GPU has one vote, its most frequent bits: a GPU visited more often weighs no more.
    votes = [majority(counts.elements())[0] for counts in counts_of.values() if counts]
    usual, num_usual, sure = majority(votes) if votes else ("", 0, True)
    medians = {uuid: _median([ms for c in checks for ms in c.ms]) for uuid, checks in per_gpu.items()}
    for uuid, checks in per_gpu.items():
        counts, own_ms = counts_of[uuid], medians[uuid]
        total, odd = counts.total(), sum(n for bits, n in counts.items() if bits != usual)
        elsewhere_ms = [ms for other, ms in medians.items() if other != uuid and ms is not None]
        ratio = own_ms / statistics.median(elsewhere_ms) if own_ms and elsewhere_ms else None
        error = next((c.error for c in checks if c.error), "")
        finding.rows.append(Row(uuid, visits[0].name, check, total, odd, len(counts), own_ms, ratio, error))
        if len(counts) > 1:
            fewer = total - counts.most_common(1)[0][1]
            evidence = (
                f"{check}: {fewer} of {plural(total, 'repeat')} gave other bits than its own usual ones"
            )
            finding.suspects.append(Suspect(uuid, "itself", evidence))
        elif odd and sure:
            evidence = f"{check}: its bits differ from those of {plural(num_usual, 'equal GPU')}"
            finding.suspects.append(Suspect(uuid, "bits", evidence))
        # Only these checks are long enough to time.
        is_timed = check.startswith(("matmul", "memory")) and uuid in finding.tested
        if is_timed and ratio is not None and ratio > SLOWER:
            evidence = f"{check}: {ratio:.2f} times the others' median time"
            finding.suspects.append(Suspect(uuid, "slower", evidence))
    if not sure:
        names = " and ".join(sorted(counts_of))
        finding.open_pairs.append(f"{check}: {names} differ, and which is wrong is open")


def _median(values: Sequence[float]) -> float | None:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return statistics.median(positive) if positive else None


def _concerns(visit: Visit) -> list[str]:
    """Memory errors of the board, and slowdowns that were on before or after the checks."""
    texts = [text.format(count) for name, text in SERIOUS.items() if (count := visit.counters.get(name))]
    states = (visit.state_before, visit.state_after)
    bits = [int(state.get("throttle_bits") or 0) for state in states]
    return texts + [text for bit, text in SLOWDOWNS.items() if any(value & bit for value in bits)]
