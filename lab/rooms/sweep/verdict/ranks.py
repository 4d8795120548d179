"""What the ranks' account says about the settings: who is waited for, and who wins without the waiting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lab.core.words import first_few, plural
from lab.recordings.ranks.explained import READY, READY_FREE, RECORDED, Explained, bound_ranks
from lab.recordings.ranks.words import DIFFERS, LIGHTER, host_bound
from lab.rooms.sweep.knobs import Key, Knobs
from lab.rooms.sweep.names import long_name, short_name
from lab.rooms.sweep.tables import SETTING, column_names
from lab.stats.means import mean_interval

Settings = Mapping[Key, Explained]
RANKING = column_names(
    "threads channel algorithm protocol runs measured_ms measured_low_ms measured_high_ms "
    "without_waits_ms without_waits_low_ms without_waits_high_ms "
    "no_contention_ms place_measured place_without_waits"
)
# Settings that differ by less than this share of the fastest are told to be alike.
ALIKE = 0.01


def ranking(settings: Settings) -> pd.DataFrame:
    """One row per setting, fastest first: its step as measured, and with the waits for late ranks taken out.

    Without waits every host is ready and each operation takes as long as recorded. The unit is a run: each
    one's value is the median over its steps, and the interval (95 %) is that of the mean over runs; with one
    run there is none.
    """
    by_setting: dict[Knobs, list[Explained]] = {}
    for key, explained in settings.items():
        by_setting.setdefault(key.knobs, []).append(explained)
    rows = []
    for knobs, runs in by_setting.items():
        lengths = {name: _of_runs(runs, name) for name in (RECORDED, READY, READY_FREE)}
        measured, without = mean_interval(lengths[RECORDED]), mean_interval(lengths[READY])
        free = lengths[READY_FREE]
        rows.append(
            {
                **knobs._asdict(),
                "runs": len(lengths[RECORDED]),
                **dict(zip(("measured_ms", "measured_low_ms", "measured_high_ms"), measured, strict=True)),
                **dict(
                    zip(
                        ("without_waits_ms", "without_waits_low_ms", "without_waits_high_ms"),
                        without,
                        strict=True,
                    )
                ),
                "no_contention_ms": float(np.mean(free)) if free else math.nan,
            }
        )
    frame = pd.DataFrame(rows, columns=RANKING)
    for name in ("measured", "without_waits"):
        frame[f"place_{name}"] = frame[f"{name}_ms"].rank(method="min")
    ordered: pd.DataFrame = frame.sort_values(["without_waits_ms", *SETTING], kind="stable").reset_index(
        drop=True
    )
    return ordered


def _of_runs(runs: list[Explained], change: str) -> list[float]:
    lengths = [run.length_ms(change) for run in runs]
    return [length for length in lengths if length is not None]


def bound_by_hosts(settings: Settings) -> str | None:
    """Said before any comparison: in which settings the hosts set the pace, and what the GPUs need."""
    bound = {key: ranks for key, one in settings.items() if (ranks := bound_ranks(one))}
    if not bound:
        return None
    if len(settings) == 1:
        return host_bound(next(iter(settings.values())))
    ready, recorded = (
        [ms for key in bound if (ms := settings[key].length_ms(name)) is not None]
        for name in (READY, RECORDED)
    )
    several = len({key.knobs for key in settings}) > 1
    compares = " Comparing settings by the recorded time compares hosts." if several else ""
    late = sorted({rank for ranks in bound.values() for rank in ranks})
    are_all = late == sorted({rank for key in bound for _, rank in settings[key].host_ms})
    return (
        f"{_whose(late, are_all)} {_where([*bound], settings)}: a step takes {_span(recorded)} ms as "
        "recorded "
        f"and {_span(ready)} ms once all hosts are ready.{compares} {LIGHTER if are_all else DIFFERS}"
    )


def _whose(late: Sequence[int], are_all: bool) -> str:
    if are_all:
        return "The hosts set the pace"
    if len(late) == 1:
        return f"The host of rank {late[0]} sets the pace"
    return f"The hosts of ranks {first_few([str(rank) for rank in late])} set the pace"


def _where(bound: Sequence[Key], settings: Settings) -> str:
    """`in every setting`, or the settings with how many of their runs."""
    if len(bound) == len(settings):
        return "in every setting"
    runs = Counter(key.knobs for key in settings)
    bound_runs = Counter(key.knobs for key in bound)
    names = [
        short_name(*knobs) + ("" if count == runs[knobs] else f" ({count} of {plural(runs[knobs], 'run')})")
        for knobs, count in sorted(bound_runs.items())
    ]
    return f"in {first_few(names)}"


def _span(values_ms: Sequence[float]) -> str:
    """`24.6`, or `24.6 to 26.7`."""
    low, high = f"{min(values_ms):.1f}", f"{max(values_ms):.1f}"
    return low if low == high else f"{low} to {high}"


def who_wins(table: pd.DataFrame) -> str | None:
    """Both rankings in a sentence, where there are two settings or more to rank."""
    measured_rows = table.dropna(subset=["measured_ms", "without_waits_ms"])
    if len(measured_rows) < 2:
        return None
    best = measured_rows.iloc[0]
    measured = measured_rows.sort_values("measured_ms", kind="stable").iloc[0]
    name, recorded = _name(best), _name(measured)
    second = measured_rows.iloc[1]
    lead = second["without_waits_ms"] - best["without_waits_ms"]
    alike = lead < ALIKE * best["without_waits_ms"]
    overlap = _overlap(best, second)
    best_ms, second_ms = (f"{row['without_waits_ms']:.1f} ms" for row in (best, second))
    outcome = f"{name} takes {best_ms} per step, {lead:.1f} ms less than {_name(second)}"
    if alike:
        outcome = f"{name} and {_name(second)} take {best_ms} and {second_ms} per step"
    sure = "one run each, so neither order is proven" if overlap is None else overlap
    same = (
        "the same as measured"
        if name == recorded
        else f"as measured {recorded} is ({measured['measured_ms']:.1f} ms)"
    )
    return f"With waiting for late ranks taken out, {outcome}; {same}; {sure}."


def _overlap(best: pd.Series, second: pd.Series) -> str | None:
    edges = [best["without_waits_high_ms"], second["without_waits_low_ms"]]
    if any(math.isnan(edge) for edge in edges):
        return None
    return "the intervals overlap" if edges[0] >= edges[1] else "the intervals do not overlap"


def stragglers(settings: Settings) -> list[str]:
    """The rank that binds most in each setting, then how many more causes bind, and what is hidden."""
    sentences: list[str] = []
    hidden: list[str] = []
    num_further = 0
    runs = Counter(key.knobs for key in settings)
    for key, explained in settings.items():
        name = short_name(*key.knobs) + (f" (repeat {key.repeat})" if runs[key.knobs] > 1 else "")
        binding = [finding for finding in explained.findings if finding.binding]
        hidden += [f"{name} {f.text}" for f in explained.findings if not f.binding]
        num_further += max(0, len(binding) - 1)
        if binding:
            sentences.append(f"The others wait in {name}: {binding[0].text}.")
    tail_parts = [f"{plural(num_further, 'further cause')} of waiting below" if num_further else ""]
    tail_parts.append(f"{len(hidden)} hidden behind them, such as {hidden[0]}" if hidden else "")
    tail = "; ".join(filter(None, tail_parts))
    return [*sentences, *([f"{tail[:1].upper()}{tail[1:]}."] if tail else [])]


def _name(row: pd.Series) -> str:
    return long_name(*row[SETTING])
