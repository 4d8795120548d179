"""The pages of trainings, of a diagnosis and of a check: a run -> tables, figures, report.html."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.files import write_atomic
from lab.core.manifest import Kind
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import plural
from lab.report.figures import Cell, cell_grid, lines, save
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Files, Page, Points, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.report.terminal import Heading
from lab.rooms.semicrf import verdict as verdicts
from lab.rooms.semicrf.analyze import (
    Examination,
    Trainings,
    comparison,
    read_checks,
    read_examination,
    read_trainings,
)
from lab.rooms.semicrf.config import COMPARISON

FOUND = "✕ a fault was found"  # the badge of a diagnosis or check that is complete and not clean
PILLS = {
    **dict.fromkeys(("ok", "passed", "clean", "pass"), "ok"),
    **dict.fromkeys(("skipped", "missing", "note"), "warn"),
    **dict.fromkeys(("failed", "dirty", "fail"), "fail"),
}


def analyse_semicrf(out: Path, run: Run, progress: Callable[[str], None]) -> Findings:
    """Tables, figures and report.html into `out`."""
    command = run.manifest.config.get("command")
    progress(f"  {command}: {plural(len(run.manifest.steps), 'step')}")
    if command == "diagnose":
        return examination(read_examination(run), out, run)
    if command == "check":
        return checks(*read_checks(run), out, run)
    return trainings(read_trainings(run), out, run)


def write_tables(out: Path, **tables: pd.DataFrame) -> list[Path]:
    """Those that have rows."""
    return [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items() if len(frame)]


def finish(
    run: Run, out: Path, files: list[Path], shown: pd.DataFrame, missing: list[str], **parts: Any
) -> Findings:
    """Write the page of these parts; `shown` is for the terminal, below the verdict."""
    manifest = run.manifest
    run_parts = {"provenance": provenance(run.root, manifest), "room": "semicrf", "kind": manifest.kind.value}
    page = Page(f"Semi-CRF {manifest.config.get('command')} {manifest.id}", **{**run_parts, **parts})
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    verdict = [page.verdict[0], *(f"- {sentence}" for sentence in page.verdict[1:])]
    table = [terminal_table(shown), ""] if len(shown) else []
    terminal = "\n".join([*verdict, "", *table, f"report: {files[-1]}"])
    return Findings(list(page.verdict), page.status, files, terminal, missing)


def short_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Values and limits from 1e-16 to 1e3 as people write them; the CSV keeps every digit."""
    texts = {
        name: ["" if pd.isna(value) else f"{value:.2g}" for value in frame[name]]
        for name in ("value", "limit")
    }
    short: pd.DataFrame = frame.assign(**texts)
    return short


# The page of a check: every check of this device's kernels with its value beside its limit.

NEVER = (
    "any other device",
    "scores of single segments",
    "second derivatives",
    "k best, draws and entropy, which run in torch",
    "float16 and bfloat16",
    "more than 3,000 frames",
)
SHOWN_CHECKS = 8  # failed checks in the verdict; the table has all


def checks(frame: pd.DataFrame, missing: list[str], out: Path, run: Run) -> Findings:
    failed = frame[frame["verdict"] == "fail"]
    backends, total = ", ".join(sorted(frame["backend"].unique())), plural(len(frame), "check")
    sentences = [f"All {total} of {backends} passed on this device."]
    if len(failed):
        sentences = [f"{len(failed)} of {total} of {backends} failed on this device."]
    for row in failed.head(SHOWN_CHECKS).itertuples():
        text = f"{row.backend}, {row.check} {row.shape} {row.dtype}: {row.text}."
        sentences.append(text.replace("  ", " "))
    # What no row looked at: compiled and tensor forms that did not run, and what no check has.
    left = [name for name in ("torch", "native") if name not in " ".join(frame["backend"].unique())]
    sentences.append(f"Not covered by this run: {', '.join([*left, *NEVER])}.")
    source, heading = "tables/checks.csv", "Every check; values beside their limits"
    table = Table(short_numbers(frame), heading, source, pills=PILLS, open_rows=120)
    summary = frame.groupby(["backend", "verdict"]).size().reset_index(name="checks")
    return finish(
        *(run, out, write_tables(out, checks=frame), summary, missing),
        question="Do this device's kernels agree with float64 from the definition?",
        verdict=sentences,
        status="fail" if len(failed) else "ok",
        cards=[Card("Checks", f"{len(frame) - len(failed)} of {len(frame)}", source, note=backends)],
        sections=[Section("Checks", [table])],
        footnotes=["Limits are those of docs/semicrf.md; the reference is float64 from the definition."],
        badge=FOUND if len(failed) else "",
    )


# The page of a diagnosis: one cause with its evidence, the matrix, the probes and the reproducer.

KERNEL_ALONE = "Not covered: shapes, dtypes and devices that no probe has, decoding, loss and training."
EXAMINATION_NOTES = (
    "A cell of the matrix is one short training; padding and free memory hold NaN.",
    "Probes of kernels run on one batch of the model's own scores, cut to a size that float64 from the "
    "definition can compute.",
    "A race that did not show in any run is not found. The linter shows that the objective is a probability, "
    "not that it is a good one.",
)
CELL_COLUMNS = (
    *("backend", "lengths", "reg", "order", "repeat"),
    *("outcome", "step", "message", "transition_max", "duration_max", "weights"),
)
PROBE_COLUMNS = ("probe", "backend", "clean", "value", "limit", "cause", "text")


def examination(examined: Examination, out: Path, run: Run) -> Findings:
    named = run.manifest.config.get("partition")
    if named:
        verdict = verdicts.of_kernel(examined.probes, named)
    else:
        verdict = verdicts.diagnose(examined.cells, examined.probes, examined.tested, examined.reference)
    probes = pd.DataFrame(examined.probes).reindex(columns=list(PROBE_COLUMNS))
    probes["clean"] = ["clean" if clean else "dirty" for clean in probes["clean"]]
    probes = probes.rename(columns={"clean": "verdict", "cause": "speaks for"})
    matrix = pd.DataFrame(examined.cells).reindex(columns=list(CELL_COLUMNS))
    sentences = list(verdict.sentences)
    if examined.reproducer:
        sequences, frames = (plural(examined.reproducer[f"{unit}s"], unit) for unit in ("sequence", "frame"))
        size = f"{sequences} of {frames}"
        sentences.append(f"The smallest case that still fails has {size}: {examined.reproducer['text']}.")
    sentences += [KERNEL_ALONE] if named else [_not_covered(examined)]
    sentences += [] if examined.cells and examined.probes else [f"{reason}." for reason in examined.missing]
    dirty = probes.loc[probes["verdict"] == "dirty", ["probe", "backend", "text"]]
    cards = [Card("Cause", verdict.cause, "tables/probes.csv", note=verdicts.CAUSES[verdict.cause])]
    sections = [Section("Evidence", [Points(verdict.evidence)])] if verdict.evidence else []
    if examined.cells:
        failed = sum(cell["outcome"] == "failed" for cell in examined.cells)
        cards.append(Card("Trainings that failed", f"{failed} of {len(matrix)}", "tables/matrix.csv"))
        sections.append(Section("The matrix", _matrix_blocks(examined, matrix, out / "figures")))
    if examined.probes:
        cards.append(Card("Dirty probes", f"{len(dirty)} of {len(probes)}", "tables/probes.csv"))
        heading, rows = "Each asks one question", short_numbers(probes)
        table = Table(rows, heading, "tables/probes.csv", pills=PILLS, open_rows=60)
        sections.append(Section("Probes", [table]))
    if examined.reproducer:
        entries = [(f"{examined.reproducer_folder}/{name}", "") for name in examined.reproducer["files"]]
        sections.append(Section("Reproducer", [Files("Run it with python reproduce.py", entries)]))
    return finish(
        *(run, out, write_tables(out, matrix=matrix, probes=probes), dirty, examined.missing),
        question="Why does this semi-CRF give NaN, or drift: kernel, shared code, boundaries, objective or "
        "input?",
        verdict=sentences,
        status="fail" if examined.missing and not examined.cells else verdict.status,
        cards=cards,
        sections=sections,
        footnotes=EXAMINATION_NOTES,
        badge=FOUND if verdict.status == "fail" else "",
    )


def _not_covered(examined: Examination) -> str:
    """What ran, and the forms and functions that nothing here looked at."""
    ran = {row["backend"] for row in (*examined.cells, *examined.probes)} - {""}
    if not ran:
        return "Nothing was covered: no part of this run finished."
    left = [text for name, text in (("torch", "torch"), ("native", "the compiled form")) if name not in ran]
    if examined.device == "cpu" and "native" in ran:
        left.append("the compiled form for GPUs")
    place = "CPU" if examined.device == "cpu" else "GPU"
    return (
        f"Covered: {' and '.join(sorted(ran))} on this {place}, the loss and its gradient. "
        f"Not covered: {', '.join([*left, 'decoding', 'sampling'])}; "
        "lab run semicrf check compares the decoding and the forms of its device with float64."
    )


def _matrix_blocks(examined: Examination, matrix: pd.DataFrame, folder: Path) -> list[Block]:
    """The picture and the table."""
    fixed = examined.fixed_length
    length = "none" if fixed is None else plural(fixed, "frame")
    caption = (
        f"Each cell is one training. Fixed length: {length}; shorter utterances are left out. Cells of one "
        "row and order that ended with different weights are marked: same input, different bits."
    )
    source, shown = "tables/matrix.csv", matrix.drop(columns=["weights"])
    return [
        Figure(save(_grid(examined.cells), folder, "matrix"), caption, "figures/matrix.png", source),
        Table(shown, "Every training of the matrix", source, pills=PILLS, open_rows=16),
    ]


def _grid(cells: Sequence[dict[str, Any]]) -> Drawing:
    rows = list(dict.fromkeys((c["backend"], c["lengths"], c["reg"]) for c in cells))
    columns = list(dict.fromkeys((c["order"], c["repeat"]) for c in cells))
    by_key = {(c["backend"], c["lengths"], c["reg"], c["order"], c["repeat"]): c for c in cells}

    def cell(down: int, across: int) -> Cell | None:
        case = rows[down]
        training = by_key.get((*case, *columns[across]))
        if training is None:
            return None
        first_repeat = (*case, columns[across][0], 0)
        text, role = _look(training, by_key[first_repeat])
        return Cell(text, role, 0.55, training["message"] or "")

    names = [f"{backend}, {lengths}, reg {reg:g}" for backend, lengths, reg in rows]
    heads = [f"order {order + 1}\nrun {repeat + 1}" for order, repeat in columns]
    legend = {"passed": "ok", "failed": "fail", "different bits": "warn"}
    return cell_grid(names, heads, cell, legend=legend)


def _look(training: dict[str, Any], reference: dict[str, Any]) -> tuple[str, str]:
    """Text and colour of a training; `reference` is the first repeat with the same input."""
    if training["outcome"] == "failed":
        return f"step {training['step'] + 1}", "fail"
    both_passed = training["outcome"] == reference["outcome"] == "passed"
    if both_passed and training["weights"] != reference["weights"]:
        return "different bits", "warn"
    return training["outcome"], "warn" if training["outcome"] == "skipped" else "ok"


# The page of trainings: convergence, and PER, time and memory by head and backend.

TRAINING_NOTES = (
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
DURATION_COLUMNS = ["model", "backend", "phone", "ref_count", "ref_mean", "pred_count", "pred_mean", "mae"]
SHOWN_RESULTS = [
    *("model", "backend", "status", "phone_error_rate", "boundary_f1", "segment_f1"),
    *("epoch_time_s", "peak_mem_bytes"),
]


def trainings(data: Trainings, out: Path, run: Run) -> Findings:
    results, epochs, durations = data.results, data.epochs, data.durations
    files = write_tables(out, results=results, epochs=epochs, durations=durations)
    sections = [Section("Convergence", convergence(epochs, out / "figures"))] if len(epochs) else []
    sections.append(Section("Heads and backends", [results_table(results)]))
    if len(durations):
        title, source = "Durations by phone on the test split", "tables/durations.csv"
        table = Table(durations[DURATION_COLUMNS], title, source, DURATION_HEADINGS)
        sections.append(Section("Durations", [table]))
    if data.raw:
        document = msgspec.json.format(msgspec.json.encode(comparison(run, data)), indent=1)
        write_atomic(out / COMPARISON, document + b"\n")
        files.append(out / COMPARISON)
        entry = Files("The comparison as JSON", [(COMPARISON, "form of the TIMIT benchmark")])
        sections.append(Section("Files", [entry]))
    synthetic, kind = run.manifest.config.get("data") == "synthetic", run.manifest.kind
    finished = results[results["status"] == "ok"]
    ranked = finished.sort_values("phone_error_rate", kind="stable")
    judged = {_case(row): judgement(epochs, row) for _, row in ranked.iterrows()}
    # What the corpus' reader noted, (whether it makes figures doubtful, text), once for all trainings.
    pairs = (pair for raw in data.raw.values() for pair in raw.get("notes", ()))
    notes = list(dict.fromkeys((bool(suspect), str(text)) for suspect, text in pairs))
    if ranked.empty:
        sentences = ["No training finished: nothing to compare.", *data.missing]
    else:
        sentences = [f"{case} {text}." for case, (_, text) in judged.items() if text]
        sentences += [*_ranking(ranked), *(f"{text}." for _, text in notes)]
        sentences += ["The corpus is synthetic: PER says nothing about speech."] if synthetic else []
        left_out = results[results["status"] != "ok"].itertuples()
        sentences += [f"Left out: {row.model} {row.backend} ({row.reason})." for row in left_out]
    failed = ranked.empty or any(word for word, _ in judged.values())
    doubtful = data.missing or any(suspect for suspect, _ in notes)
    status: Status = "fail" if failed else "warn" if doubtful else "ok"
    source = "tables/results.csv"
    cards = [Card("Trainings", f"{len(finished)} of {len(results)}", source)]
    for _, row in ranked.head(3).iterrows():
        value, note = f"{100 * row['phone_error_rate']:.1f}", f"boundary F1 {row['boundary_f1']:.3f}"
        cards.append(Card(f"PER, {_case(row)}", value, source, "%", note))
    return finish(
        *(run, out, files, results[SHOWN_RESULTS], data.missing),
        question="Does a semi-Markov CRF segment better than a linear one, and what do its backends cost?",
        verdict=sentences,
        status=status,
        cards=cards,
        sections=sections,
        footnotes=TRAINING_NOTES,
        kind="synthetic" if synthetic and kind is Kind.measured else kind.value,
    )


def _ranking(ranked: pd.DataFrame) -> list[str]:
    """Who has the lowest PER, and how much longer the slowest takes."""
    cases = [f"{_case(row)} {100 * row['phone_error_rate']:.1f} %" for _, row in ranked.iterrows()]
    first_case, lowest = _case(ranked.iloc[0]), f"{100 * ranked.iloc[0]['phone_error_rate']:.1f} %"
    if ranked.iloc[0]["phone_error_rate"] > 1:
        sentences = [f"No head learned the phones: the test PER of {first_case} is {lowest}."]
    elif len(ranked) == 1:
        sentences = [f"The test PER of {first_case} is {lowest}."]
    else:
        sentences = [f"{first_case} has the lowest test PER: {lowest}."]
    if len(ranked) == 1:
        return sentences
    slow = ranked.iloc[int(ranked["epoch_time_s"].argmax())]
    fast = ranked.iloc[int(ranked["epoch_time_s"].argmin())]
    ratio = slow["epoch_time_s"] / max(fast["epoch_time_s"], 1e-9)
    return [
        *sentences,
        f"The others: {', '.join(cases[1:])}. These are one training each: a difference of a few points may "
        "be chance.",
        f"An epoch takes {fast['epoch_time_s']:.2f} s with {_case(fast)} and {ratio:.1f} times that with "
        f"{_case(slow)}.",
    ]


def judgement(epochs: pd.DataFrame, case: Any) -> tuple[str, str]:
    """`verdict.growth` of a head on a backend."""
    rows = epochs[(epochs["model"] == case["model"]) & (epochs["backend"] == case["backend"])]
    sizes = rows[["transition_max", "duration_max"]].max().dropna()
    return verdicts.growth(sizes.tolist(), rows["loss"].dropna().tolist(), rows["lr"].max())


def _case(row: Any) -> str:
    return str(row["model"]) if row["backend"] == "own" else f"{row['model']} on {row['backend']}"


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
    case = epochs["model"] + " " + epochs["backend"]
    for column, (axis, caption) in CURVES.items():
        wide = epochs.assign(case=case).pivot_table(index="epoch", columns="case", values=column)
        step = -(-len(wide) // TICKS)
        ticks = [str(int(epoch)) if index % step == 0 else "" for index, epoch in enumerate(wide.index)]
        curves = {str(name): wide[name].to_numpy() for name in wide}
        figure, name = lines(ticks, curves, across="epoch", axis=axis), f"convergence_{column}"
        blocks.append(Figure(save(figure, folder, name), caption, f"figures/{name}.png", "tables/epochs.csv"))
    return blocks
