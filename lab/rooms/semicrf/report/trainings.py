"""The page of trainings: convergence, and PER, time and memory by head and backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.files import write_atomic
from lab.core.manifest import Kind
from lab.core.plan import Findings
from lab.core.run import Run
from lab.report.figures import lines, save
from lab.report.parts import Block, Card, Figure, Files, Section, Status, Table
from lab.report.tables import write_csv
from lab.report.terminal import Heading
from lab.rooms.semicrf.analyze import Trainings, comparison
from lab.rooms.semicrf.config import COMPARISON
from lab.rooms.semicrf.report import PILLS, finish
from lab.rooms.semicrf.verdict import growth

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
TICKS = 12  # epochs named below a figure, at most
CURVES = {
    "dev_per": ("PER on the dev split", "Phone error rate on the dev split after each epoch."),
    "loss": (
        "training loss per utterance",
        "Negative log-likelihood per utterance; not comparable between heads, whose segmentations differ.",
    ),
}
RESULT_HEADINGS = {
    "phone_error_rate": Heading("test PER", ""),
    "boundary_f1_2": Heading("boundary F1 within 2 frames", ""),
    "duration_kl": Heading("duration KL", "nats"),
    "epoch_time_s": Heading("time per epoch", "s"),
}
DURATION_HEADINGS = {
    "mae": Heading("difference of means", "frames"),
    "ref_mean": Heading("reference mean", "frames"),
    "pred_mean": Heading("predicted mean", "frames"),
}
SHOWN = [
    *("model", "backend", "status", "phone_error_rate", "boundary_f1", "segment_f1"),
    *("epoch_time_s", "peak_mem_bytes"),
]


def trainings(tables: Trainings, out: Path, run: Run) -> Findings:
    """Write the page and its tables."""
    sections, files = _sections(tables, out)
    if tables.raw:
        files.append(_write_comparison(run, tables, out))
        entry = Files("The comparison as JSON", [(COMPARISON, "form of the TIMIT benchmark")])
        sections.append(Section("Files", [entry]))
    synthetic, kind = run.manifest.config.get("data") == "synthetic", run.manifest.kind
    finished = tables.results["status"] == "ok"
    words = {judgement(tables.epochs, row)[0] for _, row in tables.results[finished].iterrows()}
    doubtful = tables.missing or any(suspect for suspect, _ in notes(tables))
    status: Status = "fail" if not finished.any() or any(words) else "warn" if doubtful else "ok"
    return finish(
        *(run, out, files, tables.results[SHOWN], tables.missing),
        question=QUESTION,
        verdict=_sentences(tables, synthetic=synthetic),
        status=status,
        cards=_cards(tables.results),
        sections=sections,
        footnotes=FOOTNOTES,
        kind="synthetic" if synthetic and kind is Kind.measured else kind.value,
    )


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
        return ["No training finished: nothing to compare.", *tables.missing]
    judged = {_case(row): judgement(tables.epochs, row) for _, row in ranked.iterrows()}
    sentences = [f"{case} {text}." for case, (_, text) in judged.items() if text]
    first_case, lowest = _case(ranked.iloc[0]), _percent(ranked.iloc[0])
    if ranked.iloc[0]["phone_error_rate"] > 1:
        sentences.append(f"No head learned the phones: the test PER of {first_case} is {lowest}.")
    elif len(ranked) == 1:
        sentences.append(f"The test PER of {first_case} is {lowest}.")
    else:
        sentences.append(f"{first_case} has the lowest test PER: {lowest}.")
    if len(ranked) > 1:
        competitors = ", ".join(f"{_case(row)} {_percent(row)}" for _, row in ranked.iloc[1:].iterrows())
        sentences.append(
            f"The others: {competitors}. These are one training each: a difference of a few points may be "
            "chance."
        )
        sentences.append(_epoch_times(ranked))
    sentences += [f"{text}." for _, text in notes(tables)]
    if synthetic:
        sentences.append("The corpus is synthetic: PER says nothing about speech.")
    left_out = tables.results[~finished].itertuples()
    return [*sentences, *(f"Left out: {row.model} {row.backend} ({row.reason})." for row in left_out)]


def judgement(epochs: pd.DataFrame, case: Any) -> tuple[str, str]:
    """`verdict.growth` of a head on a backend."""
    rows = epochs[(epochs["model"] == case["model"]) & (epochs["backend"] == case["backend"])]
    sizes = rows[["transition_max", "duration_max"]].max().dropna()
    return growth(sizes.tolist(), rows["loss"].dropna().tolist(), rows["lr"].max())


def notes(tables: Trainings) -> list[tuple[bool, str]]:
    """What the corpus' reader noted, (whether it makes figures doubtful, text), once for all trainings."""
    pairs = (pair for raw in tables.raw.values() for pair in raw.get("notes", ()))
    return list(dict.fromkeys((bool(suspect), str(text)) for suspect, text in pairs))


def _epoch_times(ranked: pd.DataFrame) -> str:
    slow = ranked.iloc[int(ranked["epoch_time_s"].argmax())]
    fast = ranked.iloc[int(ranked["epoch_time_s"].argmin())]
    ratio = slow["epoch_time_s"] / max(fast["epoch_time_s"], 1e-9)
    return (
        f"An epoch takes {fast['epoch_time_s']:.2f} s with {_case(fast)} and {ratio:.1f} times that with "
        f"{_case(slow)}."
    )


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


def results_table(results: pd.DataFrame) -> Table:
    """Every head and backend; columns that hold nothing are left out."""
    memory = {
        "gpu_peak_mib": results["peak_mem_bytes"] / 2**20,
        "host_peak_mib": results["peak_rss_bytes"] / 2**20,
    }
    shown = results.assign(**memory).drop(columns=["peak_mem_bytes", "peak_rss_bytes"])
    shown.insert(len(shown.columns) - 1, "file", shown.pop("file"))
    filled = [name for name in shown if not (shown[name].isna() | (shown[name] == "")).all()]
    title = "Test split, at the epoch that was best on dev"
    return Table(shown[filled], title, "tables/results.csv", RESULT_HEADINGS, PILLS)


def convergence(epochs: pd.DataFrame, folder: Path) -> list[Block]:
    """PER on the dev split and the loss, by epoch."""
    blocks: list[Block] = []
    for column, (axis, caption) in CURVES.items():
        figure = save(_epoch_lines(epochs, column, axis), folder, f"convergence_{column}")
        blocks.append(Figure(figure, caption, f"figures/convergence_{column}.png", "tables/epochs.csv"))
    return blocks


def _epoch_lines(epochs: pd.DataFrame, column: str, axis: str) -> Drawing:
    case = epochs["model"] + " " + epochs["backend"]
    wide = epochs.assign(case=case).pivot_table(index="epoch", columns="case", values=column)
    step = -(-len(wide) // TICKS)
    positions = [str(int(epoch)) if index % step == 0 else "" for index, epoch in enumerate(wide.index)]
    return lines(positions, {str(name): wide[name].to_numpy() for name in wide}, across="epoch", axis=axis)


def duration_blocks(durations: pd.DataFrame) -> list[Block]:
    """Mean durations per phone, reference and predicted."""
    columns = ["model", "backend", "phone", "ref_count", "ref_mean", "pred_count", "pred_mean", "mae"]
    title = "Durations by phone on the test split"
    return [Table(durations[columns], title, "tables/durations.csv", DURATION_HEADINGS)]
