"""Inductor's Triton kernels: what they fused, where in the model, in which compiled region.

A kernel is (name, hash of its file). `compiled_kernels.csv` has one row per kernel, with the rule that gave
its operators (`ops_rule`) and its line (`source_rule`), and whether it can be replayed (`replay`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.recordings.capture import Capture
from lab.recordings.compiled import (
    InductorKernel,
    Provenance,
    fused_ops,
    is_inductor,
    name_of_category,
    read_inductor,
    read_provenance,
)
from lab.recordings.graphs import Join, Source
from lab.recordings.kineto.capture import from_kineto
from lab.recordings.tables import Table, Trace
from lab.recordings.views.launches import innermost

if TYPE_CHECKING:
    from lab.rooms.kernels.catalogue.build import Catalogue

_COLUMNS = """
    kernel kernel_hash category count dur_sum_us time_share region graph fused_ops ops_rule
    source source_rule module block_sizes num_warps num_stages replay
"""
COLUMNS = tuple(_COLUMNS.split())
_REGION = re.compile(r"Torch-Compiled Region: .+")
_GRAPH = re.compile(r"## Call CompiledFxGraph (\w+) ##")
# Where an execution trace observer, TORCH_COMPILE_DEBUG and a copied cache leave their files.
_BESIDE = re.compile(r".*_resources\Z|torch_compile_debug\Z|torchinductor(_\w+)?\Z")


@dataclass
class Compiled:
    """Columns (n,) with a row per launch, "" where it is not of Inductor or nothing is known.

    hashes: of the kernel's file; regions, graphs: around its op; lines: of the generated file.
    """

    hashes: np.ndarray
    regions: np.ndarray
    graphs: np.ndarray
    lines: np.ndarray
    kernels: dict[str, InductorKernel] = field(default_factory=dict)
    op_names: set[str] = field(default_factory=set)
    provenance: Provenance = field(default_factory=Provenance)


def read_compiled(
    trace: Trace, own: Source, owner: np.ndarray, joined: Join | None, folders: Sequence[Path]
) -> Compiled | None:
    """What is known of the Inductor kernels of one rank; None if it has none.

    owner (n,): row of `trace.ops`, for launches that no graph replayed; folders: of Inductor's own files.
    """
    if not any(map(is_inductor, trace.strings)):
        return None
    size = len(owner)
    source = np.where((owner >= 0) & (owner < len(trace.ops)), 0, -1)
    capture = own.capture
    row = np.where(source == 0, owner + len(capture.ranges) - len(trace.ops), -1)
    if joined is not None:
        source = np.where(joined.inside, np.where(joined.rows.op >= 0, joined.rows.source, -1), source)
        row = np.where(joined.inside, joined.rows.op, row)
    blank = [np.full(size, "", dtype=object) for _ in range(4)]
    found = Compiled(blank[0], blank[1], blank[2], blank[3])
    names = trace.text(trace.kernels.name_id)
    mine = np.array([is_inductor(name) for name in names], dtype=bool)
    for index, one in enumerate(joined.sources if joined is not None else (own,)):
        rows = np.flatnonzero(mine & (source == index) & (row >= 0))
        found.op_names |= {text.partition("::")[2] for text in one.capture.strings if "::" in text}
        if len(rows):
            _fill(found, one, rows, row[rows])
    found.op_names = {name for name in found.op_names if name.isidentifier()}
    beside = [path for path in sorted(trace.source.parent.iterdir()) if path.is_dir()]
    found.provenance = read_provenance([*folders, *(one for one in beside if _BESIDE.match(one.name))])
    return found


def own_capture(trace: Trace, joined: Join | None) -> Capture:
    return joined.sources[0].capture if joined is not None else from_kineto(trace)


def _fill(found: Compiled, source: Source, rows: np.ndarray, ranges: np.ndarray) -> None:
    """The columns of launches `rows` (m,), whose ops are `ranges` (m,) of the source."""
    kernels = read_inductor(source.path)
    ops = source.capture.ranges.take(ranges)
    described = [kernels.get(index) for index in ops.external_id.tolist()]
    found.hashes[rows] = [one.hash if one else "" for one in described]
    found.kernels |= {one.hash: one for one in described if one}
    at = (ops.pid, ops.tid, ops.start_ns)
    found.regions[rows] = _around(source.capture, _REGION, *at)
    found.graphs[rows] = _around(source.capture, _GRAPH, *at)
    if source.frames is not None:
        found.lines[rows] = source.frames.lines(*at, generated=True)


def _around(
    capture: Capture, pattern: re.Pattern[str], pid: np.ndarray, tid: np.ndarray, at_ns: np.ndarray
) -> list[str]:
    """What the innermost range with such a name calls itself, at each place (m,): its group, or all of it."""
    matches = [pattern.fullmatch(text) for text in capture.strings]
    wanted = np.array([*(match is not None for match in matches), False])
    ranges = capture.ranges.where(wanted[capture.ranges.name_id])
    table = Table(
        {
            "ts_ns": ranges.start_ns,
            "dur_ns": ranges.end_ns - ranges.start_ns,
            "pid": ranges.pid,
            "tid": ranges.tid,
        }
    )
    texts = ["".join(match.groups()) or match[0] if match else "" for match in matches]
    return [
        texts[ranges.name_id[row]] if row >= 0 else "" for row in innermost(table, pid, tid, at_ns).tolist()
    ]


def compiled_kernels(found: Catalogue) -> pd.DataFrame:
    """`compiled_kernels.csv`: one row per kernel of Inductor, most time first; empty if there are none."""
    total_us = sum(one.dur_us for one in found.launches) or 1.0
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    start = 0
    for index, rank in enumerate(found.ranks):
        for line in range(start, start + rank.num_launches):
            one = found.launches[line]
            if rank.compiled is not None and one.kind == "kernel" and is_inductor(one.name):
                groups.setdefault((one.name, one.kernel_hash), []).append((index, line))
        start += rank.num_launches
    modules = {(op.rank, op.op_id): op.module_path for op in found.ops}
    rows = [_row(found, key, members, modules, total_us) for key, members in groups.items()]
    rows.sort(key=lambda row: (-row["dur_sum_us"], row["kernel"]))
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(COLUMNS))
    return table


def _row(
    found: Catalogue,
    key: tuple[str, str],
    members: list[tuple[int, int]],
    modules: dict[tuple[int, int], str],
    total_us: float,
) -> dict[str, Any]:
    name, hash_ = key
    rank = found.ranks[members[0][0]]
    compiled = rank.compiled
    assert compiled is not None
    launches = [found.launches[line] for _, line in members]
    places = [(index, found.launches[line].row) for index, line in members]

    def seen(column: str) -> list[str]:
        texts = [str(getattr(found.ranks[index].compiled, column)[row]) for index, row in places]
        return [text for text, _ in Counter(filter(None, texts)).most_common()]

    origin = compiled.provenance.of(name, hash_)
    by_name = fused_ops(name, compiled.op_names)
    lines = origin.lines if origin else ()
    generated = seen("lines")
    kernel = compiled.kernels.get(hash_, InductorKernel(name))
    dur_us = sum(one.dur_us for one in launches)
    inside = [modules.get((one.rank, one.op_id), "") for one in launches]
    return {
        "kernel": name,
        "kernel_hash": hash_,
        "category": name_of_category(name),
        "count": len(launches),
        "dur_sum_us": dur_us,
        "time_share": dur_us / total_us,
        "region": _first(seen("regions")),
        "graph": _first(seen("graphs")),
        "fused_ops": " ".join(origin.ops if origin else by_name),
        "ops_rule": origin.rule if origin else "name" if by_name else "none",
        "source": "; ".join(lines) or _first(generated),
        "source_rule": origin.rule if origin and lines else "stack" if generated else "none",
        "module": _first([path for path, _ in Counter(filter(None, inside)).most_common()]),
        "block_sizes": kernel.kwargs,
        "num_warps": kernel.num_warps if kernel.num_warps >= 0 else None,
        "num_stages": kernel.num_stages if kernel.num_stages >= 0 else None,
        "replay": why_not(hash_, compiled.provenance) or "yes",
    }


def _first(texts: list[str]) -> str:
    """The most frequent text, and how many others there are."""
    more = f" (+{len(texts) - 1} more)" if len(texts) > 1 else ""
    return texts[0] + more if texts else ""


def why_not(hash_: str, provenance: Provenance) -> str:
    """Why `lab run kernels replay --inductor` cannot replay a kernel from its file; "" if it can."""
    if not hash_:
        return "no: the recording has no kernel_hash (record_shapes=True with torch 2.6 or newer has)"
    if hash_ not in provenance.sources:
        return f"no: its file {hash_}.py is not beside the trace (name its folder with --inductor)"
    return ""


def sentences(table: pd.DataFrame) -> list[str]:
    """One sentence on how much of Inductor's kernels is explained; none without such kernels."""
    if not len(table):
        return []
    share = table["time_share"].sum()
    rules = Counter(table["ops_rule"])
    unplaced = int((table["source_rule"] == "none").sum())
    known = ", ".join(f"{n} by {rule}" for rule, n in rules.most_common() if rule != "none")
    lost = f", {plural(rules['none'], 'kernel')} with no op known" if rules["none"] else ""
    where = (
        f"; no line of the model known for {plural(unplaced, 'kernel')} (TORCH_COMPILE_DEBUG=1 writes it: "
        "give that folder with --inductor)"
        if unplaced
        else ""
    )
    whole = plural(len(table), "Inductor kernel")
    return [f"{whole} ({share:.1%} of the time): fused ops {known or 'unknown'}{lost}{where}"]
