"""Types of options."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lab.terminal.options import ABOVE_ZERO, SEED, WordList


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
