"""Options that commands of several rooms share: one spelling, one type, one order of words in --help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.terminal.click_types import Decorator, Finite

PATH = click.Path(path_type=Path)
ONE_OR_MORE = click.IntRange(min=1)
ZERO_OR_MORE = click.IntRange(min=0)
ABOVE_ZERO = Finite(min=0, min_open=True)
SEED = click.IntRange(min=0, max=2**62)
"""Generators take 63 bits, and some seeds are counted on from here."""


def option(*names: str, **settings: Any) -> Decorator:
    """click's option, which shows its default where it has one."""
    return click.option(*names, **{"show_default": settings.get("default") is not None, **settings})


def choice(name: str, words: str, text: str | None = None) -> Decorator:
    """One of several words, by default the first."""
    choices = words.split()
    return option(name, type=click.Choice(choices), default=choices[0], help=text)


def model(default: str, text: str) -> Decorator:
    return option("--model", default=default, help=text)


def device(text: str = "Where the model runs. auto: the GPU if there is one.") -> Decorator:
    return choice("--device", "auto cuda cpu", text)


def dtype(words: str, text: str) -> Decorator:
    return choice("--dtype", words, text)


def seed(default: int | None = 0, text: str = "Seed of the random weights.") -> Decorator:
    return option("--seed", type=SEED, default=default, help=text)


def out(text: str, **settings: Any) -> Decorator:
    """Where a command that reads recordings writes."""
    return option("-o", "--out", type=PATH, help=text, **settings)


def as_json(text: str) -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=f"{text} as JSON on stdout.")


def quiet(text: str = "Show no progress.") -> Decorator:
    return click.option("-q", "--quiet", is_flag=True, help=text)
