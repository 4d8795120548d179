"""Ranges of the program projected onto the GPU's operations: which range launched which kernel.

Method: an operation belongs to the API call with its (process, correlation id), and the call to the ranges
around it on its own thread (`same`). PyTorch launches the backward pass from a thread of its own, which no
range of the program reaches: where no phase (`forward`, `backward`, ...) or step lies around a call on its
own thread, the call inherits the phase that exactly one other thread of the process had open at that time
(`cross`), because that thread waits for it. If several threads were in a phase, the operation is counted as
`ambiguous` and inherits none. `attribution="nsys"` is the rule of Nsight Systems' own reports: the same
thread alone.

Limits: an operation whose API call was not recorded stays `unattributed`. An operation counts where it was
launched, however late it ran; which range *needed* its result is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.core.words import plural
from lab.errors import MissingError
from lab.recordings.calls import in_graph, launch_calls, pair_keys, replays_graphs
from lab.recordings.capture import GRAPH, OP, Capture, Strings
from lab.recordings.graphs import load_sources
from lab.recordings.graphs.join import executed_batches
from lab.recordings.graphs.origins import RULE, Origins, origins_of
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import PHASES, STEPS, WARMUPS, PhaseNames
from lab.recordings.processes import process_label, single_processes, with_processes
from lab.recordings.projection.result import (
    AMBIGUOUS,
    RULES,
    Offer,
    Projection,
    offers,
    phases_of_other_threads,
)
from lab.recordings.projection.select import Wanted, first_ns, select
from lab.recordings.projection.sums import (
    Paths,
    RangeForest,
    forward_origins,
    instance_sums,
    loose_pairs,
    path_tree,
)
from lab.recordings.tables import Table
from lab.stats.columns import per_distinct

__all__ = [
    "AMBIGUOUS",
    "PHASES",
    "RULES",
    "STEPS",
    "WARMUPS",
    "Offer",
    "PhaseNames",
    "Projection",
    "Wanted",
    "first_ns",
    "offers",
    "project",
    "select",
]


def project_part(
    capture: Capture,
    attribution: str,
    phases: re.Pattern[str],
    wanted: Wanted,
    *,
    pid: str | None = None,
    together: bool = False,
    graph_captures: Sequence[Path] | None = None,
) -> list[tuple[int, Projection]]:
    """-> (index of the process in the capture, its projection) for each process, or for the one with `pid`.

    together: all processes in one projection, unless pid is set. graph_captures: recordings that name the
    operators of graph replays; None leaves replays as they were recorded, as the reports of nsys do.
    Raises MissingError where the capture has no such process, range or step, or nothing in the window.
    """
    singles = {0: capture} if together and not pid else single_processes(capture)
    if pid:
        singles = {index: single for index, single in singles.items() if str(single.processes[0].pid) == pid}
    if not singles:
        pids = [str(process.pid) for process in capture.processes if process.pid is not None]
        raise MissingError(
            f"no process {str(pid)[:20]}; the recording has {(', '.join(pids) or 'none')[:300]}",
            location=capture.source,
        )
    projections: list[tuple[int, Projection]] = []
    origins = None
    errors: list[MissingError] = []
    left_out: list[str] = []
    for index, single in singles.items():
        try:
            if graph_captures is not None:
                single, origins = with_origins(single, graph_captures)
            projection = project(single, attribution, phases, origins)
            projections.append((index, select(projection, wanted, phases)))
        except MissingError as error:
            errors.append(error)
            left_out.append(f"{process_label(single.processes[0], index)} is left out: {error.problem}")
    if not projections:
        raise errors[0]
    index, projection = projections[0]
    return [(index, replace(projection, problems=[*projection.problems, *left_out])), *projections[1:]]


def with_origins(capture: Capture, graph_captures: Sequence[Path] = ()) -> tuple[Capture, Origins | None]:
    """-> the capture of one process, judged by the recordings of its graphs' captures, and where replayed
    nodes come from: None where no graph was replayed and no such recording is given."""
    if not graph_captures and not replays_graphs(capture):
        return capture, None
    sources, notes = load_sources(graph_captures, executed_batches(capture)) if graph_captures else ([], [])
    origins = origins_of(capture, sources)
    lacks = (*(lack for lack in capture.lacks if lack.rule != RULE), *origins.lacks)
    return replace(capture, problems=[*capture.problems, *notes], lacks=lacks), origins


def project(
    capture: Capture,
    attribution: str = "full",
    phases: re.Pattern[str] = PHASES,
    origins: Origins | None = None,
) -> Projection:
    """Project a capture. attribution is `full` or `nsys`.

    phases: names (matched in full) of ranges whose operations on other threads inherit them.
    origins: where the operations of graph replays came from at capture; their paths go on with these ranges.
    An operator around a graph's launch owns none of its operations.

    Cost is that of sorting: n log n in ranges, calls and operations.
    """
    if attribution not in ("full", "nsys"):
        raise ValueError(f"attribution is full or nsys, not {attribution!r}")
    problems: list[str] = []
    capture = with_processes(capture)
    call = launch_calls(capture)
    _note_equal_ids(capture, call, problems)
    nest = RangeForest(capture)
    inner = nest.around(capture, call)
    replayed = in_graph(capture)
    is_op = capture.ranges.kind == OP
    # An operator around a graph's launch did not launch its kernels; the program's ranges around it did.
    inner[replayed] = nearest_ancestor(nest.parent, inner[replayed], ~is_op)
    inherited, ambiguous = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=bool)
    if attribution == "full":
        inherited, ambiguous = phases_of_other_threads(capture, nest, call, inner, phases)
    loose_op, loose_range = loose_pairs(capture, nest.loose, call, attribution)
    sums = instance_sums(capture, nest, inner, inherited, loose_op, loose_range)
    paths = Paths(capture, nest, sums["num_ops"] > 0)
    path = paths.of(inherited, inner)
    if origins is not None:
        capture, path = _with_origins(capture, paths, path, origins)
        problems += origins.problems
    _note_problems(nest, ambiguous, problems)
    columns = {"api": call, "range": inner, "inherited": inherited, "path": path}
    columns["rule"] = _rules(capture, call, inner, inherited, ambiguous, replayed)
    columns["origin"] = forward_origins(capture, nest, paths, inner)
    return Projection(
        capture=capture,
        attribution=attribution,
        ops=Table(columns),
        tree=path_tree(capture, paths.parent, paths.name, path),
        instances=Table({"parent": nest.parent, "level": nest.level, "path": paths.of_range, **sums}),
        loose=Table({"op": loose_op, "range": loose_range}),
        nest=nest,
        problems=problems,
        origins=origins,
    )


def _with_origins(
    capture: Capture, paths: Paths, path: np.ndarray, origins: Origins
) -> tuple[Capture, np.ndarray]:
    """The capture with the names at capture among its strings, and the paths (n,) with them at their ends."""
    words = Strings(capture.strings)
    names = [tuple(map(words.id, path)) for path in origins.paths]
    pairs = np.stack([path, origins.path], axis=1)
    longer = per_distinct(pairs, lambda pair: paths.below(pair[0], names[pair[1]]))
    return replace(capture, strings=words.texts), longer


def _rules(
    capture: Capture,
    call: np.ndarray,
    inner: np.ndarray,
    inherited: np.ndarray,
    ambiguous: np.ndarray,
    replayed: np.ndarray,
) -> np.ndarray:
    replayed = replayed | (capture.ops.kind == GRAPH)
    attributed = (inner >= 0) | (inherited >= 0)
    # The first case that fits counts: what is not known comes before what is.
    cases = [call < 0, ambiguous, replayed & attributed, inherited >= 0, inner >= 0]
    names = ("unattributed", "ambiguous", "graph", "cross", "same")
    rules: np.ndarray = np.select(cases, [RULES.index(name) for name in names], RULES.index("outside"))
    return rules.astype(np.int8)


def _note_equal_ids(capture: Capture, call: np.ndarray, problems: list[str]) -> None:
    (keys,) = pair_keys((capture.api.process, capture.api.corr))
    again = np.ones(len(keys), dtype=bool)
    again[np.unique(keys, return_index=True)[1]] = False
    if count := int(np.isin(keys[call[call >= 0]], keys[again]).sum()):
        problems.append(
            f"{plural(count, 'operation')} with several API calls of the same correlation id: "
            "the first call was taken"
        )


def _note_problems(nest: RangeForest, ambiguous: np.ndarray, problems: list[str]) -> None:
    if nest.crossing:
        problems.append(
            f"{plural(nest.crossing, 'range')} only partly inside another one: counted, but in no path"
        )
    if ambiguous.any():
        problems.append(
            f"{plural(int(ambiguous.sum()), 'operation')} launched while several threads were in a phase: "
            "attributed to none of them"
        )
