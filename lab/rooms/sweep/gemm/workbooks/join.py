"""Tables of several configurations or ranks as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.figures import sheet
from lab.rooms.sweep.knobs import Key


def over_settings(tables: Mapping[Key, Table], columns: list[str]) -> Table:
    """The tables of all configurations one below the other, with their settings, in these columns."""
    filled = [
        sheet({**table.as_dict(), **setting._asdict()}) for setting, table in tables.items() if len(table)
    ]
    return below(filled, columns)


def below(tables: Sequence[Table], columns: Sequence[str]) -> Table:
    """Tables one below the other, in these columns."""
    if not tables:
        return Table({name: np.empty(0, dtype=object) for name in columns})
    return Table({name: np.concatenate([getattr(table, name) for table in tables]) for name in columns})
