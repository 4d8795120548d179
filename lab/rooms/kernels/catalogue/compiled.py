"""Inductor's Triton kernels of one rank, and the files that explain them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.compiled import (
    InductorKernel,
    Provenance,
    is_inductor,
    read_inductor,
    read_provenance,
)
from lab.recordings.graphs import Join, Source

# Where an execution trace observer, TORCH_COMPILE_DEBUG and a copied cache leave their files.
_BESIDE = re.compile(r".*_resources\Z|torch_compile_debug\Z|torchinductor(_\w+)?\Z")


@dataclass
class Compiled:
    """Columns (n,) with a row per launch, "" where it is not of Inductor or nothing is known.

    hashes: of the kernel's file; lines: of the generated file.
    """

    hashes: np.ndarray
    lines: np.ndarray
    kernels: dict[str, InductorKernel] = field(default_factory=dict)
    op_names: set[str] = field(default_factory=set)
    provenance: Provenance = field(default_factory=Provenance)


def read_compiled(
    trace: Capture, own_source: Source, owner: np.ndarray, joined: Join | None, folders: Sequence[Path]
) -> Compiled | None:
    """What is known of the Inductor kernels of one rank; None if it has none.

    owner (n,): row of `trace.operators`, for launches that no graph replayed; folders: of Inductor's files.
    """
    if not any(map(is_inductor, trace.strings)):
        return None
    size = len(owner)
    source = np.where((owner >= 0) & (owner < len(trace.operators)), 0, -1)
    row = np.append(trace.operator_rows, -1)[np.where(source == 0, owner, -1)]
    if joined is not None:
        source = np.where(joined.inside, np.where(joined.rows.op >= 0, joined.rows.source, -1), source)
        row = np.where(joined.inside, joined.rows.op, row)
    compiled = Compiled(np.full(size, "", dtype=object), np.full(size, "", dtype=object))
    names = trace.text(trace.ops.name_id)
    of_inductor = np.array([is_inductor(name) for name in names], dtype=bool)
    for index, origin in enumerate(joined.sources if joined is not None else (own_source,)):
        rows = np.flatnonzero(of_inductor & (source == index) & (row >= 0))
        compiled.op_names |= {text.partition("::")[2] for text in origin.capture.strings if "::" in text}
        if len(rows):
            _fill(compiled, origin, rows, row[rows])
    compiled.op_names = {name for name in compiled.op_names if name.isidentifier()}
    beside = [path for path in sorted(trace.source.parent.iterdir()) if path.is_dir()]
    compiled.provenance = read_provenance(
        [*folders, *(origin for origin in beside if _BESIDE.match(origin.name))]
    )
    return compiled


def own_capture(trace: Capture, joined: Join | None) -> Capture:
    return joined.sources[0].capture if joined is not None else trace


def _fill(compiled: Compiled, source: Source, rows: np.ndarray, ranges: np.ndarray) -> None:
    """The columns of launches `rows` (m,), whose ops are `ranges` (m,) of the source."""
    kernels = read_inductor(source.path)
    ops = source.capture.ranges.take(ranges)
    described = [kernels.get(index) for index in ops.external_id.tolist()]
    compiled.hashes[rows] = [row.hash if row else "" for row in described]
    compiled.kernels |= {row.hash: row for row in described if row}
    if source.frames is not None:
        compiled.lines[rows] = source.frames.lines(ops.pid, ops.tid, ops.start_ns, generated=True)
