"""The account as files: CSV tables, pictures and one page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.recordings.ranks.account import LABELS, PARTS
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.explained import Explained
from lab.report.figures import save, stacked_panels, timeline
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Page, Points, Section, Table
from lab.report.provenance import provenance
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm import Report
from lab.rooms.sweep.ranks.read import Setting
from lab.rooms.sweep.ranks.tables import tables
from lab.rooms.sweep.ranks.words import sentences

QUESTION = "Which rank makes the others wait, why, and what would a repair give?"
MOST_STEPS = 2
FOLDED, OPEN = 8, 24  # rows above which a table starts folded
SPAN_CAPTION = (
    "Ranks by time on one clock. Arrows point from a rank that waits to the rank it waits for, at the end of "
    "the longest waits."
)
PARTS_CAPTION = (
    "The parts of each rank's step; they sum to it exactly. Contention is what collectives beside a kernel "
    "cost it."
)
FOOTNOTES = (
    "Transfer is the part of a collective after its last rank has entered it; what comes before is waiting "
    "for that rank, and is followed to what that rank did meanwhile.",
    "Late launches are idle GPU time in which the host had not yet launched the next operation.",
    "A straggler is named by the time that its excess over the other ranks takes, not by how often it is "
    "last.",
    "What-if lengths come from replaying the launches; where the unchanged replay is off by more than 0.2 %, "
    "none is given. Host times are as recorded: a host that waits for its GPU in mid-step is not sped up.",
)
# Each table's caption, the rows above which it starts folded, and those that the page has at most.
TABLES = {
    "account": ("Parts of every rank and step", FOLDED, 400),
    "waits": ("Who waits for whom, ms over all steps", OPEN, 400),
    "findings": ("Findings", OPEN, 400),
    "what_if": ("What if: steps replayed with one change", FOLDED, 400),
    "pipeline": ("Bubbles of each stage", FOLDED, 400),
    "clocks": ("Clocks against the median rank, with bounds", FOLDED, 400),
    "gpu_clocks": ("Each rank's GPU beside the recording", OPEN, 400),
    "path": ("Critical path over ranks", FOLDED, 200),
}
# Colours of the labels, in their order.
COLOURS = ("computation", "communication", "idle", "warn", "memcpy", "fail", "muted", "rule", "unknown")
ROLES = [(label.replace("_", " "), role) for label, role in zip(LABELS, COLOURS, strict=True)]
PART_ROLES = dict(zip(PARTS, (COLOURS[0], "ok", *COLOURS[1:]), strict=True))  # contention is the second
PART_WORDS = {role: name.removesuffix("_ns").replace("_", " ") for name, role in PART_ROLES.items()}
MOST_ARROWS = 24
# Bars of one label are one where less than this many inches are between them: a fifth of a pixel.
CLOSEST_IN = 1 / 750


def write_account(settings: Sequence[Setting], out: Path, *, source: Path) -> Report:
    """Write CSV files, pictures and ranks.html below `out`. Raises StorageError if that fails."""
    account = Report()
    headlines: list[str] = []  # what is most important in each of several settings
    sections: list[Section] = []
    for setting in settings:
        several = len(settings) > 1
        folder = out / _slug(setting.name) if several else out
        files, blocks = _of_setting(setting, folder, out)
        if not several:  # its sentences are the page's verdict already
            blocks = blocks[1:]
        account.files.extend(files)
        prefix = f"{setting.name}: " if several else ""
        setting_sentences = [f"{prefix}{text}" for text in sentences(setting)]
        headlines += setting_sentences[:2]
        account.findings.extend(setting_sentences)
        account.missing.extend(f"{prefix}{text}" for text in setting.missing)
        account.problems.extend(f"{prefix}{text}" for text in setting.problems)
        sections.append(Section(setting.name if several else "The account", blocks))
    named = any(setting.explained.findings for setting in settings)
    page = Page(
        title=f"Ranks of {source.resolve().name}",
        question=QUESTION,
        verdict=[*(account.findings if len(settings) == 1 else headlines), *account.missing],
        status="warn" if named or account.missing else "ok",
        cards=[card for setting in settings[:1] for card in _cards(setting)],
        sections=sections,
        provenance=provenance(source, None),
        footnotes=FOOTNOTES,
        room="sweep",
        kind="measured",
    )
    account.files.append(write_page(page, out / "ranks.html"))
    return account


def _of_setting(setting: Setting, folder: Path, out: Path) -> tuple[list[Path], list[Block]]:
    frames = tables(setting.explained)
    gpus = pd.DataFrame(setting.gpus)
    if len(gpus):
        frames["gpu_clocks"] = gpus
    files = [write_csv(frame, folder / f"{name}.csv") for name, frame in frames.items()]
    subfolder = folder.relative_to(out).as_posix()
    base = "" if subfolder == "." else f"{subfolder}/"
    blocks: list[Block] = [Points(sentences(setting))]
    if setting.account.rows:
        files.append(folder / "account.png")
        svg = save(partial(account_picture, setting.explained), folder, "account")
        blocks.append(Figure(svg, PARTS_CAPTION, f"{base}account.png", f"{base}account.csv"))
    for step in setting.account.together.steps[:MOST_STEPS]:
        name = f"step_{step}" if step >= 0 else "recording"
        svg = save(partial(step_picture, setting.explained, step), folder, name)
        files.append(folder / f"{name}.png")
        blocks.append(Figure(svg, SPAN_CAPTION, f"{base}{name}.png", f"{base}account.csv"))
    shown = frames | {"account": _in_ms(frames["account"]), "waits": _matrix(frames["waits"])}
    blocks += [
        Table(shown[name], caption, f"{base}{name}.csv", open_rows=open_rows, limit=limit)
        for name, (caption, open_rows, limit) in TABLES.items()
        if name in shown and len(shown[name])
    ]
    return files, blocks


def _in_ms(account: pd.DataFrame) -> pd.DataFrame:
    ns = [str(name) for name in account if str(name).endswith("_ns")]
    shown: pd.DataFrame = account.copy()
    shown[ns] = shown[ns] / 1e6
    renamed: pd.DataFrame = shown.rename(columns={name: f"{name.removesuffix('_ns')}_ms" for name in ns})
    return renamed


def _matrix(waits: pd.DataFrame) -> pd.DataFrame:
    """Rows wait, columns are waited for."""
    if waits.empty:
        return waits
    total_ns = waits.pivot_table(index="rank", columns="for", values="wait_ns", aggfunc="sum", fill_value=0)
    matrix: pd.DataFrame = (total_ns / 1e6).add_prefix("for rank ").rename_axis(columns=None).reset_index()
    return matrix


def _cards(setting: Setting) -> list[Card]:
    rows = setting.account.rows
    if not rows:
        return []
    frame = pd.DataFrame([{"step_ns": row.step_ns, **row.parts} for row in rows]) / 1e6
    columns = {"step": "step_ns", "waiting for ranks": "wait_ns", "contention": "contention_ns"}
    return [
        Card(label, f"{frame[column].median():.1f}", "account.csv", "ms", "median over ranks and steps")
        for label, column in columns.items()
    ]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:60] or "setting"


def step_picture(explained: Explained, step: int, width_in: float) -> Drawing:
    """Every rank's labels over one step on the common clock, in ms since the first begin."""
    account = explained.account
    together = account.together
    windows = {i: w for i in range(len(account.ranks)) if (w := together.window(i, step)) is not None}
    row_of = {index: row for row, index in enumerate(windows)}
    edges = [together.common(index, np.array(window)) for index, window in windows.items()]
    origin = min(int(begin) for begin, _ in edges)
    length_ms = max(int(end) - origin for _, end in edges) / 1e6
    closest_ms = CLOSEST_IN / width_in * length_ms
    parts: dict[tuple[str, str], list[np.ndarray]] = {}
    arrows: list[tuple[float, float, int, int]] = []  # ms waited, end of the wait, who waits, and for whom
    last_ms = 0.0
    for index, row in row_of.items():
        segments = account.segments[index]
        in_step = np.flatnonzero(together.windows[index][segments.window, 0] == step)
        begin = (together.common(index, segments.begin[in_step]) - origin) / 1e6
        length = segments.length[in_step] / 1e6
        last_ms = max(last_ms, float((begin + length).max(initial=0)))
        for label, role in enumerate(ROLES):
            chosen = segments.label[in_step] == label
            if chosen.any():
                bars = _merged(begin[chosen], length[chosen], closest_ms)
                boxes = np.column_stack([np.full(len(bars), row), bars, np.ones(len(bars))])
                parts.setdefault(role, []).append(boxes)
        awaited = segments.awaited[in_step]
        for peer in np.unique(awaited[awaited != UNKNOWN]).tolist():
            if peer in row_of:
                bars = _merged(begin[awaited == peer], length[awaited == peer])
                arrows += [(ms, begin_ms + ms, row, row_of[peer]) for begin_ms, ms in bars.tolist()]
    arrows.sort(reverse=True)
    return timeline(
        [f"rank {account.ranks[index]}" for index in windows],
        {role: np.concatenate(parts[role]) for role in ROLES if role in parts},
        span=(0.0, max(last_ms, 1e-3)),
        bands=(),
        shades=(),
        axis="ms since the first rank began the step",
        arrows=[(end_ms, row, target) for _, end_ms, row, target in arrows[:MOST_ARROWS]],
        width_in=width_in,
    )


def account_picture(explained: Explained, width_in: float) -> Drawing:
    """The parts of every rank and step as stacked bars, ms."""
    titles, labels, parts = [], [], []
    account = explained.account
    for step in account.together.steps[:12]:
        rows = [row for row in account.rows if row.step == step]
        titles.append(f"step {step}" if step >= 0 else "whole recording")
        labels.append([f"r{row.rank}" for row in rows])
        parts.append(
            {role: np.array([row.parts[name] / 1e6 for row in rows]) for name, role in PART_ROLES.items()}
        )
    return stacked_panels(titles, labels, parts, axis="ms", words=PART_WORDS, width_in=width_in)


def _merged(begin: np.ndarray, length: np.ndarray, closest: float = 1e-9) -> np.ndarray:
    """Bars (m, 2) of start and length, where neighbours that touch, or nearly, are one."""
    end = begin + length
    opens = np.append(True, begin[1:] > end[:-1] + closest)
    run_starts = np.flatnonzero(opens)
    ends = np.append(end[run_starts[1:] - 1], end[-1])
    return np.column_stack([begin[run_starts], ends - begin[run_starts]])
