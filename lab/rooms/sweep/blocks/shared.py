"""What several blocks of the page share."""

from __future__ import annotations

import pandas as pd

from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.tables import SETTING

PILLS = {
    **dict.fromkeys(("ok", "honoured"), "ok"),
    **dict.fromkeys(("clamped", "incomplete"), "warn"),
    **dict.fromkeys(("ignored", "failed", "missing", "broken"), "fail"),
    "unknown": "unknown",
}


def settings_of(frame: pd.DataFrame) -> list[Knobs]:
    return sorted({Knobs(*row) for row in frame[SETTING].itertuples(index=False, name=None)})
