"""The sentences at the top of the page and of ANALYSIS_SUMMARY.txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.files import write_atomic
from lab.report.tables import terminal_table
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN, Answer
from lab.rooms.nsys.config import QUESTIONS
from lab.rooms.nsys.report.results import Results, brief_cells


def verdict(results: Results) -> list[str]:
    """How much was recorded and by which collector, then each question's answer of the largest cell."""
    counts = results.cells["outcome"].value_counts()
    have = f"{int(counts.get('ok', 0))} of {len(results.cells)} cells recorded"
    rest = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok")
    collectors = sorted(set(results.cells.loc[results.cells["collector"] != "", "collector"]))
    by = f" by {' and '.join(collectors)}" if collectors else ""
    sentences = [f"{have}{by}{f' ({rest})' if rest else ''}."]
    if len(results.cells) and (results.cells["outcome"] == "no_gpu_data").all():
        sentences.append(
            "There are no GPU kernels: only wall times are known, and questions (b) to (e) are open."
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
    return "\n".join([*lines_, terminal_table(brief_cells(results.cells)), ""])


def write_summary(results: Results, sentences: Sequence[str], path: Path) -> Path:
    """Write the summary, atomically."""
    write_atomic(path, summary_text(results, sentences))
    return path
