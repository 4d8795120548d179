"""What the ranks' account says about the settings: who is waited for, and who wins without the waiting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lab.core.words import first_few, plural, ranks_text
from lab.recordings.ranks.explained import (
    DIFFERS,
    LIGHTER,
    READY,
    READY_FREE,
    RECORDED,
    Explained,
    bound_ranks,
    host_bound,
)
from lab.rooms.sweep.knobs import Key, Knobs
from lab.rooms.sweep.tables import SETTING, column_names, long_name, short_name
from lab.stats.means import mean_interval

Settings = Mapping[Key, Explained]
RANKING = column_names(
    "threads channel algorithm protocol runs measured_ms measured_low_ms measured_high_ms "
    "without_waits_ms without_waits_low_ms without_waits_high_ms "
    "no_contention_ms place_measured place_without_waits"
)


def ranking(settings: Settings) -> pd.DataFrame:
    """One row per setting, fastest first: its step as measured, and with the waits for late ranks taken out.

    Without waits every host is ready and each operation takes as long as recorded. The unit is a run: each
    one's value is the median over its steps, and the interval (95 %) is that of the mean over runs; with one
    run there is none.
    """
    by_setting: dict[Knobs, list[Explained]] = {}
    for key, explained in settings.items():
        by_setting.setdefault(key.knobs, []).append(explained)
    rows: list[dict[str, object]] = []
    for knobs, runs in by_setting.items():
        lengths = {name: _lengths_ms(runs, name) for name in (RECORDED, READY, READY_FREE)}
        free = lengths[READY_FREE]
        row = {**knobs._asdict(), "runs": len(lengths[RECORDED])}
        for name, change in (("measured", RECORDED), ("without_waits", READY)):
            edges = mean_interval(lengths[change])
            row |= dict(zip((f"{name}_ms", f"{name}_low_ms", f"{name}_high_ms"), edges, strict=True))
        rows.append({**row, "no_contention_ms": float(np.mean(free)) if free else math.nan})
    frame = pd.DataFrame(rows, columns=RANKING)
    for name in ("measured", "without_waits"):
        frame[f"place_{name}"] = frame[f"{name}_ms"].rank(method="min")
    ordered: pd.DataFrame = frame.sort_values(
        ["without_waits_ms", *SETTING], kind="stable", ignore_index=True
    )
    return ordered


def _lengths_ms(runs: Iterable[Explained], change: str) -> list[float]:
    return [length for run in runs if (length := run.length_ms(change)) is not None]


def bound_by_hosts(settings: Settings) -> str | None:
    """Said before any comparison: in which settings the hosts set the pace, and what the GPUs need."""
    bound = {key: ranks for key, account in settings.items() if (ranks := bound_ranks(account))}
    if not bound:
        return None
    if len(settings) == 1:
        return host_bound(next(iter(settings.values())))
    late = sorted({rank for ranks in bound.values() for rank in ranks})
    are_all = late == sorted({rank for key in bound for _, rank in settings[key].host_ms})
    hosts = "The hosts" if are_all else f"The hosts of {ranks_text(late)}"
    names = sorted({short_name(*key.knobs) for key in bound})
    extent = "in every setting" if len(bound) == len(settings) else f"in {first_few(names)}"
    recorded, ready = (
        _span(_lengths_ms((settings[key] for key in bound), change)) for change in (RECORDED, READY)
    )
    several = len({key.knobs for key in settings}) > 1
    compares = " Comparing settings by the recorded time compares hosts." if several else ""
    return (
        f"{hosts} set the pace {extent}: from mark to mark a step takes {recorded} ms, and {ready} ms "
        f"once all hosts are ready.{compares} {LIGHTER if are_all else DIFFERS}"
    )


def _span(values_ms: Sequence[float]) -> str:
    """`24.6`, or `24.6 to 26.7`."""
    low, high = f"{min(values_ms):.1f}", f"{max(values_ms):.1f}"
    return low if low == high else f"{low} to {high}"


def who_wins(table: pd.DataFrame) -> str | None:
    """Which setting would be fastest without the waits, where there are two or more to rank."""
    ranked = table.dropna(subset=["measured_ms", "without_waits_ms"])
    if len(ranked) < 2:
        return None
    best, second = ranked.iloc[0], ranked.iloc[1]
    measured = ranked.sort_values("measured_ms", kind="stable").iloc[0]
    best_ms, second_ms = (f"{row['without_waits_ms']:.1f} ms" for row in (best, second))
    same = "also first" if _name(best) == _name(measured) else f"{_name(measured)} is first"
    edges = best["without_waits_high_ms"], second["without_waits_low_ms"]
    sure = f"the intervals {'overlap' if edges[0] >= edges[1] else 'do not overlap'}"
    if math.isnan(sum(edges)):
        sure = "one run each, so neither order is proven"
    return (
        f"With waiting for late ranks taken out, {_name(best)} takes {best_ms} per step and {_name(second)} "
        f"{second_ms} ({same} as measured; {sure})."
    )


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
