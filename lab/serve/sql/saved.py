"""Questions that come with lab (`lab query --saved`, and the list on the page), and what can be asked."""

from __future__ import annotations

from lab.core.words import plural
from lab.serve.rows import RunRow

SAVED: dict[str, str] = {
    "fastest sweeps of a week": """select run, title, value, unit, text
from figures
where room = 'sweep' and value is not null and created_utc > now()::timestamp - interval 7 day
order by title, value""",
    "what failed": """select r.run, r.room, s.step, s.status, s.reason, r.created_utc
from steps s join runs r using (run)
where s.status not in ('ok', 'skipped', 'planned') order by r.created_utc desc""",
    "not complete": """select run, room, state, integrity, error
from runs where integrity <> 'complete, as analysed'""",
    "runs by GPU and driver": """select gpus, driver, count(*) as runs,
  min(created_utc) as first, max(created_utc) as last
from runs group by all order by last desc""",
    "versions over time": """select date_trunc('day', created_utc) as day, versions->>'$.torch' as torch,
  driver, count(*) as runs
from runs group by all order by day desc""",
    "verdicts that warn": """select r.created_utc, r.run, f.text
from findings f join runs r using (run)
where f.kind = 'verdict' and f.severity <> 'info' order by 1 desc""",
    "time in steps": """select room, count(*) as steps, sum(seconds) / 3600 as hours,
  max(seconds) as longest_s
from steps group by room order by hours desc""",
}


def askable(rows: list[RunRow]) -> list[tuple[str, str]]:
    """Names and contents of what can be asked, without importing what answers."""
    own = [
        ("runs", "one row per run"),
        ("steps", "one row per step"),
        ("findings", "sentences and figures"),
        ("figures", "key figures"),
    ]
    rooms: dict[str, int] = {}
    for row in rows:
        for file in row.tables:
            name = f"{row.room}_{file.name}".lower()
            rooms[name] = rooms.get(name, 0) + 1
    return own + [(name, plural(count, "file")) for name, count in sorted(rooms.items())]
