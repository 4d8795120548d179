"""The page of trainings: convergence, and PER, time and memory by head and backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.manifest import Kind
from lab.core.run import Run
from lab.report.parts import Card, Files, Page, Section, Status
from lab.report.tables import write_csv
from lab.rooms.semicrf.analyze.trainings import Trainings, comparison
from lab.rooms.semicrf.layout import COMPARISON
from lab.rooms.semicrf.matrix import DIVERGED, DRIFT
from lab.rooms.semicrf.report.common import Findings, finish
from lab.rooms.semicrf.report.convergence import convergence, duration_blocks, results_table

QUESTION = "Does a semi-Markov CRF segment better than a linear one, and what do its backends cost?"
FOOTNOTES = (
    "Phone error rate: summed edit distance of label sequences over the reference's length, equal neighbours "
    "merged.",
    "Test figures are of the epoch that was best on the dev split; the test split chooses nothing.",
    "Boundary F1 pairs boundaries one to one in order, exactly or within 2 frames; a segment counts where "
    "start, end and label agree.",
    "Time per epoch is the median without the first epoch, which includes compilation. Memory is the peak on "
    "the GPU and that of the host process.",
)
RISEN = 10.0  # a loss this many times its lowest has left it for good
SHOWN = [
    *("model", "backend", "status", "phone_error_rate", "boundary_f1", "segment_f1"),
    *("epoch_time_s", "peak_mem_bytes"),
]


def trainings(
    tables: Trainings, out: Path, title: str, sources: dict[str, dict[str, str]], *, run: Run | None
) -> Findings:
    """Write the page and its tables; without `run`, of comparisons that lab did not make."""
    sections, files = _sections(tables, out)
    if run is not None and tables.raw:
        files.append(_write_comparison(run, tables, out))
        entry = Files("The comparison as JSON", [(COMPARISON, "form of the TIMIT benchmark")])
        sections.append(Section("Files", [entry]))
    synthetic = run is not None and run.manifest.config.get("data") == "synthetic"
    kind = run.manifest.kind if run is not None else Kind.replayed
    finished = tables.results["status"] == "ok"
    words = {judgement(tables.epochs, row)[0] for _, row in tables.results[finished].iterrows()}
    doubtful = tables.missing or any(suspect for suspect, _ in notes(tables))
    status: Status = "fail" if not finished.any() or any(words) else "warn" if doubtful else "ok"
    page = Page(
        title=title,
        question=QUESTION,
        verdict=_sentences(tables, synthetic=synthetic),
        status=status,
        cards=_cards(tables.results),
        sections=sections,
        provenance=sources,
        footnotes=FOOTNOTES,
        room="semicrf",
        kind="synthetic" if synthetic and kind is Kind.measured else kind.value,
    )
    return finish(page, out, files, tables.results[SHOWN], tables.missing)


def _sections(tables: Trainings, out: Path) -> tuple[list[Section], list[Path]]:
    files = [write_csv(tables.results, out / "tables" / "results.csv")]
    sections = [Section("Heads and backends", [results_table(tables.results)])]
    if len(tables.epochs):
        files.append(write_csv(tables.epochs, out / "tables" / "epochs.csv"))
        sections.insert(0, Section("Convergence", convergence(tables.epochs, out / "figures")))
    if len(tables.durations):
        files.append(write_csv(tables.durations, out / "tables" / "durations.csv"))
        sections.append(Section("Durations", duration_blocks(tables.durations)))
    return sections, files


def _write_comparison(run: Run, tables: Trainings, out: Path) -> Path:
    document = msgspec.json.format(msgspec.json.encode(comparison(run, tables)), indent=1)
    write_atomic(out / COMPARISON, document + b"\n")
    return out / COMPARISON


def _sentences(tables: Trainings, *, synthetic: bool) -> list[str]:
    finished = tables.results["status"] == "ok"
    ranked = tables.results[finished].sort_values("phone_error_rate", kind="stable")
    if ranked.empty:
        return ["No training finished, so there is no result.", *tables.missing]
    judged = {_case(row): judgement(tables.epochs, row) for _, row in ranked.iterrows()}
    sentences = [f"{case} {text}." for case, (_, text) in judged.items() if text]
    first_case = _case(ranked.iloc[0])
    if ranked.iloc[0]["phone_error_rate"] > 1:
        sentences.append(
            f"No head learned the phones: the test PER of {first_case} is {_percent(ranked.iloc[0])}."
        )
    elif len(ranked) == 1:
        sentences.append(f"The test PER of {first_case} is {_percent(ranked.iloc[0])}.")
    else:
        sentences.append(f"{first_case} has the lowest test PER: {_percent(ranked.iloc[0])}.")
    if len(ranked) > 1:
        competitors = ", ".join(f"{_case(row)} {_percent(row)}" for _, row in ranked.iloc[1:].iterrows())
        sentences.append(
            f"The others: {competitors}. These are one training each: a difference of a few points may be "
            "chance."
        )
        sentences.append(_epoch_times(ranked))
    sentences += _same_numbers(ranked)
    sentences += [f"{text}." for _, text in notes(tables)]
    if synthetic:
        sentences.append("The corpus is synthetic: PER says nothing about speech.")
    left_out = tables.results[~finished]
    return sentences + [
        f"Left out: {row.model} {row.backend} ({row.reason})." for row in left_out.itertuples()
    ]


def judgement(epochs: pd.DataFrame, case: Any) -> tuple[str, str]:
    """Whether a training "diverged" or was "drifting", and a clause that says by what; "" and "" else."""
    rows = epochs[(epochs["model"] == case["model"]) & (epochs["backend"] == case["backend"])]
    largest = float(rows[["transition_max", "duration_max"]].max().max()) if len(rows) else 0.0
    losses = rows["loss"].dropna()
    rose = len(losses) > 1 and losses.iloc[-1] > RISEN * max(losses.min(), 1.0)
    if not (largest > DRIFT or rose):
        return "", ""
    went = f"the loss went from {losses.iloc[0]:.4g} to {losses.iloc[-1]:.4g}"
    rate = f"at the learning rate {rows['lr'].max():g}"
    if largest > DIVERGED or rose:
        return "diverged", f"diverged {rate}: its largest parameter reached {largest:.4g}, {went}"
    return "drifting", f"is drifting {rate}: its largest parameter reached {largest:.1f}, {went}"


def notes(tables: Trainings) -> list[tuple[bool, str]]:
    """What the corpus' reader noted, (whether it makes figures doubtful, text), once for all trainings."""
    pairs = [
        (bool(suspect), str(text)) for raw in tables.raw.values() for suspect, text in raw.get("notes", ())
    ]
    return list(dict.fromkeys(pairs))


def _epoch_times(ranked: pd.DataFrame) -> str:
    slow = ranked.iloc[int(ranked["epoch_time_s"].argmax())]
    fast = ranked.iloc[int(ranked["epoch_time_s"].argmin())]
    ratio = slow["epoch_time_s"] / max(fast["epoch_time_s"], 1e-9)
    return (
        f"An epoch takes {fast['epoch_time_s']:.2f} s with {_case(fast)} and {ratio:.1f} times that with "
        f"{_case(slow)}."
    )


def _same_numbers(ranked: pd.DataFrame) -> list[str]:
    """Backends of one head compute one model, so their PER should agree but for rounding."""
    sentences = []
    for model, rows in ranked.groupby("model"):
        if len(rows) > 1:
            spread = 100 * (rows["phone_error_rate"].max() - rows["phone_error_rate"].min())
            sentences.append(f"The backends of {model} end within {spread:.1f} points of PER of each other.")
    return sentences


def _cards(results: pd.DataFrame) -> list[Card]:
    finished = results[results["status"] == "ok"]
    cards = [Card("Trainings", f"{len(finished)} of {len(results)}", "tables/results.csv")]
    for _, row in finished.sort_values("phone_error_rate", kind="stable").head(3).iterrows():
        value, note = f"{100 * row['phone_error_rate']:.1f}", f"boundary F1 {row['boundary_f1']:.3f}"
        cards.append(Card(f"PER, {_case(row)}", value, "tables/results.csv", "%", note))
    return cards


def _case(row: Any) -> str:
    return str(row["model"]) if row["backend"] == "own" else f"{row['model']} on {row['backend']}"


def _percent(row: Any) -> str:
    return f"{100 * row['phone_error_rate']:.1f} %"
