"""What the ranks of a sweep gave, as DataFrames over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lab.rooms.sweep.gemm.columns import INSTANCES
from lab.rooms.sweep.gemm.rank import RankTables
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import KEY

_TEXTS = (
    "op",
    "strides",
    "dtype",
    "dims",
    "transpose",
    "overlap",
    "family",
    "kernels",
    "file",
    "algorithm",
    "protocol",
)


def instances(folder: Path, by_setting: Mapping[Key, Mapping[int, RankTables]]) -> pd.DataFrame:
    """Every executed GEMM of every readable rank, with the columns INSTANCES."""
    frames = []
    for setting, ranks in by_setting.items():
        for rank, one in ranks.items():
            table = one.gemm
            if table is None or not len(table):
                continue
            columns: dict[str, Any] = dict(zip(KEY, setting, strict=True))
            file = one.figures.path
            columns["file"] = str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
            columns["rank"] = rank
            columns |= {name: getattr(table, name) for name in INSTANCES if name not in columns}
            frames.append(pd.DataFrame({name: columns[name] for name in INSTANCES}))
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=INSTANCES)
    result: pd.DataFrame = frame.astype(dict.fromkeys(_TEXTS, "category"))
    return result


def groups(by_setting: Mapping[Key, Mapping[int, RankTables]]) -> pd.DataFrame:
    """The GEMM sheet of every readable rank, by KEY and rank."""
    frames = []
    for setting, ranks in by_setting.items():
        for rank, one in ranks.items():
            if one.groups is not None and len(one.groups):
                key: dict[str, Any] = {**dict(zip(KEY, setting, strict=True)), "rank": rank}
                frames.append(pd.DataFrame({**key, **one.groups.as_dict()}))
    result: pd.DataFrame = (
        pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*KEY, "rank"])
    )
    return result
