"""Types of options."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lab.terminal.click_types import WordList


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
