"""Build the projection of a capture from its tables."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from lab.core.words import plural
from lab.recordings.calls import in_graph, launch_calls, pair_keys
from lab.recordings.capture import GRAPH, OP, Capture, Strings
from lab.recordings.graphs.origins import Origins
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import PHASES
from lab.recordings.processes import with_processes
from lab.recordings.projection.nest import RangeForest
from lab.recordings.projection.result import RULES, Projection
from lab.recordings.projection.sums import Paths, forward_origins, instance_sums, loose_pairs, path_tree
from lab.recordings.projection.threads import phases_of_other_threads
from lab.recordings.tables import Table


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
    used, pair_index = np.unique(pairs, axis=0, return_inverse=True)
    longer = [paths.below(front, names[back]) for front, back in used.tolist()]
    paths_of_ops = np.array(longer, dtype=np.int64)[pair_index.ravel()] if len(used) else path
    return replace(capture, strings=words.texts), paths_of_ops


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
