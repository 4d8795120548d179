"""Where two runs differ, with one text and one JSON for every comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from lab.core.words import first_few, plural
from lab.workload.recorder.format import Row

KINDS = {
    "random": "random numbers",
    "weight": "weights",
    "buffer": "buffers",
    "input": "batch",
    "module": "output",
    "op": "operator",
    "grad": "gradient",
    "reduced": "gradient after the reduction",
    "used": "gradient that the update uses",
    "comm": "collective",
}
DIRECTIONS = {"start": "start", "fwd": "forward", "bwd": "backward", "end": "end"}
COLUMNS = ("i", "step", "kind", "op", "out", "phase", "module", "node", "dtype", "shape", "random")
Key = tuple[Any, ...]
P = TypeVar("P", bound="Place")


class Place(msgspec.Struct, kw_only=True):
    """One tensor by its row's columns; a comparison adds what it finds there."""

    i: int
    step: int
    rank: int | None = None  # None: whatever was recorded together
    kind: str
    op: str
    out: int
    phase: str
    direction: str
    module: str
    node: str
    dtype: str
    shape: tuple[int, ...]
    random: bool
    explanation: str | None = msgspec.field(default="", name="why")

    def __str__(self) -> str:
        """`step 2, rank 1, module mix, backward: operator aten.index_add in IndexAddBackward0`."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        name = "" if self.kind == "input" or not self.op else f" {self.op}"
        name = f" of{name}" if name and self.kind == "module" else name
        name += f" output {self.out}" if self.out and self.kind == "op" else ""
        node = f" in {self.node}" if self.node else ""
        module = f"module {self.module}" if self.module else "model"
        location = f"step {self.step}, {rank}{module}, {self.direction}"
        return f"{location}: {self.kind_text}{name}{node}"

    @property
    def kind_text(self) -> str:
        is_gradient = self.kind == "module" and self.phase == "bwd"
        return "gradient of the output" if is_gradient else KINDS.get(self.kind, self.kind)


def place_of(kind: type[P], row: Row, **facts: Any) -> P:
    columns: dict[str, Any] = {name: getattr(row, name) for name in COLUMNS}
    return kind(**columns, direction=DIRECTIONS.get(row.phase, "update"), **facts)


def keyed(rows: Iterable[Row], key_of: Callable[[Row], Key]) -> dict[Key, Row]:
    """Rows in order by their key and by how many of that key came before: what pairs recordings."""
    table: dict[Key, Row] = {}
    count: Counter[Key] = Counter()
    for row in rows:
        key = key_of(row)
        count[key] += 1
        table[key, count[key]] = row
    return table


def same_bits(a: Row, b: Row) -> bool:
    """Whether two records of one tensor have the same bits: the checksum says it, and what follows from equal
    bits must not say otherwise."""
    return (a.ck, a.absmax, a.nan, a.inf) == (b.ck, b.absmax, b.nan, b.inf)


def majority(checksums: Iterable[str]) -> tuple[str, int, bool]:
    """Most frequent of checksums that must be equal, how often, and whether it alone is so frequent."""
    (usual, count), *further = Counter(checksums).most_common(2)
    return usual, count, not further or further[0][1] < count


def unwritten_text(counts: Mapping[str, int], limit: int) -> str:
    """What was not compared, because it holds what was in memory before."""
    names = first_few([f"{count:,} of {name}" for name, count in counts.items()], limit)
    return f"{plural(sum(counts.values()), 'output')} that need not be written were not compared: {names}"
