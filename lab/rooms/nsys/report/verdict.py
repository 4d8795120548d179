"""The sentences at the top of the page and of ANALYSIS_SUMMARY.txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.files import write_atomic
from lab.report.tables import terminal_table
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN, Answer
from lab.rooms.nsys.config import QUESTIONS
from lab.rooms.nsys.report.tables import Results


def verdict(results: Results) -> list[str]:
    """How much was recorded and by which collector, then each question's answer of the largest cell."""
    counts = results.cells["outcome"].value_counts()
    unrecorded = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "ok")
    collectors = sorted(set(results.cells.loc[results.cells["collector"] != "", "collector"]))
    by = f" by {' and '.join(collectors)}" if collectors else ""
    recorded = f"{int(counts.get('ok', 0))} of {len(results.cells)} cells recorded{by}"
    sentences = [f"{recorded}{f' ({unrecorded})' if unrecorded else ''}."]
    if len(results.cells) and (results.cells["outcome"] == "no_gpu_data").all():
        sentences.append(
            "These cells have no GPU kernels: only wall times are known, and questions (b) to (e) are open."
        )
    last_answers = {answer.part: answer for answer in results.answers if answer.is_answered}
    sentences += [
        f"({part}) {last_answers[part].cell}: {last_answers[part].sentence}"
        for part in QUESTIONS
        if part in last_answers
    ]
    return [*sentences, *_check_sentence(results.answers)]


def _check_sentence(answers: Sequence[Answer]) -> list[str]:
    checks = [(answer, check) for answer in answers for check in answer.checks]
    if not checks:
        return []
    states = [check.state for _, check in checks]
    sentence = f"{states.count(OK)} of {len(checks)} self-checks hold"
    if num_open := states.count(OPEN):
        sentence += f", {num_open} could not be made"
    if num_failed := states.count(FAILED):
        answer, check = checks[states.index(FAILED)]
        sentence += (
            f"; {num_failed} failed, the first in ({answer.part}) {answer.cell}: {check.name}, "
            f"expected {check.expected}, found {check.actual}"
        )
    return [sentence + "."]


def summary_text(results: Results, sentences: Sequence[str]) -> str:
    """ANALYSIS_SUMMARY.txt: the answers of every cell, to read and to commit."""
    lines = ["NSYS ANALYSIS SUMMARY", "", *sentences, ""]
    for part, question in QUESTIONS.items():
        answers = [answer for answer in results.answers if answer.part == part]
        if answers:
            lines += [f"({part}) {question}", ""]
        for answer in answers:
            lines.append(f"  {answer.cell}: {answer.sentence}")
            lines += [f"    {check.line()}" for check in answer.checks]
        lines += [""] if answers else []
    return "\n".join([*lines, terminal_table(results.brief_cells), ""])


def write_summary(results: Results, sentences: Sequence[str], path: Path) -> Path:
    """Write the summary, atomically."""
    write_atomic(path, summary_text(results, sentences))
    return path
