"""The reader of nixnan's logs: every line format, against the plain loop."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.errors import MissingError
from lab.rooms.nan.nixnan.reading import parse as parsing
from lab.rooms.nan.nixnan.reading import reader
from lab.rooms.nan.nixnan.reading.parse import parse
from tests.rooms.nan.nixnan import nixgen


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
    for (opcode, *_), lines in found.cells.items():
        opcodes[opcode] = opcodes.get(opcode, 0) + lines
    assert opcodes == dict(plain.opcodes)
    assert sum(found.categories.values()) == found.error_lines
    for site in found.sites:
        assert plain.sites[site.key] == site.lines


@pytest.fixture
def small_limits(monkeypatch):
    """Every way of the reader within some hundred lines: blocks, folds, a full table of sites."""
    for name, value in {"SITE_LIMIT": 20, "_MEMO_LINES": 16}.items():
        monkeypatch.setattr(reader, name, value)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 700)


@given(
    seed=st.integers(0, 10**9),
    lines=st.integers(0, 400),
    registers=st.sampled_from([1, 3, 40]),
    noise=st.floats(0, 0.4),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reader_and_plain_loop_agree_on_any_log(tmp_path, small_limits, seed, lines, registers, noise):
    draw = random.Random(seed)
    text = [
        draw.choice(nixgen.NOISE) if draw.random() < noise else nixgen.varied(draw, registers)
        for _ in range(lines)
    ]
    path = nixgen.write(tmp_path / "x.nixnan", nixgen.log(*text, end=draw.random() < 0.5))
    same(parse(path), nixgen.plain(path))


def test_sites_beyond_the_table_are_counted_and_said(tmp_path, small_limits, monkeypatch):
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
    monkeypatch.setattr(reader, "FURTHER_LIMIT", 5)
    monkeypatch.setattr(parsing, "FURTHER_LIMIT", 5)
    assert any("at least 5 further sites" in reason for reason in parse(path).reasons)


def test_the_line_shown_of_a_site_stands_where_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 1500)
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


def test_opcodes_beyond_the_limit_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "CELL_LIMIT", 2)
    path = nixgen.write(tmp_path / "x", [nixgen.error(sass=f"OP{n} R1, R2") for n in (0, 1, 2, 3, 1)])
    cells = {opcode: lines for (opcode, *_), lines in parse(path).cells.items()}
    assert cells == {"OP0": 1, "OP1": 2, reader.OTHER_OPCODES: 2}


def test_no_file_and_a_folder_are_clear_errors(tmp_path):
    with pytest.raises(MissingError, match="no such log"):
        parse(tmp_path / "a")
    with pytest.raises(MissingError, match="folder"):
        parse(tmp_path)
