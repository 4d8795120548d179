"""Tables of several configurations as one."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lab.rooms.sweep.knobs import Key


def over_settings(frames: Mapping[Key, pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """The frames of all configurations one below the other, with their settings, in these columns."""
    filled = [frame.assign(**setting._asdict()) for setting, frame in frames.items() if len(frame)]
    empty = pd.DataFrame(columns=columns)
    result: pd.DataFrame = pd.concat(filled, ignore_index=True)[columns] if filled else empty
    return result
