"""The room's tables -> CSV files, figures, ANALYSIS_SUMMARY.txt and one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.files import write_atomic
from lab.report.figures import Cell as GridCell
from lab.report.figures import cell_grid, lines, roofline, save, stacked_bars
from lab.report.page import Block, Card, Figure, Page, Points, Prose, Section, Status, Table, write_page
from lab.report.tables import Heading, terminal_table, write_csv
from lab.rooms.nsys.answers import FAILED, OK, OPEN, Answer, CellData, ceilings, python_ms, roofline_points
from lab.rooms.nsys.config import QUESTIONS, TYPES
from lab.rooms.nsys.flops import SIZES

TITLE = "Where does the time of a Transformer go"
# Kernel classes drawn as one colour each: role -> (words, classes).
DRAWN = {
    "computation": ("matrix products", ("gemm", "gemv", "attention", "conv")),
    "communication": ("elementwise", ("elementwise", "mask", "rope", "triton")),
    "memcpy": ("copies and gathers", ("copy", "index", "memcpy", "memset")),
    "ok": ("reductions, softmax, norms", ("reduce", "softmax", "norm", "splitk_reduce")),
    "fail": ("optimizer", ("optimizer",)),
    "unknown": ("other", ()),
}
PILLS = {
    OK: "ok",
    FAILED: "fail",
    OPEN: "unknown",
    "no answer": "unknown",
    "oom": "warn",
    "failed": "fail",
    "timeout": "fail",
    "no_gpu_data": "warn",
    "skipped_estimate": "warn",
    "missing": "fail",
    "unreadable": "fail",
}
RESULT = (
    "ok",
    "oom",
    "no_gpu_data",
    "skipped_estimate",
)  # outcomes that are results; any other lacks something
FOOTNOTES = (
    "Kernel time is the sum of kernel durations, busy the union of all device work, span from its first start to its "
    "last end, wall the range's own time on the host. They differ, and none stands for another.",
    "Means over the measured steps; warm-up steps are left out. ± is the sample standard deviation.",
    "A kernel belongs to the range on the thread that launched it; without a phase there, to the phase that encloses the "
    "launch on another thread of the process. nsys' own reports use the first rule alone, and so lose backward.",
    "Matrix products are kernels whose name says so, split-K reductions apart; FLOPs count multiply and add as two.",
    "Least bytes read each input and write each output once; plain softmax is five such passes.",
)


@dataclass(frozen=True)
class Findings:
    """What the room found; `lacking` says what was asked for and is not there."""

    verdict: list[str]
    status: Status
    files: list[Path]
    terminal: str
    lacking: list[str]
    answers: list[Answer]


@dataclass(frozen=True)
class Results:
    """All that the page is made of. cells: a row per cell with outcome; data: cells with tables."""

    cells: pd.DataFrame
    data: list[CellData]
    answers: list[Answer]
    problems: pd.DataFrame


def report(
    results: Results, *, out: Path, title: str, provenance: dict[str, dict[str, str]], kind: str
) -> Findings:
    """Write tables, figures, the summary and report.html below `out`, and say what they show."""
    tables = all_tables(results)
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    sentences, status = verdict(results), status_of(results)
    page = Page(
        title=title,
        question=TITLE + "?",
        verdict=sentences,
        status=status,
        cards=_cards(results, tables),
        sections=_sections(results, tables, out / "figures"),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nsys",
        kind=kind,
    )
    blocks = [block for section in page.sections for block in section.blocks]
    files += [out / block.png for block in blocks if isinstance(block, Figure)]
    files.append(write_page(page, out / "report.html"))
    lacking = _lacking(results)
    terminal = "\n\n".join(
        ["\n".join(sentences), terminal_table(_short(results.cells)), f"report: {files[-1]}"]
    )
    return Findings(sentences, status, files, terminal, lacking, results.answers)


def all_tables(results: Results) -> dict[str, pd.DataFrame]:
    """Every table of the room, by the name of its CSV."""
    answers = pd.DataFrame(
        [{"part": a.part, "cell": a.cell, "state": a.state, "answer": a.sentence} for a in results.answers],
        columns=["part", "cell", "state", "answer"],
    )
    checks = pd.DataFrame(
        [
            {
                "part": a.part,
                "cell": a.cell,
                "check": c.name,
                "state": c.state,
                "expected": c.expected,
                "found": c.found,
            }
            for a in results.answers
            for c in a.checks
        ],
        columns=["part", "cell", "check", "state", "expected", "found"],
    )
    values = pd.DataFrame(
        [
            {"part": a.part, "cell": a.cell, "name": name, "value": value}
            for a in results.answers
            for name, value in a.values.items()
        ],
        columns=["part", "cell", "name", "value"],
    )
    of_cells = {
        name: _joined(
            [(cell, getattr(cell.tables, name)) for cell in results.data if cell.tables is not None]
        )
        for name in ("phases", "classes", "kernels", "parts")
    }
    return {
        "cells": results.cells,
        "overview": overview(results),
        "answers": answers,
        "checks": checks,
        "values": values,
        "phases": of_cells["phases"],
        "classes": of_cells["classes"],
        "kernels": of_cells["kernels"],
        "attention": of_cells["parts"],
        "cpu_ops": _joined(
            [(cell, cell.recording.cpu_ops) for cell in results.data if cell.recording is not None]
        ),
        "roofline": _roofline_table(results),
        "problems": results.problems,
    }


def verdict(results: Results) -> list[str]:
    """How much was recorded and by whom, then an answer to each question: the largest cell that has one."""
    counts = results.cells["outcome"].value_counts()
    have = f"{int(counts.get('ok', 0))} of {len(results.cells)} cells recorded"
    rest = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok")
    collectors = sorted(set(results.cells.loc[results.cells["collector"] != "", "collector"]))
    by = f" by {' and '.join(collectors)}" if collectors else ""
    sentences = [f"{have}{by}{f' ({rest})' if rest else ''}."]
    if len(results.cells) and (results.cells["outcome"] == "no_gpu_data").all():
        sentences.append(
            "There are no GPU kernels: only wall times are known, and questions (b) to (e) stay open."
        )
    for part in QUESTIONS:
        given = [answer for answer in results.answers if answer.part == part and answer.given]
        if given:
            sentences.append(f"({part}) {given[-1].cell}: {given[-1].sentence}")
    return [*sentences, *_check_sentence(results.answers)]


def _check_sentence(answers: Sequence[Answer]) -> list[str]:
    checks = [check for answer in answers for check in answer.checks]
    bad = [(answer, check) for answer in answers for check in answer.checks if check.state == FAILED]
    if not checks:
        return []
    words = f"{sum(check.state == OK for check in checks)} of {len(checks)} self-checks hold"
    open_checks = sum(check.state == OPEN for check in checks)
    if open_checks:
        words += f", {open_checks} could not be made"
    if bad:
        answer, first = bad[0]
        words += (
            f"; {len(bad)} failed, the first in ({answer.part}) {answer.cell}: {first.name}, "
            f"expected {first.expected}, found {first.found}"
        )
    return [words + "."]


def status_of(results: Results) -> Status:
    if not any(answer.given for answer in results.answers) and _lacking(results):
        return "fail"
    doubts = (
        bool((results.cells["outcome"] != "ok").any()),
        any(answer.state != OK for answer in results.answers),
        len(results.problems) > 0,
    )
    return "warn" if any(doubts) else "ok"


def _lacking(results: Results) -> list[str]:
    bad = results.cells[~results.cells["outcome"].isin(RESULT)]
    return [f"{row.cell}: {row.outcome}{f': {row.reason}' if row.reason else ''}" for row in bad.itertuples()]


def _cards(results: Results, tables: dict[str, pd.DataFrame]) -> list[Card]:
    cells = results.cells
    cards = [
        Card("Cells recorded", f"{int((cells['outcome'] == 'ok').sum())} of {len(cells)}", "tables/cells.csv")
    ]
    for answer in reversed(results.answers):
        if answer.part == "d" and answer.given:
            share = float(answer.values["step_matmul_percent"])
            cards.append(
                Card("Matrix products, training step", f"{share:.1f}", "tables/values.csv", "%", answer.cell)
            )
            break
    for answer in reversed(results.answers):
        if answer.part == "e" and answer.given:
            cards.append(
                Card(
                    "Softmax over QK^T",
                    f"{float(answer.values['time_ratio']):.2f}",
                    "tables/values.csv",
                    "×",
                    f"time per layer, {answer.cell}",
                )
            )
            break
    checks = tables["checks"]
    if len(checks):
        held = int((checks["state"] == OK).sum())
        cards.append(Card("Self-checks that hold", f"{held} of {len(checks)}", "tables/checks.csv"))
    return cards


def _sections(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Section]:
    found = [
        Section("Answers", _answer_blocks(results, tables)),
        Section("Sizes and contexts", _matrix_blocks(results, folder)),
        Section("Where the time goes", _time_blocks(results, tables, folder)),
        Section("Attention and ceilings", _attention_blocks(results, tables, folder)),
        Section(
            "Self-checks",
            [Table(tables["checks"], "Every check of every answer", "tables/checks.csv", pills=PILLS)]
            if len(tables["checks"])
            else [],
        ),
        Section(
            "Problems",
            [
                Table(
                    results.problems,
                    "What could not be read, or is not as it should be",
                    "tables/problems.csv",
                )
            ]
            if len(results.problems)
            else [],
        ),
    ]
    return [section for section in found if section.blocks]


def _answer_blocks(results: Results, tables: dict[str, pd.DataFrame]) -> list[Block]:
    blocks: list[Block] = []
    for part, question in QUESTIONS.items():
        given = [answer for answer in results.answers if answer.part == part]
        if given:
            blocks.append(Prose(f"({part}) {question}"))
            blocks.append(Points([f"{a.cell}: {a.sentence}{_mark(a)}" for a in given[:12]]))
    if len(tables["answers"]):
        blocks.append(Table(tables["answers"], "All answers", "tables/answers.csv", pills=PILLS, open_rows=0))
    return blocks


def _mark(answer: Answer) -> str:
    failed = [check.name for check in answer.checks if check.state == FAILED]
    return f" A self-check failed: {'; '.join(failed)}." if failed else ""


# Column of the overview -> part and name of the value that fills it.
OVERVIEW = {
    "forward_ms": ("a", "range_ms"),
    "forward_plain_ms": ("a", "python_plain_ms"),
    "forward_busy_ms": ("a", "busy_ms"),
    "not_matmul_percent": ("c", "not_matmul_percent"),
    "forward_matmul_percent": ("d", "forward_matmul_percent"),
    "backward_matmul_percent": ("d", "backward_matmul_percent"),
    "training_matmul_percent": ("d", "step_matmul_percent"),
    "softmax_us": ("e", "computing_softmax_us"),
    "qk_gemm_us": ("e", "qk_gemm_us"),
    "av_gemm_us": ("e", "av_gemm_us"),
    "softmax_over_qk": ("e", "time_ratio"),
}


def overview(results: Results) -> pd.DataFrame:
    """The answers' main numbers, a row per size and context; empty where a question has no answer."""
    values = {(answer.cell, answer.part): answer.values for answer in results.answers if answer.given}
    rows: dict[tuple[str, int], dict[str, object]] = {}
    for cell in results.data:
        place = (cell.found.cell.size, cell.found.cell.context)
        row = rows.setdefault(place, {"size": place[0], "context": place[1]})
        row |= {
            column: values[cell.label, part][name]
            for column, (part, name) in OVERVIEW.items()
            if name in values.get((cell.label, part), {})
        }
    table: pd.DataFrame = pd.DataFrame(list(rows.values()), columns=["size", "context", *OVERVIEW])
    return table


def _matrix_blocks(results: Results, folder: Path) -> list[Block]:
    cells = results.cells
    caption = (
        "Wall time of a measured step, mean; a cell that has none says why. Under a profiler: the time without one is in "
        "the table."
    )
    svg = save(_matrix(cells), folder, "matrix")
    shown = cells.drop(columns=["cell", "capture"])
    shown = shown[[name for name in shown if (shown[name].notna() & (shown[name] != "")).any()]]
    return [
        Figure(svg, caption, "figures/matrix.png", "tables/cells.csv"),
        Table(
            overview(results).dropna(axis="columns", how="all"), "Answers in numbers", "tables/overview.csv"
        ),
        Table(shown, "Every cell", "tables/cells.csv", headings=HEADINGS, pills=PILLS),
    ]


HEADINGS = {
    "not_nsys_because": Heading("not nsys, because", ""),
    "wall_ms": Heading("step, wall", "ms"),
    "plain_ms": Heading("step, no profiler", "ms"),
    "overhead_percent": Heading("profiler's overhead", "%"),
}


def _matrix(cells: pd.DataFrame) -> Drawing:
    known = [size for size in SIZES if size in set(cells["size"])]
    sizes = list(dict.fromkeys([*known, *cells["size"]]))
    columns = sorted(
        set(zip(cells["context"], cells["type"], strict=True)), key=lambda c: (TYPES.index(c[1]), c[0])
    )
    by_place = {
        (row.size_, row.context, row.type): row
        for row in cells.rename(columns={"size": "size_"}).itertuples()
    }

    def cell(down: int, across: int) -> GridCell | None:
        row = by_place.get((sizes[down], *columns[across]))
        if row is None:
            return None
        if row.wall_ms > 0:
            role = {"ok": "ok", "no_gpu_data": "warn"}.get(row.outcome, "unknown")
            return GridCell(f"{row.wall_ms:.3g} ms", role, 0.3, f"{row.cell}: {row.wall_ms:.3f} ms")
        return GridCell(
            str(row.outcome).replace("skipped_estimate", "too big"), "fail", 0.3, f"{row.cell}: {row.reason}"
        )

    words = {"forward_backward": "fwd+bwd"}
    names = [f"{words.get(kind, kind)} {context}" for context, kind in columns]
    return cell_grid(sizes, names, cell, legend={})


def _time_blocks(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Block]:
    classes, phases = tables["classes"], tables["phases"]
    blocks: list[Block] = []
    if len(classes):
        drawing = _phase_bars(results)
        caption = "Kernel time of each phase by class of kernel, mean of a step; the fullest profile type of each size and context."
        blocks.append(
            Figure(save(drawing, folder, "phases"), caption, "figures/phases.png", "tables/classes.csv")
        )
        contexts = sorted({cell.found.cell.context for cell in results.data})
        shares = _shares(results, contexts)
        if len(contexts) > 1 and shares:
            caption = "Share of forward's kernel time that is matrix products, over the context length."
            drawing = lines(
                [str(context) for context in contexts],
                shares,
                across="context length (tokens)",
                axis="matrix products, % of forward",
            )
            svg = save(drawing, folder, "share_over_context")
            blocks.append(Figure(svg, caption, "figures/share_over_context.png", "tables/phases.csv"))
    if len(phases):
        blocks.append(Table(phases, "Phases", "tables/phases.csv"))
    if not len(classes) and len(tables["cpu_ops"]):
        top = tables["cpu_ops"].groupby("cell", sort=False).head(10)
        blocks.append(
            Table(top, "The ten costliest CPU operators of a step, by self time", "tables/cpu_ops.csv")
        )
    if len(classes):
        whole = classes[classes["phase"] != "step"]
        blocks.append(Table(whole, "Classes of kernels", "tables/classes.csv", open_rows=12))
        top = tables["kernels"].groupby(["cell", "phase"], sort=False).head(5)
        top = top[top["phase"] != "step"].drop(columns=["name"])
        blocks.append(
            Table(top, "The five costliest kernels of each phase", "tables/kernels.csv", open_rows=12)
        )
    return blocks


def _phase_bars(results: Results) -> Drawing:
    labels, rows = [], []
    for cell in _fullest(results.data):
        assert cell.tables is not None
        classes = cell.tables.classes
        for phase in ("forward", "backward", "optimizer_step"):
            found = classes[classes["phase"] == phase].set_index("class")["ms"]
            if len(found):
                labels.append(
                    f"{cell.found.cell.size} {cell.found.cell.context} {phase.removesuffix('_step')}"
                )
                rows.append(found)
    named = {kind for _, kinds in DRAWN.values() for kind in kinds}
    parts = {
        role: np.array(
            [row[[k for k in row.index if (k in kinds if kinds else k not in named)]].sum() for row in rows]
        )
        for role, (_, kinds) in DRAWN.items()
    }
    drawn = {role: lengths for role, lengths in parts.items() if lengths.any()}
    return stacked_bars(
        labels, drawn, axis="ms of kernel time a step", words={role: w for role, (w, _) in DRAWN.items()}
    )


def _fullest(data: Sequence[CellData]) -> list[CellData]:
    """Of each size and context the cell with most phases."""
    best: dict[tuple[str, int], CellData] = {}
    for cell in data:
        key = (cell.found.cell.size, cell.found.cell.context)
        if (
            cell.recording is not None
            and cell.recording.has_kernels
            and (
                key not in best or TYPES.index(cell.found.cell.type) > TYPES.index(best[key].found.cell.type)
            )
        ):
            best[key] = cell
    return list(best.values())


def _shares(results: Results, contexts: list[int]) -> dict[str, np.ndarray]:
    """Size -> share of matrix products in inference [context], NaN where it was not recorded."""
    series: dict[str, np.ndarray] = {}
    for cell in results.data:
        row = cell.phase("forward")
        if row is not None and cell.found.cell.type == "forward" and row.kernels > 0:
            line = series.setdefault(cell.found.cell.size, np.full(len(contexts), np.nan))
            line[contexts.index(cell.found.cell.context)] = row.matmul_percent
    return series


def _attention_blocks(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Block]:
    blocks: list[Block] = []
    points, roofs = tables["roofline"], roofs_of(results)
    if len(points) and roofs:
        series = {
            str(what): [
                (x, y, f"{cell}, {what}: {y:.2f} TFLOP/s")
                for cell, x, y in rows[["cell", "flop_per_byte", "tflops"]].to_numpy().tolist()
            ]
            for what, rows in points.groupby("what", sort=False)
        }
        drawing = roofline(series, roofs=roofs, across="FLOP per least byte", axis="TFLOP/s achieved")
        caption = (
            "What each part achieved, against its GPU's ceilings: the slope is memory bandwidth, the flat line the rate "
            "of the units that multiply in this dtype."
        )
        blocks.append(
            Figure(save(drawing, folder, "roofline"), caption, "figures/roofline.png", "tables/roofline.csv")
        )
    if len(tables["attention"]):
        blocks.append(
            Table(
                tables["attention"],
                "Attention's parts in the forward pass, per layer",
                "tables/attention.csv",
            )
        )
    return blocks


def roofs_of(results: Results) -> dict[str, tuple[float, float]]:
    """GPU and dtype -> (TFLOP/s, TFLOP/s per FLOP/byte); only GPUs whose ceilings are known."""
    roofs: dict[str, tuple[float, float]] = {}
    for cell in results.data:
        known = ceilings(cell)
        if known and known.bytes_per_s and cell.recording is not None:
            told = cell.found.told
            name = f"{cell.recording.device}, {told.asked.dtype if told else 'fp32'}, {known.units}"
            roofs[name] = (known.flop_per_s / 1e12, known.bytes_per_s / 1e12)
    return roofs


def _roofline_table(results: Results) -> pd.DataFrame:
    rows = [
        point for cell in results.data if cell.found.cell.type == "forward" for point in roofline_points(cell)
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["cell", "what", "flop_per_byte", "tflops", "gb_per_s"])
    return table


def _joined(frames: Sequence[tuple[CellData, pd.DataFrame]]) -> pd.DataFrame:
    """One table of all cells' tables, the cell first."""
    parts = [frame.assign(cell=cell.label)[["cell", *frame.columns]] for cell, frame in frames if len(frame)]
    joined: pd.DataFrame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["cell"])
    return joined


def _short(cells: pd.DataFrame) -> pd.DataFrame:
    short: pd.DataFrame = cells[
        ["cell", "outcome", "collector", "wall_ms", "plain_ms", "kernel_ms", "matmul_percent", "peak_mib"]
    ]
    return short


def summary_text(results: Results, sentences: Sequence[str]) -> str:
    """ANALYSIS_SUMMARY.txt: the answers of every cell, to read and to commit."""
    lines_ = ["NSYS ANALYSIS SUMMARY", "", *sentences, ""]
    for part, question in QUESTIONS.items():
        given = [answer for answer in results.answers if answer.part == part]
        if given:
            lines_ += [f"({part}) {question}", ""]
        for answer in given:
            lines_.append(f"  {answer.cell}: {answer.sentence}")
            lines_ += [
                f"    [{check.state}] {check.name}: expected {check.expected}, found {check.found}"
                for check in answer.checks
            ]
        lines_ += [""] if given else []
    return "\n".join([*lines_, terminal_table(_short(results.cells)), ""])


def write_summary(results: Results, sentences: Sequence[str], path: Path) -> Path:
    """Write the summary, atomically."""
    write_atomic(path, summary_text(results, sentences))
    return path


def cell_row(cell: CellData, outcome: str, reason: str) -> dict[str, object]:
    """A cell's row of tables/cells.csv: what became of it, who recorded it, and its main figures."""
    found, told = cell.found, cell.found.told
    step, collected = cell.phase("step"), cell.found.collected
    plain = python_ms(found.twin, "step")
    wall = float(step.wall_ms) if step is not None else np.nan
    peak = told.peak_allocated_bytes if told else None
    return {
        "cell": cell.label,
        "size": found.cell.size,
        "context": found.cell.context,
        "type": found.cell.type,
        "outcome": outcome,
        "reason": reason,
        "collector": cell.recording.collector if cell.recording else collected.collector if collected else "",
        "not_nsys_because": (collected.reason or "") if collected and collected.collector != "nsys" else "",
        "tool_version": cell.recording.version if cell.recording else "",
        "device": (told.device.get("name") if told else None)
        or (cell.recording.device if cell.recording else ""),
        "dtype": told.asked.dtype if told else "",
        "steps": int(step.steps) if step is not None else 0,
        "wall_ms": wall,
        "plain_ms": np.nan if plain is None else plain,
        "overhead_percent": np.nan if plain is None else 100 * (wall - plain) / plain,
        "kernel_ms": float(step.kernel_ms) if step is not None else np.nan,
        "kernels": float(step.kernels) if step is not None else np.nan,
        "matmul_percent": float(step.matmul_percent) if step is not None else np.nan,
        "peak_mib": np.nan if peak is None else peak / 2**20,
        "capture": found.capture.name if found.capture else "",
    }
