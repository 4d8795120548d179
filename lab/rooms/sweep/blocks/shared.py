"""What several blocks of the page share."""

from __future__ import annotations

import pandas as pd

from lab.rooms.sweep.tables import SETTING

PILLS = {
    **dict.fromkeys(("ok", "honoured"), "ok"),
    **dict.fromkeys(("clamped", "incomplete"), "warn"),
    **dict.fromkeys(("ignored", "failed", "missing", "broken"), "fail"),
    "unknown": "unknown",
}


def settings_of(frame: pd.DataFrame) -> list[tuple[int, int]]:
    return sorted({(int(threads), int(channel)) for threads, channel in frame[SETTING].to_numpy()})
