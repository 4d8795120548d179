"""Which questions a cell can answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lab.rooms.nsys.answers.answer import Answer, CellData
from lab.rooms.nsys.answers.attention import part_e
from lab.rooms.nsys.answers.kernels import part_b, part_c
from lab.rooms.nsys.answers.timing import part_a
from lab.rooms.nsys.answers.training import part_d
from lab.rooms.nsys.measured import STEP


def answers_of(cell: CellData, siblings: Sequence[CellData], parts: Iterable[str]) -> list[Answer]:
    """The answers of this cell to `parts`; `siblings` are the other cells of its size and context."""
    if cell.recording is None or cell.phase(STEP) is None:
        return []
    given = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e}
    kinds = {"a": "forward", "c": "forward", "d": "training", "e": "forward"}
    wanted = [part for part in parts if kinds.get(part, cell.found.cell.type) == cell.found.cell.type]
    return [given[part](cell, siblings) for part in wanted]
