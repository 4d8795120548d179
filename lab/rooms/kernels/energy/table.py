"""energy.csv: one row per distinct call, columns as the fields of EnergyRow."""

from __future__ import annotations

import csv
import io
from typing import Any

from lab.rooms.kernels.energy.result import EnergyRow


def csv_text(rows: list[EnergyRow]) -> str:
    names = list(EnergyRow.__struct_fields__)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow("class" if name == "class_" else name for name in names)
    writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
