"""The reader of nixnan's logs: every line format, and the fast ways against the plain loop."""

from __future__ import annotations

import gzip
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.errors import BadDataError, MissingError
from lab.rooms.nan.nixnan import blocks, reader
from lab.rooms.nan.nixnan.bulk import counters, hashing
from lab.rooms.nan.nixnan.grammar import FOREIGN, TORN, Event, Other, read_line
from lab.rooms.nan.nixnan.opcodes import opcode_of, type_of
from lab.rooms.nan.nixnan.parse import as_json, parse
from tests.rooms.nan.nixnan import nixgen

ERRORS = {
    "a plain one": (nixgen.error(), Event(("NaN",), 0, "FADD R2, -R7, R2", "void softmax", None, "f32")),
    "the oldest, without operand": (
        nixgen.error(operand=None, place="line 0", type="f64"),
        Event(("NaN",), None, "FADD R2, -R7, R2", "void softmax", None, "f64"),
    ),
    "a source line": (
        nixgen.error(place="/a b/c.py:17"),
        Event(("NaN",), 0, "FADD R2, -R7, R2", "void softmax", "/a b/c.py:17", "f32"),
    ),
    "a name cut to nothing": (
        nixgen.error(function="void "),
        Event(("NaN",), 0, "FADD R2, -R7, R2", "void ", None, "f32"),
    ),
    "a predicate and a constant": (
        nixgen.error("infinity,div0", "@!UP0 MUFU.RCP R2, c[0x0] [0x170]", operand=1),
        Event(("infinity", "div0"), 1, "@!UP0 MUFU.RCP R2, c[0x0] [0x170]", "void softmax", None, "f32"),
    ),
    "an immediate and two blanks": (
        nixgen.error(sass="DADD R14, |R10|, +INF ", type="f64"),
        Event(("NaN",), 0, "DADD R14, |R10|, +INF", "void softmax", None, "f64"),
    ),
    "a name with brackets and a hash": (
        nixgen.error(function="f[x] {lambda()#1}"),
        Event(("NaN",), 0, "FADD R2, -R7, R2", "f[x] {lambda()#1}", None, "f32"),
    ),
}


@pytest.mark.parametrize("line, event", ERRORS.values(), ids=ERRORS)
def test_an_error_line_is_read_as(line, event):
    assert read_line(line.encode()) == event


OTHERS = [
    ("Instrumenting all kernels", "lists"),
    ("instrumenting all kernels", "lists"),
    ("Instrumenting all functions", "lists"),
    ("Only instrumenting kernels specified in kernel_whitelist.txt", "lists"),
    ("Could not open kernel_blacklist.txt!", "lists"),
    ("running kernel [void f<a[3], {lambda()#1}>(int)] ...", "running"),
    ("kernel [void f] ...", "logged"),
    ("Kernel [f(int)] execution time: 12 microseconds", "timed"),
    ("Function [f] of kernel [g]", "function of"),
    ("Maximum number of errors (10) reached. Stopping.", "stopped"),
    ("Terminating early: timeout", "stopped"),
    ("#nixnan: warning: NaN immediate found in operand 1 of MUFU.RSQ R3, -QNAN  ;", "immediate"),
    ("warning: Unknown immediate found in operand 1 of MUFU.RSQ R3, -QNAN  ;", "immediate"),
    ("f16 bin has reached threshold: kernel=void  range=[13,15] count=256", "bin"),
    (
        "f32 bin has reached threshold: function=void f(int) range=[inf,inf] count=3 instruction=FADD R0, R0, R7 ; in function=f at /a/b.cu:3",
        "bin",
    ),
    ("--- FP exponent ranges --- ", "exponent head"),
    ("Exponent range for bf16: [zero, inf]", "exponents"),
    ("Exponent range for f16: [-14, 15]", "exponents"),
    ("--- BF16 Memory  Operations ---", "section"),
    ("NaN:\t\t\t 3 (0 repeats)", "count"),
    ("Division by 0:          8 (16 repeats)", "count"),
    ("Infinity: 3", "count"),
    ("------------ nixnan Report -----------", "report"),
    ("Finalizing GPU context...", "context"),
    ("-" * 82, "rule"),
    ("Created template bin specification file at /tmp/x.json", "template"),
    ("Caught SIGSEGV; try LINE_INFO=0", "crashed"),
    ("Inspecting function f at address 0x10", "verbose"),
    ("Found memory instruction STG.E [R2.64], R3 ;", "verbose"),
]


@pytest.mark.parametrize("text, what", OTHERS, ids=[text[:40] for text, _ in OTHERS])
def test_other_lines_of_every_build_are_understood(text, what):
    line = read_line(f"#nixnan: {text}".encode())
    assert isinstance(line, Other) and line.what == what


@pytest.mark.parametrize(
    "text",
    [
        "#nixnan: error [NaN] detected in opera",
        "f32#nixnan: error [NaN] detected",
        "#nixnan: something new",
        nixgen.error() + "#nixnan: f16 bin has reached threshold: kernel=f range=[13,15] count=2",
        nixgen.error(function="f #nixnan: f16 bin g"),
        nixgen.error("NaN,what"),
        nixgen.error(type="f8"),
    ],
)
def test_a_torn_line_is_told_and_not_guessed(text):
    assert read_line(text.encode()) is TORN


@pytest.mark.parametrize(
    "text", ["", "loss=nan", "## NOTE: #nixnan: #nixnan: twice", "error [NaN] detected in operand 0"]
)
def test_the_programs_own_output_is_foreign(text):
    assert read_line(text.encode()) is FOREIGN


@pytest.mark.parametrize(
    "before, after", [("", "\r"), ("\0\0", ""), ("\x1b[1m", "\x1b[0m"), (" 50%|## |\r", ""), ("", "  ")]
)
def test_what_terminals_and_holes_leave_in_a_line_is_taken_out(before, after):
    assert read_line(f"{before}{nixgen.error()}{after}".encode()) == read_line(nixgen.error().encode())


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


def same(found, plain) -> None:
    assert (found.lines, found.error_lines, found.torn_lines) == (
        plain.lines,
        plain.error_lines,
        plain.torn_lines,
    )
    assert found.site_count == len(plain.sites)
    assert found.functions == dict(plain.functions)
    counts = {
        (of, False, kind): n
        for of, row in found.counts.items()
        if of != "memory"
        for kind, n in row.items()
        if n
    }
    counts |= {
        (of, True, kind): n for of, row in found.counts["memory"].items() for kind, n in row.items() if n
    }
    assert counts == dict(plain.counts)
    opcodes = {}
    for cell in found.cells:
        opcodes[cell.opcode] = opcodes.get(cell.opcode, 0) + cell.lines
    assert opcodes == dict(plain.opcodes)
    assert sum(found.categories.values()) == found.error_lines
    for site in found.sites:
        assert plain.sites[site.key] == site.lines


@pytest.fixture
def small_limits(monkeypatch):
    """Every way of the reader within some hundred lines: blocks, folds, overflow, files of hashes."""
    for name, value in {"BULK_BYTES": 1500, "SITE_LIMIT": 20, "_MEMO_LINES": 16}.items():
        monkeypatch.setattr(reader, name, value)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(counters, "_HELD_HASHES", 64)
    monkeypatch.setattr(counters, "_COUNTED_AT_A_TIME", 50)


@given(
    seed=st.integers(0, 10**9),
    lines=st.integers(0, 400),
    registers=st.sampled_from([1, 3, 40]),
    noise=st.floats(0, 0.4),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fast_and_plain_agree_on_any_log(tmp_path, small_limits, seed, lines, registers, noise):
    draw = random.Random(seed)
    text = [
        draw.choice(nixgen.NOISE) if draw.random() < noise else nixgen.varied(draw, registers)
        for _ in range(lines)
    ]
    path = nixgen.write(tmp_path / "x.nixnan", nixgen.log(*text, end=draw.random() < 0.5))
    same(parse(path), nixgen.plain(path))


def test_fast_and_plain_agree_where_every_line_is_the_usual_one(tmp_path, small_limits):
    draw = random.Random(3)
    text = [
        nixgen.error(
            draw.choice(nixgen.KIND_LISTS),
            f"FADD R{draw.randrange(60)}, R{draw.randrange(60)}, R2",
            operand=draw.randrange(4),
            function=f"kernel_{draw.randrange(50)}",
        )
        for _ in range(3000)
    ]
    path = nixgen.write(tmp_path / "x.nixnan", nixgen.log(*text))
    found = parse(path)
    same(found, nixgen.plain(path))
    assert len(found.sites) < found.site_count and any("not listed" in reason for reason in found.reasons)


def test_the_line_shown_of_a_site_stands_where_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1500)
    draw = random.Random(7)
    text = [draw.choice(nixgen.NOISE) if draw.random() < 0.2 else nixgen.varied(draw, 3) for _ in range(1500)]
    path = nixgen.write(tmp_path / "x.nixnan", [*nixgen.log(*text[:700]), *nixgen.log(*text[700:])])
    found, lines = parse(path), path.read_bytes().decode().split("\n")
    assert len(found.sites) > 200 and all(site.raw in lines[site.line - 1] for site in found.sites)
    assert all(f"{kind}" in lines[line - 1] for site in found.sites for kind, line in site.first_of.items())


def test_functions_beyond_the_limit_are_summed_and_said(tmp_path, small_limits, monkeypatch):
    monkeypatch.setattr(reader, "FUNCTION_LIMIT", 30)
    path = nixgen.write(tmp_path / "x", [nixgen.error(function=f"f{n % 90}") for n in range(900)])
    found = parse(path)
    assert (
        sum(found.functions.values()) + found.unlisted_function_lines == 900
        and found.unlisted_function_lines > 0
    )
    assert any("beyond" in reason for reason in found.reasons) and found.site_count == 90


@given(st.lists(st.integers(0, 300), max_size=400))
def test_distinct_hashes_are_counted_exactly_through_the_file(numbers):
    distinct, held = counters.Distinct(), counters._HELD_HASHES
    counters._HELD_HASHES = 32
    try:
        for start in range(0, len(numbers), 20):
            distinct.add(np.array(numbers[start : start + 20], np.uint64) * np.uint64(2**64 // 301))
        assert distinct.count() == len(set(numbers))
    finally:
        counters._HELD_HASHES = held


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=60), st.data())
def test_an_index_finds_what_was_added_and_nothing_else(keys, data):
    crowded = [key >> 46 << 46 | n for n, key in enumerate(keys)] + list(range(5))  # many share a slot
    crowded = list(dict.fromkeys(crowded))
    cut = data.draw(st.integers(0, len(crowded)))
    index = counters.Index()
    index.add(np.array(crowded[:cut], np.uint64))
    index.add(np.array(crowded[cut:], np.uint64))
    rows = index.rows(np.array([*crowded, 2**64 - 3], np.uint64))
    assert rows.tolist() == [*range(len(crowded)), -1]


def test_hashes_do_not_hang_on_where_the_text_stands():
    texts = [b"", b"a", b"abcdefgh", b"abcdefghi", b"x" * 700, b"x" * 701, b"x" * 699 + b"y"]
    assert len({int(one) for one in hashing.hashes_of(texts)}) == len(texts)
    assert [int(one) for one in hashing.hashes_of(texts)] == [
        int(hashing.hashes_of([one])[0]) for one in texts
    ]


@pytest.mark.parametrize("members", [1, 3])
def test_a_compressed_log_reads_as_the_log(tmp_path, members):
    lines = nixgen.log(*[nixgen.varied(random.Random(n), 4) for n in range(300)])
    whole, packed = nixgen.write(tmp_path / "a.nixnan", lines), tmp_path / "a.nixnan.gz"
    text = whole.read_bytes()
    step = len(text) // members + 1
    packed.write_bytes(
        b"".join(gzip.compress(text[at : at + step]) for at in range(0, len(text), step)) + bytes(512)
    )
    want, found = as_json(parse(whole)), as_json(parse(packed))
    for name in ("file", "files", "size_bytes", "torn"):
        want.pop(name), found.pop(name)
    assert found == want


def test_a_cut_compressed_log_is_read_as_far_as_it_goes(tmp_path):
    lines = nixgen.log(*[nixgen.varied(random.Random(n), 256) for n in range(2000)])
    packed = gzip.compress("\n".join(lines).encode())
    (tmp_path / "a.gz").write_bytes(packed[: len(packed) // 2])
    found = parse(tmp_path / "a.gz")
    assert (
        found.integrity == "truncated" and "compressed" in found.reasons[0] and 500 < found.error_lines < 2000
    )


def test_a_broken_compressed_log_is_an_error(tmp_path):
    packed = bytearray(gzip.compress("\n".join(nixgen.varied(random.Random(n)) for n in range(500)).encode()))
    packed[200:240] = bytes(40)
    (tmp_path / "a.gz").write_bytes(bytes(packed))
    with pytest.raises(BadDataError, match="broken"):
        parse(tmp_path / "a.gz")


def test_no_file_and_a_folder_are_clear_errors(tmp_path):
    with pytest.raises(MissingError, match="no such log"):
        parse(tmp_path / "a")
    with pytest.raises(MissingError, match="folder"):
        parse(tmp_path)


def test_a_line_without_end_is_dropped_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "LINE_BYTES", 5000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    path = tmp_path / "a"
    path.write_bytes(
        b"x" * 20_000
        + b"\n"
        + nixgen.error().encode()
        + b"\n"
        + b"y" * 8000
        + b"#nixnan: z"
        + b"z" * 8000
        + b"\n"
        + bytes(30_000)
        + nixgen.error().encode()
        + b"\n"
        + b"end" * 5000
    )
    found = parse(path)
    assert (found.error_lines, found.torn_lines, found.foreign_lines, found.lines) == (2, 1, 2, 5)


def test_a_hole_of_nuls_before_a_line_is_no_part_of_it(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(3_000_000) + "\n".join(nixgen.log(nixgen.error())).encode())
    assert parse(path).integrity == "complete"


def test_several_logs_of_one_run_add_up(tmp_path):
    one, two = (
        [nixgen.error(), nixgen.error(operand=1)],
        [nixgen.error(), nixgen.error(sass="FMUL R1, R2, R3")],
    )
    paths = [nixgen.write(tmp_path / f"{n}.nixnan", nixgen.log(*lines)) for n, lines in enumerate((one, two))]
    child = nixgen.write(tmp_path / "child.nixnan", nixgen.BANNER[:1])
    found = parse([*paths, child])
    assert (found.error_lines, found.site_count, found.integrity, found.contexts) == (4, 3, "complete", 2)
    assert found.report["f32"]["NaN"] == {"unique": 4, "repeats": 28} and found.counts["f32"]["NaN"] == 4
    assert next(site for site in found.sites if site.operand == 0 and "FADD" in site.sass).lines == 2
