"""Find the operator of each replayed kernel, from its recording and those beside it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np

from lab.recordings.calls import in_graph, launch_calls
from lab.recordings.graphs.batches import batches_of
from lab.recordings.graphs.choice import Choice
from lab.recordings.graphs.fit import Fit, Pattern
from lab.recordings.graphs.replays import Replays, Words, replays_of, words_of_rows
from lab.recordings.graphs.rows import NONE, RULES, RowMaker, Rows, no_rows
from lab.recordings.graphs.sequences import Sequence, captured, eager, with_inferred_names
from lab.recordings.graphs.sources import Source

_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


@dataclass(frozen=True)
class Join:
    """The GPU rows of `sources[0]` that a graph replayed, with their operators.

    inside: mask (n,) of `ops`. rows: columns (n,); -1 and `none` outside graphs. fits: of each replay, None
    where nothing fits. problems: sentences, refused captures among them.
    """

    sources: tuple[Source, ...]
    inside: np.ndarray
    rows: Rows
    texts: list[str]
    replays: Replays
    fits: tuple[Fit | None, ...]
    patterns: tuple[Pattern, ...]
    problems: list[str] = field(default_factory=list)

    @property
    def unattributed(self) -> tuple[int, int]:
        """Number and ns of replayed rows without an operator."""
        lost = self.inside & (self.rows.rule == NONE)
        ops = self.sources[0].capture.ops
        return int(lost.sum()), int((ops.end_ns - ops.start_ns)[lost].sum())

    def counts(self) -> dict[str, tuple[int, int]]:
        """Rows in graphs and their ns, by rule; rules without a row are left out."""
        ops = self.sources[0].capture.ops
        dur_ns = ops.end_ns - ops.start_ns
        counts = {}
        for index, rule in enumerate(RULES):
            of_rule = self.inside & (self.rows.rule == index)
            if of_rule.any():
                counts[rule] = (int(of_rule.sum()), int(dur_ns[of_rule].sum()))
        return counts


def join(source: Source, beside: Many[Source] = ()) -> Join:
    """Match every replay in `own` with the captures and eager runs in `own` and `beside`. Reads no file."""
    capture = source.capture
    call, inside = launch_calls(capture), in_graph(capture)
    replays = replays_of(capture, call, inside)
    sources, words = (source, *beside), Words()
    patterns = _patterns(source, replays, words)
    graphs, forwards, problems = _sequences(sources, words, max(map(len, patterns), default=0))
    maker = RowMaker(sources, words, forwards)
    choice = Choice(sources, words, graphs, maker)
    batches = batches_of(capture, replays.call)
    pinned = choice.pinned(replays, patterns, batches)
    rows, fits = no_rows(len(capture.ops)), list[Fit | None]()
    # Servers replay one graph thousands of times: equal replays are fitted once.
    cache: dict[object, tuple[Rows, Fit | None]] = {}
    for index, pattern in enumerate(patterns):
        key = (pattern.key, batches[index], pinned.get(index))
        if key not in cache:
            allowed = choice.of_batch(batches[index])
            if index in pinned:
                allowed = [one for one in allowed if (one.source, one.number) == pinned[index]]
            cache[key] = _attributed(pattern, choice, maker, allowed)
        attributed, best = cache[key]
        fits.append(best)
        for name in Rows.__dataclass_fields__:
            getattr(rows, name)[replays.of(index)] = getattr(attributed, name)
    return Join(
        sources=sources,
        inside=inside,
        rows=rows,
        texts=list(maker.texts),
        replays=replays,
        fits=tuple(fits),
        patterns=patterns,
        problems=[*problems, *choice.refused(len(replays))],
    )


def _patterns(source: Source, replays: Replays, words: Words) -> tuple[Pattern, ...]:
    if not len(replays):
        return ()
    ops = source.capture.ops
    named = words_of_rows(source.capture, words)
    geometry = np.stack([getattr(ops, name) for name in _GEOMETRY], axis=1)
    # CUDA gives the graph's number in the upper half.
    node = np.where(ops.graph_node > 0, ops.graph_node & 0xFFFFFFFF, -1)
    rows_of_replays = [replays.of(index) for index in range(len(replays))]
    return tuple(
        Pattern(named[rows], ops.stream[rows], node[rows], geometry[rows]) for rows in rows_of_replays
    )


def _sequences(
    sources: tuple[Source, ...], words: Words, longest: int
) -> tuple[list[Sequence], list[Sequence], list[str]]:
    """Captured graphs and eager forwards of all sources, what was odd; none without replays."""
    graphs: list[Sequence] = []
    forwards: list[Sequence] = []
    problems: list[str] = []
    for index, source in enumerate(sources if longest else ()):
        captured_graphs, notes = captured(source.capture, index, words, source.frames, source.batch)
        graphs += captured_graphs
        problems += [f"{source.path.name}: {text}" for text in notes]
        forwards += eager(source.capture, index, words, source.frames, longest)
    return with_inferred_names(graphs, forwards, sources), forwards, problems


def _attributed(
    pattern: Pattern, choice: Choice, maker: RowMaker, allowed: Many[Sequence]
) -> tuple[Rows, Fit | None]:
    """The rows of a replay by the graphs that it may be of, else by an eager run, else by names alone."""
    ties = choice.best(pattern, allowed)
    with_modules = any(any(forward.modules) for forward in maker.forwards)
    forwards = choice.best(pattern, maker.forwards) if with_modules or not ties else []
    if not ties:
        ties, forwards = forwards, []
    if not ties:
        return maker.by_own_names(pattern), None
    rows = maker.agreed(pattern, ties)
    if forwards:
        rows = maker.with_modules(rows, maker.agreed(pattern, forwards))
    return rows, ties[0]
