"""What is decided while trials run, of several at a time."""

from __future__ import annotations

import heapq

import pytest

np = pytest.importorskip("numpy")

from lab.rooms.trials.config import Cell, Trial, TrialsConfig  # noqa: E402
from lab.rooms.trials.decide import BY_ERRORS, decide  # noqa: E402
from lab.rooms.trials.progress import ended, why_not  # noqa: E402
from lab.rooms.trials.sprt import Until  # noqa: E402

FIXED = Until(was=0.3, fixed=0.05)


def config(*names: str, trials: int = 160, until: Until | None = None) -> TrialsConfig:
    cells = tuple(Cell(name=name) for name in names)
    more = {"until": until, "stop": until is None}
    return TrialsConfig(command=("x",), cells=cells, baseline=names[0], trials=trials, fail="exit!=0", **more)


def rows(cell: str, verdicts: str) -> list[Trial]:
    kinds = {"F": "fail", ".": "pass", "-": "not run", "E": "error"}
    return [Trial(cell=cell, trial=at, verdict=kinds[v]) for at, v in enumerate(verdicts) if v != " "]


def test_failures_that_end_before_the_passes_around_them_decide_nothing_yet():
    settings = config("none", until=FIXED)
    assert not ended(settings, rows("none", "   F F"))  # the others still run
    assert not ended(settings, rows("none", "...F F")) and not ended(settings, rows("none", "...F.F"))
    assert ended(settings, rows("none", "FF")) == {"none"}


def test_a_trial_that_needs_no_run_or_was_lost_leaves_no_gap():
    settings = config("none", until=FIXED)
    assert ended(settings, rows("none", "-E" + "." * 10)) == {"none"}
    assert not ended(settings, rows("none", " " + "." * 12))


def test_a_cell_waits_for_its_blocks_too_and_the_baseline_for_all_cells():
    settings = config("none", "cured", "same")
    decided = [*rows("none", "F" * 12), *rows("cured", "." * 12)]
    assert ended(settings, [*decided, *rows("same", "F" * 12)]) == {"cured"}
    assert not ended(settings, [*rows("none", " " + "F" * 11), *rows("cured", "." * 12)])
    assert ended(settings, [*decided, *rows("same", "." * 12)]) == {"none", "cured", "same"}


@pytest.mark.parametrize("jobs, fail_s", [(1, 1.0), (8, 0.1), (8, 10.0)])
def test_a_rate_that_is_as_it_was_is_called_fixed_in_5_of_100_runs_at_most(jobs, fail_s):
    """300 runs, whose failures end sooner or later than passes, each asked before every trial."""
    random, settings, answers = np.random.default_rng(6), config("none", until=FIXED), []
    for _ in range(300):
        found: list[Trial] = []
        running: list[tuple[float, int, bool]] = []
        now, at = 0.0, 0
        while True:
            while len(running) < jobs and at < settings.trials and not why_not(settings, "none", found):
                failed = bool(random.random() < FIXED.was)
                heapq.heappush(running, (now + (fail_s if failed else 1.0), at, failed))
                at += 1
            if not running:
                break
            now, trial, failed = heapq.heappop(running)
            found.append(Trial(cell="none", trial=trial, verdict="fail" if failed else "pass"))
        answers.append(decide(found, ["none"], "none", stop=False, until=FIXED).until)
    assert answers.count("fixed") <= 21  # 15 expected at most; more than 21 in 1 of 20 such tests
    assert "undecided" not in answers  # nothing ends a run that its own trials leave open


def test_failures_that_become_errors_are_no_cure_and_equal_errors_hide_none():
    """Of the cell's failures half are errors, so the blocks that are left show fewer failures."""
    settings = config("none", "cell")
    base, cell = rows("none", "FF." * 12), rows("cell", "E.." * 12)
    assert not ended(settings, [*base, *cell])
    (found,) = decide([*base, *cell], ["none", "cell"], "none", stop=True, until=None).comparisons
    assert found.verdict == BY_ERRORS and found.p_corrected <= 0.05
    base = rows("none", "EF." * 12)  # the machine's errors, on both sides
    assert ended(settings, [*base, *cell]) == {"none", "cell"}
