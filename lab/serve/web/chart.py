"""The figure of every run over time, as charts.js draws it."""

from __future__ import annotations

import msgspec

from lab.core.words import plural
from lab.serve.rows import RunRow
from lab.serve.web.compared import Setting

MOST_DRAWN = 40  # settings in one chart


def chart_of(settings: list[Setting], label: str, unit: str) -> str:
    """The figure of every run, in order of time, and beside them each setting's mean with its interval."""
    roles = ("computation", "communication", "ok", "memcpy", "warn", "unknown")
    rows = {row.folder: row for one in settings for row, _ in one.values}
    by_time = sorted(rows.values(), key=lambda row: row.created_utc)
    order = {row.folder: at for at, row in enumerate(by_time)}
    beside = len(order) + max(1, len(order) // 12)
    series = []
    for at, one in enumerate(settings[:MOST_DRAWN]):
        points = [
            [order[row.folder], value, f"{row.folder}: {value:g} {unit}\n{row.created_utc[:16]}"]
            for row, value in one.values
        ]
        if one.low is not None:
            mean = f"{one.name}\nmean of {plural(len(points), 'run')}: {one.mean:.4g} {unit}"
            words = f"{mean} ({one.low:.4g} to {one.high:.4g})"
            points.append([beside + at * max(0.25, len(order) / 60), one.mean, words, one.low, one.high])
        series.append({"name": one.name[:60], "role": roles[at % len(roles)], "points": [points]})
    marks = [[at, text] for at, text in enumerate(_times(by_time)) if text]
    if any(one.low is not None for one in settings):
        marks.append([beside, "means"])
    spec = {"x": "runs in order of time", "views": [{"y": f"{label} {unit}".strip()}], "series": series}
    return msgspec.json.encode({**spec, "names": None, "marks": marks, "diagonal": False}).decode()


def _times(rows: list[RunRow]) -> list[str]:
    """What stands below each run: its day where that is a new one; the time where all are of one day."""
    texts = [row.created_utc[:10] for row in rows]
    if len(set(texts)) == 1:
        texts = [row.created_utc[11:16] for row in rows]
    return [text if at == 0 or text != texts[at - 1] else "" for at, text in enumerate(texts)]
