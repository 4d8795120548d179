"""Recordings with known truth, damaged or not: how often lab's commands are silently different (bar: never).

LAB_BENCH_DRAWS says how many (10,000; every tenth is a job of several ranks, every tenth a file of two
processes); LAB_TEST_CHANCE=1 draws other ones each time. The table goes to docs/integrity.md.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.table import PAGE, Row, measured
from tests.simulator.draws import merged, recordings
from tests.simulator.ranks import jobs

DRAWS = int(os.environ.get("LAB_BENCH_DRAWS", "10000"))
TABLE = PAGE.with_name("integrity.md")
START = "| recording | draws | complete | lossy | unknown | silently different |\n"
SHOWN = 20  # silent differences


class Counts:
    """Draws by what was recorded and the verdict, and the silent differences in full."""

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.silent: list[tuple[str, Any, list[str]]] = []

    def add(self, group: str, drawn: Any, verdict: str, sentences: list[str]) -> None:
        self.verdicts[group, verdict] += 1
        if sentences:
            self.silent.append((group, drawn, sentences))

    def table(self) -> str:
        lines = [START, "|---|--:|--:|--:|--:|--:|\n"]
        groups = sorted({group for group, _ in self.verdicts})
        for group in [*groups, "all"]:
            counts = [
                sum(
                    count
                    for key, count in self.verdicts.items()
                    if group in ("all", key[0]) and verdict(key[1])
                )
                for verdict in (bool, *(name.__eq__ for name in ("complete", "lossy", "unknown")))
            ]
            silent = sum(group in ("all", name) for name, _, _ in self.silent)
            lines.append(f"| {group} | {' | '.join(f'{count:,}' for count in [*counts, silent])} |\n")
        return "".join(lines)


def main() -> None:
    counts = Counts()
    draw(recordings(), DRAWS * 8 // 10, lambda drawn: counts.add(drawn.format, drawn, *_answer(drawn)))
    draw(merged(), DRAWS // 10, lambda drawn: counts.add("kineto, two processes", drawn, *_answer(drawn)))
    draw(jobs(), DRAWS // 10, lambda drawn: counts.add("kineto, file per rank", drawn, *_answer(drawn)))
    for group, drawn, sentences in counts.silent[:SHOWN]:
        print(f"{group}: {drawn!r}", *sentences, sep="\n   ")
    table = counts.table()
    print(table)
    write(table)
    silent = len(counts.silent)
    limit = "0 silently different"
    measured(Row("recordings with known truth", cost=f"{DRAWS:,} draws", limit=limit, met=not silent))


def _answer(drawn: Any) -> tuple[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        answers, sentences = drawn.outcome(Path(folder))
    verdict = getattr(answers, "verdict", None) or ("lossy" if answers.code else "complete")
    return verdict, sentences


def draw(strategy: st.SearchStrategy[Any], count: int, take: Callable[[Any], None]) -> None:
    """Call `take` with `count` draws, the same ones each time unless LAB_TEST_CHANCE asks for chance."""
    chance = bool(os.environ.get("LAB_TEST_CHANCE"))
    settled = settings(
        max_examples=max(count, 1),
        deadline=None,
        database=None,
        derandomize=not chance,
        suppress_health_check=list(HealthCheck),
    )
    settled(given(strategy)(take))()


def write(table: str) -> None:
    """Put the table into its page, in the place of the one that is there."""
    page = TABLE.read_text(encoding="utf-8")
    if START not in page:
        return
    before, rest = page.split(START, 1)
    lines = rest.splitlines(keepends=True)
    end = next((index for index, line in enumerate(lines) if not line.startswith("|")), len(lines))
    TABLE.write_text(before + table + "".join(lines[end:]), encoding="utf-8")


if __name__ == "__main__":
    main()
