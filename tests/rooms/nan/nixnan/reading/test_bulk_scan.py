"""A usual line is what its pattern reads: whatever could be read another way is left to the pattern."""

from __future__ import annotations

import random

from lab.rooms.nan.nixnan.grammar import TYPES, Event, read_line
from lab.rooms.nan.nixnan.names import opcode_of
from lab.rooms.nan.nixnan.reading.bulk_scan import KIND_SETS, UNPRINTED, hashes_of, usual_lines
from tests.rooms.nan.nixnan import nixgen

# Each is a usual line but for one thing, or is nearly not one.
EDGES = (
    nixgen.error(sass="@P0 FADD R1, R2, R3"),
    nixgen.error(sass="@!P0  FADD R1, R2, R3"),
    nixgen.error(sass="@P0"),
    nixgen.error(sass="@P0   "),
    nixgen.error(sass=" FADD R1, R2"),
    nixgen.error(sass="FADD R1   "),
    nixgen.error(sass="  "),
    nixgen.error(sass="F"),
    nixgen.error(sass="LONGOPCODE.FTZ.SAT.RN.AND.MORE R1, c[0x0][0x238]"),
    nixgen.error(function=""),
    nixgen.error(function=" "),
    nixgen.error(function="f] g"),
    nixgen.error(function="f; g"),
    nixgen.error(function="f ; in function g"),
    nixgen.error(function="f of type f32"),
    nixgen.error(function="a at b"),
    nixgen.error(function="a at b at c:7"),
    nixgen.error(function="a at b at c:7", place="d:1"),
    nixgen.error(function="f at"),
    nixgen.error(function="f", place="a file.py:17"),
    nixgen.error(function="f", place=" x:17"),
    nixgen.error(function="f", place=":17"),
    nixgen.error(function="f", place="x:"),
    nixgen.error(function="f", place="x:123456789"),
    nixgen.error(function="f", place="x:1234567890"),
    nixgen.error(function="f", place="line 0"),
    nixgen.error(function="f", place="line x"),
    nixgen.error("NaN,infinity,subnormal,div0", function="f"),
    nixgen.error("infinity,-infinity"),
    nixgen.error("NaN,NaN"),
    nixgen.error("nan"),
    nixgen.error(operand=7),
    nixgen.error(operand=8),
    nixgen.error(operand=12),
    nixgen.error(operand=None),
    nixgen.error(type="bf16"),
    nixgen.error(type="unknown"),
    nixgen.error(type="f8"),
    nixgen.error() + " ",
    "#nixnan:",
    "#nixnan: error [",
    "# no line of nixnan's",
    "",
)


def block(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def mutated(text, chance):
    """The text with a few bytes flipped, left out, put in, or a piece of it twice."""
    found = bytearray(text)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(found))
        what = chance.randrange(4)
        if what == 0:
            found[at] = chance.choice(b" ;][#@:\n019aN")
        elif what == 1:
            del found[at : at + chance.randrange(1, 12)]
        elif what == 2:
            found[at:at] = chance.choice(
                [b" ", b" at ", b"; in function ", b"#nixnan", b"]", b"\n", b" of type f32"]
            )
        else:
            found[at:at] = found[at : at + chance.randrange(1, 80)]
    return bytes(found) if found else b"\n"


def assert_read_as_by_pattern(text):
    """Every usual line of the text, as `read_line` reads it; returns how many there are."""
    if not text.isascii() or any(octet in text for octet in UNPRINTED):
        return 0
    if (found := usual_lines(text)) is None:
        return 0
    usual, others = found
    lines = text.split(b"\n")[:-1]
    left = set(others.tolist())
    for row, number in enumerate(number for number in range(len(lines)) if number not in left):
        event = read_line(lines[number])
        spans = (text[span.start[row] : span.end[row]].decode() for span in (usual.sass, usual.function))
        kinds, label = KIND_SETS[usual.kinds[row]], TYPES[usual.label[row]]
        assert isinstance(event, Event), lines[number]
        assert (event.kinds, event.operand, event.sass, event.function, event.label) == (
            kinds,
            usual.operand[row],
            *spans,
            label,
        )
    return len(usual.kinds)


def test_usual_lines_are_read_as_by_the_pattern():
    for line in EDGES:
        assert_read_as_by_pattern(block([nixgen.error(), line]))
    chance, usual = random.Random(5), 0
    for _ in range(1500):
        text = block([nixgen.error(), *(nixgen.varied(chance, 9) for _ in range(3))])
        usual += assert_read_as_by_pattern(mutated(text, chance) + b"\n")
    assert usual > 1500


def test_one_opcode_has_one_hash():
    """Lines of one hash are counted under the opcode of the first of them."""
    chance = random.Random(6)
    text = block([*EDGES, *(nixgen.varied(chance, 9) for _ in range(300))])
    lines = [line for line in text.split(b"\n")[:-1] if line.count(b"#nixnan") <= 1]
    text = b"".join(line + b"\n" for line in lines)
    usual, _ = usual_lines(text)
    sass = [text[a:b].decode() for a, b in zip(usual.sass.start, usual.sass.end, strict=True)]
    by_hash = {}
    for one, hash_ in zip(sass, usual.opcode_hashes.tolist(), strict=True):
        by_hash.setdefault(hash_, set()).add(opcode_of(one))
    assert len(by_hash) > 3 and all(len(opcodes) == 1 for opcodes in by_hash.values())


def test_hashes_do_not_hang_on_where_the_text_stands():
    texts = [b"", b"a", b"abcdefgh", b"abcdefghi", b"x" * 700, b"x" * 701, b"x" * 699 + b"y"]
    hashes = hashes_of(texts).tolist()
    assert len(set(hashes)) == len(texts)
    assert hashes == [int(hashes_of([text])[0]) for text in texts]
