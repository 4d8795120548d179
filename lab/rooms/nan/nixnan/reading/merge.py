"""Several logs of one run's processes as one log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural
from lab.rooms.nan.nixnan.categories import categories
from lab.rooms.nan.nixnan.log import Log, Site
from lab.rooms.nan.nixnan.reading.twins import twins_of

# From the worst to the best: several files of one run are as good as the worst of them. An empty one among
# others is a child's that used no GPU.
INTEGRITY = ("torn", "inconsistent", "truncated", "complete", "empty")


def merged(logs: list[Log]) -> Log:
    """The logs of one run's processes as one: numbers added, sites united, the worst integrity.

    A child process that used no GPU leaves an empty log; it does not lower the integrity of the others.
    """
    if len(logs) == 1:
        return logs[0]
    sites = _united(site for log in logs for site in log.sites)
    not_empty = [log for log in logs if log.integrity != "empty"]
    worst = min((log.integrity for log in not_empty), key=INTEGRITY.index, default="empty")
    further = sum(log.site_count - len(log.sites) for log in logs)
    reasons = [f"{Path(log.file).name}: {reason}" for log in logs for reason in log.reasons]
    if further:
        reasons.append(
            f"Up to {plural(further, 'site')} may be the same in several logs: counted, not listed."
        )
    functions = _summed(log.functions for log in logs)
    same = twins_of(site.key for site in sites)
    return Log(
        file=", ".join(log.file for log in logs),
        files=[log.file for log in logs],
        integrity=worst,
        reasons=reasons,
        sites=sites,
        site_count=len(sites) + further,
        functions=functions,
        twins=same,
        categories=categories(functions, same),
        counts=_added([log.counts for log in logs]),
        report=_added([log.report for log in logs if log.report is not None]) or None,
        function_kinds={
            name: _summed(log.function_kinds.get(name, {}) for log in logs) for name in functions
        },
        times_us={
            name: max(log.times_us.get(name, 0) for log in logs) for log in logs for name in log.times_us
        },
        exponents={
            f"{Path(log.file).name} {name}": span for log in logs for name, span in log.exponents.items()
        },
        kernels=list(dict.fromkeys(name for log in logs for name in log.kernels)),
        logged=list(dict.fromkeys(name for log in logs for name in log.logged)),
        **_each(logs, _ADDED, sum),
        **_each(logs, _JOINED, lambda lists: [row for rows in lists for row in rows]),
    )


_LINES = (
    "lines",
    "error_lines",
    "torn_lines",
    "foreign_lines",
    "unlisted_function_lines",
    "type_mismatch_lines",
)
_ADDED = ("size_bytes", *_LINES, "report_blocks", "contexts")
_JOINED = ("differences", "cells", "immediates", "bins", "stops", "torn")


def _each(logs: list[Log], names: tuple[str, ...], join: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
    return {name: join(getattr(log, name) for log in logs) for name in names}


def _united(sites: Iterable[Site]) -> list[Site]:
    """Sites of several logs, one per key."""
    by_key: dict[tuple[str, str, int | None], Site] = {}
    for site in sites:
        earlier = by_key.get(site.key)
        by_key[site.key] = _joined(earlier, site) if earlier else site
    return list(by_key.values())


def _joined(earlier: Site, site: Site) -> Site:
    return msgspec.structs.replace(
        earlier,
        lines=earlier.lines + site.lines,
        masks=earlier.masks + site.masks,
        kinds=_summed([earlier.kinds, site.kinds]),
        labels=_summed([earlier.labels, site.labels]),
        places=tuple(dict.fromkeys([*earlier.places, *site.places])),
    )


def _summed(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def _added(trees: list[dict[str, Any]]) -> dict[str, Any]:
    """Trees of numbers, added leaf by leaf; a number that is None in one of them is None."""
    total: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            have = total.get(name)
            if isinstance(value, dict):
                total[name] = _added([have or {}, value])
            elif name not in total:
                total[name] = value
            else:
                total[name] = None if have is None or value is None else have + value
    return total
