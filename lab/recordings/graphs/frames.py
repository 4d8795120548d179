"""Python calls and modules that the profiler recorded (with_stack, with_modules), and who was inside what.

They are ten times as many as all other events, so they are read in a pass of their own, and only from the
recordings in which a module or a line is asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lab.recordings.capture import MODULE, Capture
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.decode import clean_text
from lab.recordings.owners import innermost, parents
from lab.recordings.tables import Table

_NUMBER = re.compile(r"_\d+\Z")
_LINE = re.compile(r"(.+\.py)\((\d+)\): (.+)\Z")
# Files of the framework itself: a line in them says nothing about the model.
_FRAMEWORK = re.compile(r"(^|/)(torch|triton|torch_guard\.py|threading\.py|multiprocessing)(/|\Z)|^<")
# Inductor names its generated files by a hash of 52 letters in base 32.
GENERATED = re.compile(r"(^|/)c[a-z2-7]{50,52}\.py\Z")


class Nested:
    """Rows of a table (pid, tid, start_ns, end_ns), and which are around each other on their thread."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._chains: dict[int, tuple[int, ...]] = {-1: ()}

    @cached_property
    def _parent(self) -> np.ndarray:
        return parents(self.table)

    def around(self, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> list[tuple[int, ...]]:
        """Rows around each time (n,), outermost first."""
        return [self._chain(row) for row in innermost(self.table, pid, tid, ts_ns).tolist()]

    def _chain(self, row: int) -> tuple[int, ...]:
        todo = []
        while row not in self._chains:
            todo.append(row)
            row = int(self._parent[row])
        chain = self._chains[row]
        for inner in reversed(todo):
            chain = self._chains[inner] = (*chain, inner)
        return chain


@dataclass(frozen=True)
class Frames:
    """Python calls: Table of start_ns, end_ns, pid, tid, name_id; name_id indexes `names`."""

    table: Table
    names: list[str]

    def modules(self, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> list[tuple[str, ...]]:
        """Instances of modules around each time (n,), outermost first: ("Model_0", "Block_3", "Linear_7")."""
        chains = self._modules.around(pid, tid, ts_ns) if len(ts_ns) else []
        name_id = self._modules.table.name_id if chains else ()
        paths = {
            chain: tuple(clean_text(self.names[name_id[row]].removeprefix(MODULE)) for row in chain)
            for chain in set(chains)
        }
        return [paths[chain] for chain in chains]

    @cached_property
    def _modules(self) -> Nested:
        return Nested(self._only(np.array([name.startswith(MODULE) for name in self.names], dtype=bool)))

    def lines(self, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray, *, generated: bool) -> list[str]:
        """`file.py:12 function` of the innermost call around each time (n,), "" where none was recorded.

        generated: of a file that Inductor wrote; otherwise of neither such a file nor the framework.
        """
        fits = np.array([_is_line(name, generated) for name in self.names], dtype=bool)
        table = self._only(fits)
        frames = innermost(table, pid, tid, ts_ns)
        return [line_of(self.names[table.name_id[row]]) if row >= 0 else "" for row in frames.tolist()]

    def _only(self, wanted: np.ndarray) -> Table:
        return self.table.where(wanted[self.table.name_id]) if len(self.names) else self.table


def _is_line(name: str, generated: bool) -> bool:
    match = _LINE.match(name)
    if not match:
        return False
    return bool(GENERATED.search(match[1])) if generated else not _FRAMEWORK.search(match[1])


def line_of(name: str) -> str:
    """`dir/file.py(12): call` as `file.py:12 call`."""
    match = _LINE.match(name)
    return f"{match[1].rpartition('/')[2]}:{match[2]} {match[3]}" if match else ""


def layers_of(paths: list[tuple[str, ...]]) -> list[str]:
    """The layer in each module path (n,): its outermost instance beside others of its class, "" for none."""
    siblings: dict[tuple[tuple[str, ...], str], set[str]] = {}
    for path in set(paths):
        for depth, name in enumerate(path):
            siblings.setdefault((path[:depth], class_of(name)), set()).add(name)
    layer_of_path = {
        path: next(
            (name for depth, name in enumerate(path) if len(siblings[path[:depth], class_of(name)]) > 1),
            "",
        )
        for path in set(paths)
    }
    return [layer_of_path[path] for path in paths]


def class_of(module: str) -> str:
    """`Linear` of `Linear_7`."""
    return _NUMBER.sub("", module)


def modules_of(trace: Capture) -> Frames:
    """The calls of modules that were read with the trace."""
    return Frames(trace.modules, trace.strings)


def read_frames(path: Path) -> Frames:
    """The Python calls of a Kineto file, times in absolute ns. Raises what `read_kineto` raises."""
    # The trace was read before, and its damage reported then.
    trace = read_kineto(path, salvage=True, frames=True)
    # An id that is a text is another number in every reading.
    numbered = (trace.modules.pid >= -1) & (trace.modules.tid >= -1)
    return Frames(trace.modules.where(numbered), trace.strings)
