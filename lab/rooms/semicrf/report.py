"""Tables of the semicrf room -> CSV files, figures, one page, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.files import write_atomic
from lab.core.run import Run
from lab.report.figures import Cell, cell_grid, lines, save
from lab.report.page import (
    Block,
    Card,
    Figure,
    Files,
    Page,
    Points,
    Prose,
    Section,
    Status,
    Table,
    write_page,
)
from lab.report.tables import Heading, terminal_table, write_csv
from lab.rooms.semicrf import verdict as words
from lab.rooms.semicrf.analyze import Examination, Trainings, comparison
from lab.rooms.semicrf.layout import COMPARISON

FOUND = "✕ a fault was found"  # the badge of a diagnosis or check that is complete and not clean
PILLS = {
    **dict.fromkeys(("ok", "passed", "clean", "pass"), "ok"),
    **dict.fromkeys(("skipped", "missing", "note"), "warn"),
    **dict.fromkeys(("failed", "dirty", "fail"), "fail"),
}
QUESTIONS = {
    "train": "Does a semi-Markov CRF segment better than a linear one, and what do its backends cost?",
    "diagnose": "Why does this semi-CRF give NaN, or drift: kernel, shared code, boundaries, objective or input?",
    "check": "Do this device's kernels say the same as float64 from the definition?",
}
PER_NOTE = "Phone error rate: summed edit distance of label sequences over the reference's length, equal neighbours merged."
FOOTNOTES = {
    "train": (
        PER_NOTE,
        "Test figures are of the epoch that was best on the dev split; the test split chooses nothing.",
        "Boundary F1 pairs boundaries one to one in order, exactly or within 2 frames; a segment counts where start, end and label agree.",
        "Time of an epoch is the median without the first, which pays for compilation; memory is the peak on the GPU, and of the host's process.",
    ),
    "diagnose": (
        "A cell of the matrix is one short training; every backend has a kernel cache of its own, padding and free memory hold NaN.",
        "Probes of kernels run on one batch of the model's own scores, cut so that float64 from the definition can follow.",
        "A race that no run met is not found; a linter shows that the objective is a probability, not that it is a good one.",
    ),
    "check": ("Limits are those of docs/semicrf.md; float64 from the definition is the judge.",),
}


@dataclass(frozen=True)
class Findings:
    """What the analysis comes back with; `cause` names a diagnosis' cause."""

    verdict: list[str]
    status: Status
    files: list[Path]
    terminal: str
    lacking: list[str]
    cause: str = ""


def trainings(
    found: Trainings, out: Path, title: str, where: dict[str, dict[str, str]], *, run: Run | None
) -> Findings:
    """The page of a training run: convergence, and PER, time and memory by head and backend."""
    files = [write_csv(found.results, out / "tables" / "results.csv")]
    sections = [Section("Heads and backends", [_results_table(found.results)])]
    if len(found.epochs):
        files.append(write_csv(found.epochs, out / "tables" / "epochs.csv"))
        sections.insert(0, Section("Convergence", _convergence(found.epochs, out / "figures")))
    if len(found.durations):
        files.append(write_csv(found.durations, out / "tables" / "durations.csv"))
        sections.append(Section("Durations", _duration_blocks(found.durations)))
    if run is not None and found.raw:
        document = msgspec.json.format(msgspec.json.encode(comparison(run, found)), indent=1)
        write_atomic(out / COMPARISON, document + b"\n")
        files.append(out / COMPARISON)
        sections.append(
            Section("Files", [Files("The comparison as JSON", [(COMPARISON, "form of the TIMIT benchmark")])])
        )
    sentences = _training_words(found, run)
    done = found.results["status"] == "ok"
    status: Status = "fail" if not done.any() else "warn" if found.lacking else "ok"
    kind = (
        "synthetic"
        if run and run.manifest.config.get("data") == "synthetic"
        else "measured"
        if run
        else "replayed"
    )
    page = Page(
        title=title,
        question=QUESTIONS["train"],
        verdict=sentences,
        status=status,
        cards=_training_cards(found.results),
        sections=sections,
        provenance=where,
        footnotes=FOOTNOTES["train"],
        room="semicrf",
        kind=kind,
    )
    columns = [
        "model",
        "backend",
        "status",
        "phone_error_rate",
        "boundary_f1",
        "segment_f1",
        "epoch_time_s",
        "peak_mem_bytes",
    ]
    return _finish(page, out, files, found.results[columns], found.lacking)


def examination(
    found: Examination, out: Path, title: str, where: dict[str, dict[str, str]], run: Run
) -> Findings:
    """The page of a diagnosis."""
    config = run.manifest.config
    pair = (str(config["tested"]), str(config["reference"]))
    cells, probes = _cell_frame(found.cells), _probe_frame(found.probes)
    steps = pd.DataFrame(words.classic_steps(found.cells, *pair))
    tables = {"matrix": cells, "probes": probes, "guide_steps": steps, "guards": found.guards}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items() if len(frame)]
    verdict = words.diagnose(found.cells, found.probes, *pair)
    sentences = [*verdict.sentences, *_reproducer_words(found)]
    if config.get("plant"):
        sentences.append(f"This run had a fault planted in it: {config['plant']}.")
    status = "fail" if found.lacking and not found.cells else verdict.status
    page = Page(
        title=title,
        question=QUESTIONS["diagnose"],
        verdict=sentences,
        status=status,
        cards=_examination_cards(found, verdict),
        sections=_examination_sections(found, verdict, tables, out),
        provenance=where,
        footnotes=FOOTNOTES["diagnose"],
        room="semicrf",
        badge=FOUND if verdict.status == "fail" else "",
    )
    dirty = probes.loc[probes["verdict"] == "dirty", ["probe", "backend", "text"]]
    return _finish(page, out, files, dirty, found.lacking, cause=verdict.cause)


def _examination_sections(
    found: Examination, verdict: words.Diagnosis, tables: dict[str, pd.DataFrame], out: Path
) -> list[Section]:
    """Evidence, matrix, the guide's steps, probes, guards and reproducer, as far as they are there."""
    sections = [Section("Evidence", [Points(verdict.evidence)])] if verdict.evidence else []
    if found.cells:
        blocks = _matrix_blocks(found.cells, tables["matrix"], out / "figures", found.fixed_length)
        steps = Table(tables["guide_steps"], "Answered from the matrix", "tables/guide_steps.csv")
        sections += [Section("The matrix", blocks), Section("The guide's four steps", [steps])]
    if found.probes:
        probes = Table(
            _short(tables["probes"]), "Each asks one question", "tables/probes.csv", pills=PILLS, open_rows=60
        )
        sections.append(Section("Probes", [probes]))
    if len(found.guards):
        sections.append(Section("What the guide's guards change", _guard_blocks(found.guards)))
    if found.reproducer:
        entries = [(f"{found.reproducer_folder}/{name}", "") for name in found.reproducer["files"]]
        sections.append(Section("Reproducer", [Files("Run it with python reproduce.py", entries)]))
    return sections


def _reproducer_words(found: Examination) -> list[str]:
    if not found.reproducer:
        return []
    size = f"{found.reproducer['sequences']} sequence of {found.reproducer['frames']} frames"
    return [f"The smallest case that still fails has {size}: {found.reproducer['text']}."]


def checks(
    frame: pd.DataFrame, lacking: list[str], out: Path, title: str, where: dict[str, dict[str, str]]
) -> Findings:
    """The page of a check."""
    files = [write_csv(frame, out / "tables" / "checks.csv")]
    failed = frame[frame["verdict"] == "fail"]
    backends = ", ".join(sorted(frame["backend"].unique()))
    head = (
        f"All {len(frame)} checks of {backends} hold on this device."
        if not len(failed)
        else f"{len(failed)} of {len(frame)} checks of {backends} fail on this device."
    )
    sentences = [
        head,
        *(
            f"{row.backend}, {row.check} {row.shape} {row.dtype}: {row.text}.".replace("  ", " ")
            for row in failed.head(8).itertuples()
        ),
    ]
    table = Table(
        _short(frame),
        "Every check; values beside their limits",
        "tables/checks.csv",
        pills=PILLS,
        open_rows=120,
    )
    cards = [
        Card("Checks", f"{len(frame) - len(failed)} of {len(frame)}", "tables/checks.csv", note=backends)
    ]
    page = Page(
        title=title,
        question=QUESTIONS["check"],
        verdict=sentences,
        status="fail" if len(failed) else "ok",
        cards=cards,
        sections=[Section("Checks", [table])],
        provenance=where,
        footnotes=FOOTNOTES["check"],
        badge=FOUND if len(failed) else "",
        room="semicrf",
    )
    summary = frame.groupby(["backend", "verdict"]).size().reset_index(name="checks")
    return _finish(page, out, files, summary, lacking)


def _finish(
    page: Page, out: Path, files: list[Path], table: pd.DataFrame, lacking: list[str], cause: str = ""
) -> Findings:
    blocks = [block for section in page.sections for block in section.blocks]
    files += [out / block.png for block in blocks if isinstance(block, Figure)]
    files.append(write_page(page, out / "report.html"))
    lines_ = [page.verdict[0], *(f"- {sentence}" for sentence in page.verdict[1:])]
    shown = [terminal_table(table), ""] if len(table) else []
    terminal = "\n".join([*lines_, "", *shown, f"report: {files[-1]}"])
    return Findings(list(page.verdict), page.status, files, terminal, lacking, cause)


def _training_words(found: Trainings, run: Run | None) -> list[str]:
    done = found.results[found.results["status"] == "ok"].sort_values("phone_error_rate", kind="stable")
    if done.empty:
        return ["No training finished, so there is no result.", *found.lacking]
    best = done.iloc[0]
    sentences = [f"{_case(best)} has the least test PER: {100 * best['phone_error_rate']:.1f} %."]
    if len(done) > 1:
        rest = ", ".join(
            f"{_case(row)} {100 * row['phone_error_rate']:.1f} %" for _, row in done.iloc[1:].iterrows()
        )
        sentences.append(
            f"The others: {rest}. These are one training each: a difference of a few points may be chance."
        )
        slow, fast = done["epoch_time_s"].idxmax(), done["epoch_time_s"].idxmin()
        ratio = done.loc[slow, "epoch_time_s"] / max(done.loc[fast, "epoch_time_s"], 1e-9)
        sentences.append(
            f"An epoch takes {done.loc[fast, 'epoch_time_s']:.2f} s with {_case(done.loc[fast])} and {ratio:.1f} times that with {_case(done.loc[slow])}."
        )
    sentences += _same_numbers(done)
    if run and run.manifest.config.get("data") == "synthetic":
        sentences.append("The corpus is synthetic: PER says nothing about speech.")
    sentences += [
        f"Left out: {row.model} {row.backend} ({row.reason})."
        for row in found.results[found.results["status"] != "ok"].itertuples()
    ]
    return sentences


def _same_numbers(done: pd.DataFrame) -> list[str]:
    """Backends of one head compute one model, so their PER should agree but for rounding."""
    found = []
    for model, rows in done.groupby("model"):
        if len(rows) > 1:
            spread = 100 * (rows["phone_error_rate"].max() - rows["phone_error_rate"].min())
            found.append(f"The backends of {model} end within {spread:.1f} points of PER of each other.")
    return found


def _training_cards(results: pd.DataFrame) -> list[Card]:
    done = results[results["status"] == "ok"]
    cards = [Card("Trainings", f"{len(done)} of {len(results)}", "tables/results.csv")]
    for _, row in done.sort_values("phone_error_rate", kind="stable").head(3).iterrows():
        cards.append(
            Card(
                f"PER, {_case(row)}",
                f"{100 * row['phone_error_rate']:.1f}",
                "tables/results.csv",
                "%",
                f"boundary F1 {row['boundary_f1']:.3f}",
            )
        )
    return cards


def _results_table(results: pd.DataFrame) -> Table:
    memory = {
        "gpu_peak_mib": results["peak_mem_bytes"] / 2**20,
        "host_peak_mib": results["peak_rss_bytes"] / 2**20,
    }
    shown = results.assign(**memory).drop(columns=["peak_mem_bytes", "peak_rss_bytes"])
    shown.insert(len(shown.columns) - 1, "file", shown.pop("file"))
    told = [name for name in shown if not (shown[name].isna() | (shown[name] == "")).all()]
    headings = {
        "phone_error_rate": Heading("test PER", ""),
        "boundary_f1_2": Heading("boundary F1 within 2 frames", ""),
        "duration_kl": Heading("duration KL", "nats"),
        "epoch_time_s": Heading("time of an epoch", "s"),
    }
    return Table(
        shown[told], "Test split, the epoch that was best on dev", "tables/results.csv", headings, PILLS
    )


def _convergence(epochs: pd.DataFrame, folder: Path) -> list[Block]:
    blocks: list[Block] = []
    for column, axis, caption in (
        ("dev_per", "PER on the dev split", "Phone error rate on the dev split after each epoch."),
        (
            "loss",
            "training loss per utterance",
            "Negative log-likelihood per utterance; heads with other supports do not compare.",
        ),
    ):
        figure = save(_epoch_lines(epochs, column, axis), folder, f"convergence_{column}")
        blocks.append(Figure(figure, caption, f"figures/convergence_{column}.png", "tables/epochs.csv"))
    return blocks


def _epoch_lines(epochs: pd.DataFrame, column: str, axis: str) -> Drawing:
    wide = epochs.assign(case=epochs["model"] + " " + epochs["backend"]).pivot_table(
        index="epoch", columns="case", values=column
    )
    every = -(-len(wide) // 12)
    positions = [str(int(epoch)) if at % every == 0 else "" for at, epoch in enumerate(wide.index)]
    return lines(positions, {str(name): wide[name].to_numpy() for name in wide}, across="epoch", axis=axis)


def _duration_blocks(durations: pd.DataFrame) -> list[Block]:
    columns = ["model", "backend", "phone", "ref_count", "ref_mean", "pred_count", "pred_mean", "mae"]
    headings = {
        "mae": Heading("difference of means", "frames"),
        "ref_mean": Heading("reference mean", "frames"),
        "pred_mean": Heading("predicted mean", "frames"),
    }
    return [
        Table(durations[columns], "Durations by phone on the test split", "tables/durations.csv", headings)
    ]


def _cell_frame(cells: Sequence[dict[str, Any]]) -> pd.DataFrame:
    names = [
        "backend",
        "lengths",
        "reg",
        "order",
        "repeat",
        "outcome",
        "step",
        "message",
        "transition_max",
        "duration_max",
        "weights",
    ]
    frame: pd.DataFrame = pd.DataFrame(cells).reindex(columns=names)
    return frame


def _short(frame: pd.DataFrame) -> pd.DataFrame:
    """Values and limits from 1e-16 to 1e3 as people write them; the CSV keeps every digit."""
    texts = {
        name: ["" if pd.isna(value) else f"{value:.2g}" for value in frame[name]]
        for name in ("value", "limit")
    }
    short: pd.DataFrame = frame.assign(**texts)
    return short


def _probe_frame(probes: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(probes).reindex(
        columns=["probe", "backend", "clean", "value", "limit", "cause", "text"]
    )
    verdicts = ["clean" if clean else "dirty" for clean in frame.pop("clean")]
    frame.insert(2, "verdict", verdicts)
    renamed: pd.DataFrame = frame.rename(columns={"cause": "speaks for"})
    return renamed


def _matrix_blocks(
    cells: list[dict[str, Any]], frame: pd.DataFrame, folder: Path, fixed: int | None
) -> list[Block]:
    figure = save(_matrix_grid(cells), folder, "matrix")
    caption = (
        f"Each cell is one training. Fixed length: {fixed or 'none'} frames, shorter utterances left out. Runs of one row and "
        "order with other weights at the end are marked: same input, other bits."
    )
    shown = frame.drop(columns=["weights"])
    return [
        Figure(figure, caption, "figures/matrix.png", "tables/matrix.csv"),
        Table(shown, "Every training of the matrix", "tables/matrix.csv", pills=PILLS, open_rows=16),
    ]


def _matrix_grid(cells: list[dict[str, Any]]) -> Drawing:
    rows = list(dict.fromkeys((c["backend"], c["lengths"], c["reg"]) for c in cells))
    columns = list(dict.fromkeys((c["order"], c["repeat"]) for c in cells))
    by_place = {(c["backend"], c["lengths"], c["reg"], c["order"], c["repeat"]): c for c in cells}

    def cell(down: int, across: int) -> Cell | None:
        one = by_place.get((*rows[down], *columns[across]))
        if one is None:
            return None
        backend, lengths, reg = rows[down]
        first = by_place[backend, lengths, reg, columns[across][0], 0]
        moved = one["outcome"] == first["outcome"] == "passed" and one["weights"] != first["weights"]
        text = (
            f"step {one['step'] + 1}"
            if one["outcome"] == "failed"
            else "other bits"
            if moved
            else one["outcome"]
        )
        role = (
            "fail" if one["outcome"] == "failed" else "warn" if moved or one["outcome"] == "skipped" else "ok"
        )
        return Cell(text, role, 0.55, one["message"] or "")

    names = [f"{backend}, {lengths}, reg {reg:g}" for backend, lengths, reg in rows]
    heads = [f"order {order + 1}\nrun {repeat + 1}" for order, repeat in columns]
    return cell_grid(names, heads, cell, legend={"passed": "ok", "failed": "fail", "other bits": "warn"})


def _guard_blocks(guards: pd.DataFrame) -> list[Block]:
    text = (
        "NEG_INF, epsilon and clamps against exact arithmetic in float64. An impossible sequence has log Z = -inf and no "
        "posterior; with guards it has a score and a gradient."
    )
    shown = guards.copy()
    for name in guards.columns[1:]:
        shown[name] = [_digits(value) for value in guards[name]]
    return [Prose(text), Table(shown, "Exact and with guards", "tables/guards.csv")]


def _digits(value: Any) -> str:
    """JSON has no -inf: it comes back as an absent number."""
    return "-inf" if pd.isna(value) or np.isneginf(value) else f"{float(value):.6g}"


def _examination_cards(found: Examination, verdict: words.Diagnosis) -> list[Card]:
    failed = sum(cell["outcome"] == "failed" for cell in found.cells)
    dirty = sum(not row["clean"] for row in found.probes)
    cards = [Card("Cause", verdict.cause, "tables/probes.csv", note=words.CAUSES[verdict.cause])]
    if found.cells:
        cards.append(Card("Trainings that failed", f"{failed} of {len(found.cells)}", "tables/matrix.csv"))
    if found.probes:
        cards.append(Card("Dirty probes", f"{dirty} of {len(found.probes)}", "tables/probes.csv"))
    return cards


def _case(row: Any) -> str:
    return str(row["model"]) if row["backend"] == "own" else f"{row['model']} on {row['backend']}"
