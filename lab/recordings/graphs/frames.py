"""Python calls and modules that the profiler recorded (with_stack, with_modules), and who was inside what.

They are ten times as many as all other events, so they are read in a pass of their own, and only from the
recordings in which a module or a line is asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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


def around(table: Table, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> list[tuple[int, ...]]:
    """Rows of a table (pid, tid, start_ns, end_ns) around each time (n,) on its thread, outermost first."""
    parent, rows = parents(table).tolist(), innermost(table, pid, tid, ts_ns).tolist()

    def chain(row: int) -> tuple[int, ...]:
        chain_rows = []
        while row >= 0:
            chain_rows.append(row)
            row = parent[row]
        return tuple(reversed(chain_rows))

    chains = {row: chain(row) for row in set(rows)}
    return [chains[row] for row in rows]


@dataclass(frozen=True)
class Frames:
    """Python calls: Table of start_ns, end_ns, pid, tid, name_id; name_id indexes `names`."""

    table: Table
    names: list[str]

    def modules(self, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> list[tuple[str, ...]]:
        """Instances of modules around each time (n,), outermost first: ("Model_0", "Block_3", "Linear_7")."""
        table = self._only([name.startswith(MODULE) for name in self.names])
        chains = around(table, pid, tid, ts_ns) if len(ts_ns) else []
        paths = {
            chain: tuple(clean_text(self.names[table.name_id[row]].removeprefix(MODULE)) for row in chain)
            for chain in set(chains)
        }
        return [paths[chain] for chain in chains]

    def lines(self, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray, *, generated: bool) -> list[str]:
        """`file.py:12 function` of the innermost call around each time (n,), "" where none was recorded.

        generated: of a file that Inductor wrote; otherwise of neither such a file nor the framework.
        """
        lines = [_line_of(name, generated) for name in self.names]
        table = self._only([line != "" for line in lines])
        frames = innermost(table, pid, tid, ts_ns)
        return [lines[table.name_id[row]] if row >= 0 else "" for row in frames.tolist()]

    def _only(self, wanted: list[bool]) -> Table:
        """The calls whose names are wanted."""
        return self.table.where(np.array(wanted, dtype=bool)[self.table.name_id]) if wanted else self.table


def _line_of(name: str, generated: bool) -> str:
    """`dir/file.py(12): call` as `file.py:12 call`; "" for a file of another kind."""
    match = _LINE.match(name)
    if not match or bool((GENERATED if generated else _FRAMEWORK).search(match[1])) != generated:
        return ""
    return f"{match[1].rpartition('/')[2]}:{match[2]} {match[3]}"


def layers_of(paths: list[tuple[str, ...]]) -> list[str]:
    """The layer in each module path (n,): its outermost instance beside others of its class, "" for none."""
    siblings: dict[tuple[tuple[str, ...], str], set[str]] = {}
    layer_of_path = dict.fromkeys(paths, "")
    for path in layer_of_path:
        for depth, name in enumerate(path):
            siblings.setdefault((path[:depth], class_of(name)), set()).add(name)
    for path in layer_of_path:
        names = (n for depth, n in enumerate(path) if len(siblings[path[:depth], class_of(n)]) > 1)
        layer_of_path[path] = next(names, "")
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
