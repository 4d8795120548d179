"""The verdict of a profile in sentences, and the cards above them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lab.core.words import plural
from lab.recordings.integrity.words import bound, integrity_lines, marked
from lab.report.parts import Card
from lab.rooms.kernels.catalogue.build import Catalogue


def verdict_sentences(catalogue: Catalogue, tables: dict[str, pd.DataFrame], busy: pd.DataFrame) -> list[str]:
    """How much was launched, where the time goes, how busy each GPU is, where arguments come from."""
    sentences = [_count_sentence(catalogue)]
    if catalogue.lacks:
        sentences += integrity_lines(catalogue.lacks)
    if catalogue.signatures.device == "cpu":
        sentences.append(
            "This trace holds no kernels: ops stand in for launches, and their times are CPU times."
        )
    top = tables["by_class"].iloc[0]
    sentences.append(
        f"Most time goes to {top['class']}: {top['share_percent']:.0f} % in "
        f"{plural(int(top['launches']), 'launch')}."
    )
    sentences += _waits(catalogue)
    sentences += [_phase_sentence(row) for row in tables["by_phase"].to_dict("records") if row["forwards"]]
    if catalogue.signatures.device == "gpu":
        sentences += [
            _busy_sentence(row, marked(bound(catalogue.lacks, "gpu")))
            for row in busy.to_dict("records")
            if row["span_ms"] > 0
        ]
    return [*sentences, _source_sentence(tables["argument_sources"])]


def _count_sentence(catalogue: Catalogue) -> str:
    signatures = catalogue.signatures
    total_ms = sum(launch.own_us for launch in catalogue.launches) / 1000
    noun = ("launch", "launches") if signatures.device == "gpu" else ("CPU op with work", "CPU ops with work")
    forwards = ", ".join(f"{count} {phase}" for phase, count in signatures.forwards.items())
    ranks = f" over {len(signatures.ranks)} ranks" if len(signatures.ranks) > 1 else ""
    at_least = marked(bound(catalogue.lacks, "gpu")).capitalize()
    count = plural(len(catalogue.launches), *noun)
    return (
        f"{at_least}{count}, {len(signatures.signatures):,} distinct, "
        f"{total_ms:.2f} ms of their own time{f' in {forwards}' if forwards else ''}{ranks}."
    )


def _waits(catalogue: Catalogue) -> list[str]:
    """How long collectives only waited, and for whom; this is neither communication nor an op's cost."""
    if not catalogue.waits:
        return []
    named = sorted(catalogue.waits.items(), key=lambda item: -item[1])
    parts = [f"rank {rank} for rank {awaited} {ms:.2f} ms" for (rank, awaited), ms in named[:3] if ms >= 0.01]
    total = sum(catalogue.waits.values())
    pairs = f": {', '.join(parts)}" if parts else ""
    return [
        f"Beside that, collectives wait {total:.2f} ms for ranks that come later{pairs}; this counts as no "
        "communication and for no op or module (`lab ranks` says why they wait)."
    ]


def _phase_sentence(row: dict[Any, Any]) -> str:
    return (
        f"A {row['phase']} forward: {row['launches_per_forward']:.0f} launches, "
        f"{row['kernel_ms_per_forward']:.3f} ms of their own time."
    )


def _busy_sentence(row: dict[Any, Any], at_least: str) -> str:
    overlap = f"{row['overlap_ms']:.2f} ms of compute runs beside communication or copies"
    share = 100 * row["busy_ms"] / row["span_ms"]
    return (
        f"GPU {row['device']} of rank {row['rank']} is busy {at_least}{share:.0f} % of "
        f"{row['span_ms']:.1f} ms under the profiler{f'; {overlap}' if row['overlap_ms'] > 0 else ''}."
    )


def _source_sentence(sources: pd.DataFrame) -> str:
    parts = ", ".join(f"{row.source} {row.share_percent:.0f} %" for row in sources.itertuples())
    return f"Sources of the ops' arguments, by time: {parts}."


def cards(catalogue: Catalogue, tables: dict[str, pd.DataFrame], busy: pd.DataFrame) -> list[Card]:
    signatures = catalogue.signatures
    total_ms = sum(launch.dur_us for launch in catalogue.launches) / 1000
    ranks = plural(len(signatures.ranks), "rank")
    at_least = f", {bound(catalogue.lacks, 'gpu')}".rstrip(", ")
    key_numbers = [
        Card(f"launches{at_least}", f"{len(catalogue.launches)}", "tables/launches.jsonl", note=ranks),
        Card("distinct launches", f"{len(signatures.signatures)}", "tables/unique_kernels.csv"),
        Card(f"time of launches{at_least}", f"{total_ms:.2f}", "tables/by_class.csv", unit="ms"),
    ]
    key_numbers += [_phase_card(row) for row in tables["by_phase"].to_dict("records") if row["forwards"]]
    if signatures.device == "gpu" and len(busy):
        share = 100 * busy["busy_ms"].sum() / busy["span_ms"].sum()
        note = "of the recorded span, under the profiler"
        key_numbers.append(Card(f"busy{at_least}", f"{share:.0f}", "tables/gantt.csv", unit="%", note=note))
    return key_numbers


def _phase_card(row: dict[Any, Any]) -> Card:
    return Card(
        f"{row['phase']} forward",
        f"{row['kernel_ms_per_forward']:.3f}",
        "tables/by_phase.csv",
        unit="ms",
        note=f"{row['launches_per_forward']:.0f} launches",
    )
