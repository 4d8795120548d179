"""What the ranks of a sweep gave, as DataFrames over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.columns import INSTANCES
from lab.rooms.sweep.gemm.reading.rank import RankTables
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
Ranks = Mapping[Key, Mapping[int, RankTables]]


def instances(folder: Path, by_setting: Ranks) -> pd.DataFrame:
    """Every executed GEMM of every readable rank, with the columns INSTANCES."""
    found = _filled(by_setting, lambda one: one.gemm)

    def file_of(one: RankTables) -> str:
        path = one.figures.path
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

    columns = _key_columns(found)
    columns["file"] = _repeated([file_of(one) for _, _, one, _ in found], found)
    columns |= _stacked([table for *_, table in found], [name for name in INSTANCES if name not in columns])
    frame = pd.DataFrame({name: columns[name] for name in INSTANCES} if found else {}, columns=INSTANCES)
    result: pd.DataFrame = frame.astype(dict.fromkeys(_TEXTS, "category"))
    return result


def groups(by_setting: Ranks) -> pd.DataFrame:
    """The GEMM sheet of every readable rank, by KEY and rank."""
    found = _filled(by_setting, lambda one: one.groups)
    names = list(found[0][3].as_dict()) if found else []
    columns = _key_columns(found) | _stacked([table for *_, table in found], names)
    result: pd.DataFrame = pd.DataFrame(columns if found else {}, columns=None if found else [*KEY, "rank"])
    return result


_Found = Sequence[tuple[Key, int, RankTables, Table]]


def _filled(by_setting: Ranks, table_of: Callable[[RankTables], Table | None]) -> _Found:
    """The ranks whose table has rows: (setting, rank, all of the rank, its table)."""
    return [
        (setting, rank, one, table)
        for setting, ranks in by_setting.items()
        for rank, one in ranks.items()
        if (table := table_of(one)) is not None and len(table)
    ]


def _key_columns(found: _Found) -> dict[str, np.ndarray]:
    """Setting and rank of every row."""
    columns = {name: _repeated([key[at] for key, *_ in found], found) for at, name in enumerate(KEY)}
    return columns | {"rank": _repeated([rank for _, rank, *_ in found], found)}


def _repeated(values: Sequence[str | int], found: _Found) -> np.ndarray:
    """One value per rank, for each row of its table."""
    kind = object if any(isinstance(one, str) for one in values) else np.int64
    return np.repeat(np.array(values, dtype=kind), [len(table) for *_, table in found])


def _stacked(tables: Sequence[Table], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of all tables, one after another."""
    columns = [table.as_dict() for table in tables]
    return {name: np.concatenate([one[name] for one in columns]) for name in names if columns}
