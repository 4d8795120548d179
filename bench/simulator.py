"""Recordings with known truth, damaged or not: how often lab's commands are silently different (bar: never).

LAB_BENCH_DRAWS says how many (10,000; every tenth is a job of several ranks, every tenth a file of two
processes). They are drawn in 20 shares with a seed each, on all cores: the same draws on every machine.
LAB_BENCH_SEED=1000 draws other ones. The table goes to docs/integrity.md.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from bench.table import PAGE, Row, measured
from tests.simulator.draws import merged, recordings
from tests.simulator.ranks import jobs

DRAWS = int(os.environ.get("LAB_BENCH_DRAWS", "10000"))
SEED = int(os.environ.get("LAB_BENCH_SEED", "0"))
SHARES = 20
TABLE = PAGE.with_name("integrity.md")
START = "| recording | draws | complete | lossy | unknown | silently different |\n"
SHOWN = 20  # silent differences


class Counts:
    """Draws by what was recorded and the verdict, and the silent differences in full."""

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.silent: list[tuple[str, str, list[str]]] = []

    def add(self, group: str, drawn: Any, verdict: str, sentences: list[str]) -> None:
        self.verdicts[group, verdict] += 1
        if sentences:
            self.silent.append((group, repr(drawn), sentences))

    def join(self, share: Counts) -> None:
        self.verdicts += share.verdicts
        self.silent += share.silent

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
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for share in pool.map(share_of_draws, range(SEED, SEED + SHARES)):
            counts.join(share)
    for group, drawn, sentences in counts.silent[:SHOWN]:
        print(f"{group}: {drawn}", *sentences, sep="\n   ")
    table = counts.table()
    print(table)
    write(table)
    silent = len(counts.silent)
    limit = "0 silently different"
    measured(Row("recordings with known truth", cost=f"{DRAWS:,} draws", limit=limit, met=not silent))


def share_of_draws(number: int) -> Counts:
    """One twentieth of all draws, by the seed `number`."""
    counts = Counts()
    tenth = round(DRAWS / (SHARES * 10))
    draw(number, recordings(), tenth * 8, lambda drawn: counts.add(drawn.format, drawn, *_answer(drawn)))
    draw(number, merged(), tenth, lambda drawn: counts.add("kineto, two processes", drawn, *_answer(drawn)))
    draw(number, jobs(), tenth, lambda drawn: counts.add("kineto, file per rank", drawn, *_answer(drawn)))
    return counts


def _answer(drawn: Any) -> tuple[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        answers, sentences = drawn.outcome(Path(folder))
    verdict = getattr(answers, "verdict", None) or ("lossy" if answers.code else "complete")
    return verdict, sentences


def draw(number: int, strategy: st.SearchStrategy[Any], count: int, take: Callable[[Any], None]) -> None:
    """Call `take` with `count` draws of the seed `number`."""
    settled = settings(
        max_examples=max(count, 1), deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    seed(number)(settled(given(strategy)(take)))()


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
