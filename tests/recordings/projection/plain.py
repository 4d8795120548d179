"""The projection by comparing every call with every range."""

from __future__ import annotations

import pandas as pd

from lab.recordings.projection import PHASES, STEPS, WARMUPS


def plain_members(capture, *, across):
    """For each range its operations, for each operation its rule and path, by comparing all with all."""
    ops, api, ranges = (pd.DataFrame(table.as_dict()) for table in (capture.ops, capture.api, capture.ranges))
    names = [capture.name(i) for i in ranges.name_id]
    members = {row: [] for row in range(len(ranges))}
    found = []
    for op, (pid, corr) in enumerate(zip(ops.pid, ops["corr"], strict=True)):
        calls = [c for c in range(len(api)) if api.pid[c] == pid and api["corr"][c] == corr]
        if not calls:
            found.append(("unattributed", []))
            continue
        start, end, tid = api.start_ns[calls[0]], api.end_ns[calls[0]], api.tid[calls[0]]
        around = [
            row
            for row in range(len(ranges))
            if ranges.pid[row] == pid and ranges.start_ns[row] <= start and ranges.end_ns[row] >= end
        ]
        own = [row for row in around if ranges.tid[row] == tid]
        inherited, rule = [], "same" if own else "outside"
        if across and not any(kind(names[row]) for row in own):
            inherited, rule = plain_phase_elsewhere(ranges, names, around, tid, inherited, rule)
        for row in own + inherited:
            members[row].append(op)
        found.append((rule, [names[row] for row in by_start(ranges, inherited) + by_start(ranges, own)]))
    return members, found


def plain_phase_elsewhere(ranges, names, around, tid, inherited, rule):
    for wanted in ("phase", "step"):
        candidates = [row for row in around if ranges.tid[row] != tid and kind(names[row]) == wanted]
        threads = {ranges.tid[row] for row in candidates}
        if len(threads) > 1:
            return inherited, "ambiguous"
        if threads:
            innermost = max(candidates, key=lambda row: ranges.start_ns[row])
            above = [
                row
                for row in range(len(ranges))
                if ranges.tid[row] in threads
                and ranges.pid[row] == ranges.pid[innermost]
                and ranges.start_ns[row] <= ranges.start_ns[innermost]
                and ranges.end_ns[row] >= ranges.end_ns[innermost]
            ]
            return above, "cross"
    return inherited, rule


def by_start(ranges, rows):
    return sorted(rows, key=lambda row: ranges.start_ns[row])


def kind(name):
    if PHASES.fullmatch(name):
        return "phase"
    return "step" if STEPS.fullmatch(name) or WARMUPS.fullmatch(name) else ""
