"""Which questions a cell can answer, and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lab.rooms.nsys.answers.answer import Answer, CellData
from lab.rooms.nsys.answers.attention import part_e
from lab.rooms.nsys.answers.kernels import part_b, part_c
from lab.rooms.nsys.answers.timing import part_a
from lab.rooms.nsys.answers.training import part_d
from lab.rooms.nsys.config import PART_TYPES, Cell, parts_of
from lab.rooms.nsys.measured import STEP

_ANSWERS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e}
_TYPES = {"a": "forward", "c": "forward", "d": "training", "e": "forward"}  # of the only cells that answer it


def all_answers(data: Sequence[CellData]) -> list[Answer]:
    """Every answer of every cell, part by part."""
    answers: list[Answer] = []
    for cell in data:
        same_model = [sibling for sibling in data if sibling.size_and_context == cell.size_and_context]
        siblings = [sibling for sibling in same_model if sibling is not cell]
        answers += answers_of(cell, siblings, cell_parts(cell.files.cell))
    return sorted(answers, key=lambda answer: answer.part)


def cell_parts(cell: Cell) -> tuple[str, ...]:
    """The parts that this cell serves: those of its folder, otherwise all of its profile type."""
    return cell.parts or parts_of(cell.type, tuple(PART_TYPES))


def answers_of(cell: CellData, siblings: Sequence[CellData], parts: Iterable[str]) -> list[Answer]:
    """The answers of this cell to `parts`; `siblings` are the other cells of its size and context."""
    if cell.recording is None or cell.phase(STEP) is None:
        return []
    kind = cell.files.cell.type
    return [_ANSWERS[part](cell, siblings) for part in parts if _TYPES.get(part, kind) == kind]


def answers_of_one(cell: CellData) -> list[Answer]:
    """The answers to all questions from one capture alone."""
    if cell.recording is None or not cell.recording.steps:
        return []
    return [answer(cell, []) for answer in _ANSWERS.values()]
