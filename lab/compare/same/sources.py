"""Known sources of differences (sources.csv): what an operator does in no fixed order, and the switch."""

from __future__ import annotations

import csv
import functools
import re
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    """A known source of differences, a row of sources.csv."""

    ops: str
    reason: str
    switch: str


@functools.cache
def _sources() -> list[tuple[re.Pattern[str], Source]]:
    with Path(__file__).with_name("sources.csv").open(newline="", encoding="ascii") as file:
        sources = [Source(**row) for row in csv.DictReader(line for line in file if line[0] != "#")]
    return [(re.compile(rf"(?:{source.ops})_?"), source) for source in sources]


def source_of(name: str) -> Source | None:
    """The known source behind `aten.index_add_.default` or `mylib.atomic_add.default`; None: none known."""
    library, _, operator = name.partition(".")
    word = operator.split(".")[0] if operator else library
    for pattern, source in _sources():
        if pattern.fullmatch(word):
            return source
    of_library = _sources()[-1][1]
    return of_library if re.match(of_library.ops, library) else None
