"""Types of operands by their opcode."""

from __future__ import annotations

from lab.rooms.nan.nixnan.names import opcode_of, type_of
from lab.rooms.nan.nixnan.reading.parse import parse
from tests.rooms.nan.nixnan import nixgen


def test_types_come_from_the_opcode_and_the_operand():
    assert [type_of("HMMA.16816.F32.BF16", n) for n in range(4)] == ["f32", "bf16", "bf16", "f32"]
    assert [type_of("HMMA.16816.F32", n) for n in range(4)] == ["f32", "f16", "f16", "f32"]
    assert (
        type_of("FFMA.FTZ", 2) == "f32"
        and type_of("STG.E.128", 1) is None
        and type_of("DMMA.884", 1) == "f64"
    )
    assert opcode_of("@!UP0 FFMA.SAT R1, R2") == "FFMA.SAT" and opcode_of("MUFU.RSQ R1") == "MUFU.RSQ"


def test_a_line_whose_printed_type_is_not_the_opcodes_is_flagged(tmp_path):
    found = parse(
        nixgen.write(tmp_path / "a", nixgen.log(nixgen.error(sass="FFMA R1, R2, R3, R4", type="f64")))
    )
    assert found.type_mismatch_lines == 1 and found.sites[0].type == "f32" and found.counts["f64"]["NaN"] == 1
