"""What an instruction did with a kind: made it, passed it on, or took it in."""

from __future__ import annotations

from lab.rooms.nan.nixnan.log import class_table, instructions
from tests.rooms.nan.nixnan.examples import BIRTH
from tests.rooms.nan.nixnan.nixgen import error


def test_an_instruction_bears_passes_or_takes_in_a_kind(made):
    found = made(
        *BIRTH,
        error("NaN", "FADD R3, R2, R4", operand=1),
        error("NaN", "FADD R3, R2, R4", operand=0),
        error("NaN", "FFMA.SAT R8, R3, R9, 0.5", operand=1),
        error("NaN", "STG.E [R2.64], R3", operand=1),
        error("NaN", "FMUL R1, R1, R1", operand=None),
    )
    table = class_table(instructions(found))
    assert table["NaN"] == {"birth": 1, "transit": 1, "source_only": 1, "unknown": 1}
    assert table["-infinity"] == {"birth": 0, "transit": 0, "source_only": 1, "unknown": 0}
