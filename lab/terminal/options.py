"""Options that commands of several rooms share, their types, and what reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.core.options import Options

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Finite(click.FloatRange):
    """A number in a range. nan, which click accepts for every range, and inf are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


class IntList(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """`28,42,56`: integers from `minimum` on, without repeats."""

    name = "N,N,..."

    def __init__(self, minimum: int = 1) -> None:
        self._minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        from lab.errors import UsageError

        try:
            return parse_int_list(value, self._minimum)
        except UsageError as error:
            self.fail(f"{error.problem} ({error.fix})" if error.fix else error.problem, param, ctx)


class WordList(click.ParamType):  # type: ignore[type-arg]
    """`ring,tree`: some of `words`, without repeats; case and underscores do not count (`NVLSTree`)."""

    name = "WORD,WORD,..."

    def __init__(self, words: Sequence[str]) -> None:
        self._words = {_plain(word): word for word in words}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in value.split(",")]
        for part in parts:
            if _plain(part) not in self._words:
                self.fail(f"{part!r} is none of {', '.join(self._words.values())}", param, ctx)
        words = [self._words[_plain(part)] for part in parts]
        if len(set(words)) < len(words):
            self.fail(f"{value!r} has a word twice", param, ctx)
        return words


def _plain(word: str) -> str:
    return word.lower().replace("_", "")


def with_options(*decorators: Decorator) -> Decorator:
    """Several options and arguments as one decorator, in the order of --help."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def options_of(ctx: click.Context) -> Options:
    """The options of `lab run`, or their defaults for a command that a test calls alone."""
    from lab.core.options import Options

    return ctx.obj if isinstance(ctx.obj, Options) else Options()


def parse_int_list(text: str, minimum: int = 1) -> list[int]:
    """`"28,42"` -> [28, 42]. Raises UsageError for anything but distinct integers from `minimum` on."""
    from lab.errors import UsageError

    values: list[int] = []
    for part in text.split(","):
        # isdecimal alone accepts the digits of other scripts, such as Arabic-Indic ones.
        if not (part.strip().isascii() and part.strip().isdecimal()) or int(part) < minimum:
            kind = "an integer above zero" if minimum else "an integer from 0 on"
            raise UsageError(f"{part.strip()!r} in {text!r} is not {kind}", fix="write 28,42,56")
        if int(part) in values:
            raise UsageError(f"{int(part)} is twice in {text!r}", fix="use --repeats to run a setting again")
        values.append(int(part))
    return values


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


def seed(default: int | None = 0, text: str = "Seed of the random weights.") -> Decorator:
    return option("--seed", type=SEED, default=default, help=text)


def out(text: str, **settings: Any) -> Decorator:
    """Where a command that reads recordings writes."""
    return option("-o", "--out", type=PATH, help=text, **settings)


def as_json(text: str) -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=f"{text} as JSON on stdout.")


def quiet(text: str = "Show no progress.") -> Decorator:
    return click.option("-q", "--quiet", is_flag=True, help=text)


def print_json(value: Any) -> None:
    """Print a value on stdout as one line of JSON."""
    import msgspec

    click.echo(msgspec.json.encode(value).decode())
