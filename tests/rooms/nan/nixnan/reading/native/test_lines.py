"""lines.c gives what the plain forms give, on any text, and leaves no block of memory."""

from __future__ import annotations

import random
import subprocess

import numpy as np
import pytest

from lab.native import READER
from lab.rooms.nan.nixnan.reading.bulk.native import NativeScanner, scanner
from lab.rooms.nan.nixnan.reading.bulk.scanner import PlainScanner
from lab.rooms.nan.nixnan.reading.counts import NATIVE_BYTES, NativeCounts, PlainCounts, counts_for
from lab.rooms.nan.nixnan.reading.native import find
from tests.rooms.nan.nixnan import nixgen

compiled = pytest.mark.skipif(find.library() is None, reason="nixnan's lines are not compiled here")

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


def columns(found):
    """All numbers of a scanner's answer, as lists."""
    if found is None:
        return None
    usual, others = found
    return [column.tolist() for column in (*usual[:3], *usual.sass, *usual.function, *usual[5:], others)]


def assert_same(text):
    """Both scanners read the text alike; returns how many lines are usual."""
    found = NativeScanner(find.library()).usual(text)
    assert columns(found) == columns(PlainScanner().usual(text)), text
    return 0 if found is None else len(found[0].kinds)


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


@compiled
@pytest.mark.parametrize("line", EDGES)
def test_a_line_that_is_nearly_usual_is_read_alike(line):
    assert_same(block([nixgen.error(), line, nixgen.error()]))


@compiled
def test_scanners_agree_on_mutated_texts_and_on_every_cut():
    chance = random.Random(11)
    whole = block([nixgen.varied(chance, 9) for _ in range(5)])
    usual = sum(assert_same(mutated(whole, chance) + b"\n") for _ in range(2000))
    assert 2000 < usual < 10_000
    for end in range(len(whole)):
        assert_same(whole[:end] + b"\n")


@compiled
def test_a_name_in_a_block_has_the_hash_of_the_name_alone():
    """The table of sites was filled from texts; the lines that belong to it are found by these hashes."""
    from lab.rooms.nan.nixnan.reading.bulk.hashing import hashes_of

    names = [f"kernel_{'x' * size}" for size in range(40)]
    usual, _ = NativeScanner(find.library()).usual(block(nixgen.error(function=name) for name in names))
    assert np.array_equal(usual.function_hashes, hashes_of([name.encode() for name in names]))


def drive(counts, texts, chance):
    """What a user of `counts` sees; keys are named by their bytes."""
    seen, raw_of = [], {}
    for text in texts:
        total, new = counts.add(text)
        raw_of |= {one.key: one.raw for one in new}
        seen.append((total, [(one.raw, one.at) for one in new]))
        if new and chance.random() < 0.3:
            counts.forget(new[0].key)
        if chance.random() < 0.1:
            seen.append(sorted((raw_of[key], lines) for key, lines in counts.items()))
            counts.clear()
            assert len(counts) == 0
            raw_of.clear()
    return [*seen, sorted((raw_of[key], lines) for key, lines in counts.items())]


@compiled
@pytest.mark.parametrize("seed", range(10))
def test_lines_are_counted_as_in_python(seed):
    chance = random.Random(seed)
    lines = [bytes(chance.choices(b"ab\0\xff", k=chance.randrange(70))) for _ in range(60)]
    lines += [b"", b"x" * 5000, b"x" * 4999, b"\r"]
    texts = [
        b"".join(one + b"\n" for one in chance.choices(lines, k=chance.randrange(90))) for _ in range(40)
    ]
    loaded = find.library()
    native = drive(NativeCounts(loaded), texts, random.Random(seed))
    assert native == drive(PlainCounts(), texts, random.Random(seed))


@compiled
def test_many_lines_make_the_table_grow():
    counts = NativeCounts(find.library())
    text = block(f"line {number}" for number in range(20_000))
    total, new = counts.add(text)
    assert total == len(new) == len(counts) == 20_000 and [one.at for one in new] == list(range(20_000))
    assert counts.add(text) == (20_000, []) and set(dict(counts.items()).values()) == {2}


def test_the_plain_forms_can_be_asked_for(monkeypatch):
    monkeypatch.setenv(READER, "plain")
    assert isinstance(counts_for(1 << 40), PlainCounts) and isinstance(scanner(), PlainScanner)


def test_a_small_log_is_counted_in_python():
    assert isinstance(counts_for(NATIVE_BYTES - 1), PlainCounts)


def test_no_read_or_write_leaves_its_block(tmp_path):
    program, here = tmp_path / "fuzz", __file__.replace("test_lines.py", "fuzz.c")
    flags = ("-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    try:
        done = subprocess.run(
            ["cc", *flags, f"-I{find.LIBRARY.source.parent}", here, "-o", program], capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    if done.returncode:
        pytest.skip("this compiler has no sanitizers")
    chance = random.Random(7)
    whole = block([*EDGES, *(nixgen.varied(chance, 9) for _ in range(5))])
    cases = [b"", whole, *(whole[:end] for end in range(len(whole)))]
    cases += [mutated(whole, chance) for _ in range(2000)]
    (tmp_path / "cases").write_bytes(b"".join(len(case).to_bytes(4, "little") + case for case in cases))
    ran = subprocess.run([program, tmp_path / "cases"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[:3000]
    run, usual = (int(word) for word in ran.stdout.split() if word.isdigit())
    assert run == len(cases) and usual > 1000
