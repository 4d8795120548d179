"""The verdict of a profile in sentences, and the cards above them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.words import plural
from lab.recordings.integrity.words import bound, integrity_lines, marked
from lab.report.parts import Card
from lab.report.tables import terminal_table
from lab.rooms.kernels.catalogue.build import Catalogue


def verdict_sentences(catalogue: Catalogue, tables: dict[str, pd.DataFrame], busy: pd.DataFrame) -> list[str]:
    """How much was launched, where the time goes, how busy each GPU is."""
    sentences = [_count_sentence(catalogue)]
    if catalogue.lacks:
        sentences += integrity_lines(catalogue.lacks)
    if catalogue.signatures.device == "cpu":
        sentences.append(
            "This trace is without kernels: ops stand in for launches, and their times are CPU times."
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
    return sentences


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
    """How long collectives only waited, which is neither communication nor an op's cost."""
    wait_ms = sum(launch.wait_us for launch in catalogue.launches) / 1000
    if not wait_ms:
        return []
    return [
        f"Beside that, collectives wait {wait_ms:.2f} ms for ranks that come later, which counts for no "
        "class, op or module (`lab ranks` says for whom and why they wait)."
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


def cards(catalogue: Catalogue) -> list[Card]:
    signatures = catalogue.signatures
    total_ms = sum(launch.dur_us for launch in catalogue.launches) / 1000
    ranks = plural(len(signatures.ranks), "rank")
    at_least = f", {bound(catalogue.lacks, 'gpu')}".rstrip(", ")
    return [
        Card(f"launches{at_least}", f"{len(catalogue.launches)}", "tables/launches.jsonl", note=ranks),
        Card("distinct launches", f"{len(signatures.signatures)}", "tables/unique_kernels.csv"),
        Card(f"time of launches{at_least}", f"{total_ms:.2f}", "tables/by_class.csv", unit="ms"),
    ]


COLUMNS = ["kernel", "class", "op", "phase", "count", "dur_sum_us", "dur_median_us", "time_share"]


def terminal_text(verdict: Sequence[str], catalogue: Catalogue, page: Path) -> str:
    """The verdict, the problems, the launches that take most time, and where the page is."""
    lines = [
        verdict[0],
        *(f"- {sentence}" for sentence in verdict[1:]),
        *(f"! {text}" for text in catalogue.problems),
        "",
        terminal_table(shortened(catalogue.unique[COLUMNS].head(12)), width=118),
        "",
        f"report: {page}",
    ]
    return "\n".join(lines)


def shortened(frame: pd.DataFrame, max_chars: int = 40) -> pd.DataFrame:
    """Long texts cut in the middle, for a terminal."""
    table: pd.DataFrame = frame.map(lambda cell: _cut(cell, max_chars) if isinstance(cell, str) else cell)
    return table


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 14]}…{text[-13:]}"
