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
    filled = _filled(by_setting, lambda tables: tables.gemm)

    def file_of(tables: RankTables) -> str:
        path = tables.figures.path
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

    columns = _key_columns(filled)
    columns["file"] = _repeated([file_of(tables) for _, _, tables, _ in filled], filled)
    columns |= _stacked([table for *_, table in filled], [name for name in INSTANCES if name not in columns])
    frame = pd.DataFrame({name: columns[name] for name in INSTANCES} if filled else {}, columns=INSTANCES)
    result: pd.DataFrame = frame.astype(dict.fromkeys(_TEXTS, "category"))
    return result


def groups(by_setting: Ranks) -> pd.DataFrame:
    """The GEMM sheet of every readable rank, by KEY and rank."""
    filled = _filled(by_setting, lambda tables: tables.groups)
    names = list(filled[0][3].as_dict()) if filled else []
    columns = _key_columns(filled) | _stacked([table for *_, table in filled], names)
    result: pd.DataFrame = pd.DataFrame(columns if filled else {}, columns=None if filled else [*KEY, "rank"])
    return result


_Found = Sequence[tuple[Key, int, RankTables, Table]]


def _filled(by_setting: Ranks, table_of: Callable[[RankTables], Table | None]) -> _Found:
    """The ranks whose table has rows: (setting, rank, all of the rank, its table)."""
    return [
        (setting, rank, tables, table)
        for setting, ranks in by_setting.items()
        for rank, tables in ranks.items()
        if (table := table_of(tables)) is not None and len(table)
    ]


def _key_columns(filled: _Found) -> dict[str, np.ndarray]:
    """Setting and rank of every row."""
    columns = {name: _repeated([key[index] for key, *_ in filled], filled) for index, name in enumerate(KEY)}
    return columns | {"rank": _repeated([rank for _, rank, *_ in filled], filled)}


def _repeated(values: Sequence[str | int], filled: _Found) -> np.ndarray:
    """One value per rank, for each row of its table."""
    kind = object if any(isinstance(value, str) for value in values) else np.int64
    return np.repeat(np.array(values, dtype=kind), [len(table) for *_, table in filled])


def _stacked(tables: Sequence[Table], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of all tables, one after another."""
    columns = [table.as_dict() for table in tables]
    return {name: np.concatenate([column[name] for column in columns]) for name in names if columns}
