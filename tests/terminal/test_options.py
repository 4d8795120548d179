"""Types of options, and which part of a recording a command is about."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lab.errors import UsageError
from lab.terminal.options import ABOVE_ZERO, SEED, WordList
from lab.terminal.part import parse_steps, parse_time_ns, part_options, phase_names


@click.command()
@click.option("--words", type=WordList(("ring", "nvls_tree", "ll128")), default="ring")
def _show(words: list[str]) -> None:
    click.echo("|".join(words))


@pytest.mark.parametrize(
    ("given", "words"),
    [("NVLSTree,Ring", "nvls_tree|ring"), ("nvls_tree", "nvls_tree"), (" LL128 ", "ll128")],
)
def test_words_are_taken_as_the_library_spells_them(given, words):
    assert CliRunner().invoke(_show, ["--words", given]).output == f"{words}\n"


@pytest.mark.parametrize("given", ["", "rings", "ring,", "ring,Ring", "ring,nvls__tree,NVLSTREE"])
def test_unknown_and_repeated_words_are_refused(given):
    done = CliRunner().invoke(_show, ["--words", given])
    assert done.exit_code == 2 and ("is none of" in done.output or "twice" in done.output)


def test_the_default_is_converted_too():
    assert CliRunner().invoke(_show, []).output == "ring\n"


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (ABOVE_ZERO, "nan", "nan is not a finite number"),
        (ABOVE_ZERO, "inf", "inf is not a finite number"),
        (ABOVE_ZERO, "0", "range x>0"),
        (SEED, str(2**64), "is not in the range"),
    ],
)
def test_numbers_that_nothing_can_take_are_refused(kind, given, words):
    command = click.command()(click.option("--number", type=kind)(lambda number: None))
    done = CliRunner().invoke(command, ["--number", given])
    assert done.exit_code == 2 and words in done.output


def test_the_largest_seed_starts_every_generator():
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    largest = SEED.convert(str(2**62), None, None)
    torch.Generator().manual_seed(largest + 10**6)
    numpy.random.default_rng(largest + 10**6)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("12.5ms", 12_500_000), ("300 us", 300_000), ("2s", 2 * 10**9), ("7", 7 * 10**6), ("9ns", 9), ("0", 0)],
)
def test_times_have_units_and_are_exact(text, ns):
    assert parse_time_ns(text, "--from") == ns


@pytest.mark.parametrize("text", ["", "-3ms", "1h", "1e9", "nan", "3 ms x", "9" * 50])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="is not a time"):
        parse_time_ns(text, "--from")


def test_steps_are_numbers_and_spans():
    assert parse_steps("3,7-9, 8") == {3, 7, 8, 9}
    for text in ("", "9-7", "a", "1-99999999999", "-1"):
        with pytest.raises(UsageError):
            parse_steps(text)


def test_a_phase_of_ones_own_may_be_named_or_guessed():
    names = phase_names(["backward=grad", "fwd.*"], named=True)
    assert (names.phase_of("grad"), names.phase_of("fwd_1")) == ("backward", "forward")
    with pytest.raises(UsageError, match="which phase is it"):
        phase_names(["x.*"], named=True)
    assert phase_names(["x=y"]).phase_of("x=y") == "x=y"


def test_what_cannot_be_asked_is_refused_before_anything_is_read():
    flags = {"range_name": "x", "step": "3,7-9", "from_time": "1ms", "to_time": "2ms", "out": "o"}
    assert part_options(flags).step == "3,7-9" and flags == {"out": "o"}
    for words in ({"step": "x"}, {"from_time": "1h"}, {"to_time": ""}):
        with pytest.raises(UsageError):
            part_options(words)
