"""Small computations that several sheets share."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings import views

CUM = ["Percentage (%)", "Cumulative Percentage (%)"]


def ranked(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    frame = frame.sort_values(by, ascending=False, kind="stable", ignore_index=True)
    share = percent(frame[by].to_numpy(dtype=float), float(frame[by].sum()))
    result: pd.DataFrame = frame.assign(**dict(zip(CUM, (share, np.cumsum(share)), strict=True)))
    return result


def percent(part: np.ndarray, whole: float) -> np.ndarray:
    return 100 * part / whole if whole else np.full(len(part), np.nan)


def dtype_bytes(dtypes: pd.Series) -> np.ndarray:
    return np.array([views.DTYPE_BYTES.get(dtype.lower(), np.nan) for dtype in dtypes], dtype=float)


def objects(values: list[str]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
