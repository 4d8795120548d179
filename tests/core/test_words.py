"""A number and its noun agree."""

from __future__ import annotations

import pytest

from lab.core.words import first_few, listed, plural, printable, ranks_text


@pytest.mark.parametrize(
    "count, noun, text",
    [
        (0, "step", "0 steps"),
        (1, "step", "1 step"),
        (2, "step", "2 steps"),
        (1024, "launch", "1,024 launches"),
        (1_000_000, "step", "1,000,000 steps"),
        (2, "entry", "2 entries"),
        (1, "entry", "1 entry"),
        (2, "day", "2 days"),
        (2, "journey", "2 journeys"),
        (2, "toy", "2 toys"),
        (2, "guy", "2 guys"),
        (2, "process", "2 processes"),
        (2, "box", "2 boxes"),
        (2, "quartz", "2 quartzes"),
        (2, "hash", "2 hashes"),
        (2, "graph", "2 graphs"),
    ],
)
def test_the_noun_goes_with_the_number(count, noun, text):
    assert plural(count, noun) == text


def test_an_irregular_plural_is_named_by_the_caller():
    assert plural(2, "axis", "axes") == "2 axes"
    assert plural(1, "axis", "axes") == "1 axis"


def test_printable_text_keeps_lines_and_shows_every_other_control_character():
    assert printable("a\tb\nc µs ✓ –") == "a\tb\nc µs ✓ –"
    hostile = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 160)])) + "\u202e\u2066\u200f"
    assert not any(char in printable(hostile) for char in hostile) and "\\x1b" in printable("\x1b[2J")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), (range(9), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more")],
)
def test_ranks_are_named_and_those_left_out_counted(ranks, text):
    assert ranks_text(ranks) == text


def test_what_a_list_leaves_out_is_counted():
    assert first_few(["a", "b", "c"], 2, between="; ") == "a; b and 1 more"
    assert first_few(["a", "b"], 2) == "a, b"
    assert listed("not whole", ["a", "b"], 2) == "not whole:\n  a\n  b"
    assert listed("not whole", ["a"] * 1002, 1) == "not whole:\n  a\n  and 1,001 more"
