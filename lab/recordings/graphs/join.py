"""Find the operator of each replayed kernel, from its recording and those beside it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np

from lab.recordings.calls import GRAPH_LAUNCH, Replays, call_kinds, in_graph, replays_of
from lab.recordings.capture import Capture
from lab.recordings.graphs.fit import Fit, Pattern, fit, products_agree
from lab.recordings.graphs.rows import NONE, RULES, RowMaker, Rows, no_rows
from lab.recordings.graphs.sequences import (
    CAPTURED,
    GEOMETRY,
    Sequence,
    Words,
    captured,
    eager,
    with_inferred_names,
    words_of_rows,
)
from lab.recordings.graphs.sources import Source
from lab.stats.intervals import holding

_EXECUTED = re.compile(r"execute_(\d{1,9})_context")


def executed_batches(capture: Capture) -> list[int | None]:
    """The batch size of each graph launch (`execute_32_context_...`), each once; None if unknown."""
    call = np.flatnonzero(call_kinds(capture) == GRAPH_LAUNCH)
    return sorted(set(batches_of(capture, call)), key=lambda batch: -1 if batch is None else batch)


def batches_of(capture: Capture, call: np.ndarray) -> list[int | None]:
    """The batch of each graph launch (r,): of the `execute_<n>_context` range around it, None without one."""

    def size_in(text: str) -> int:
        match = _EXECUTED.match(text)
        return int(match[1]) if match else -1

    ranges = capture.ranges.with_columns(size=capture.by_text(size_in, capture.ranges.name_id, -1))
    ranges = ranges.where(ranges.size >= 0)
    ranges = ranges.take(np.argsort(ranges.start_ns, kind="stable"))  # not nested in each other
    at_ns = np.append(capture.api.start_ns, np.iinfo(np.int64).min)[call]
    sizes = np.append(ranges.size, -1)[holding(ranges.start_ns, ranges.end_ns + 1, at_ns)]
    return [size if size >= 0 else None for size in sizes.tolist()]


# Hundreds of captures that fit equally say the same as the first of them.
MAX_TIES = 256


class Choice:
    """The captured graphs and eager forwards of all sources, and what was found out about them."""

    def __init__(
        self, sources: tuple[Source, ...], words: Words, graphs: list[Sequence], maker: RowMaker
    ) -> None:
        self.sources, self.words, self.graphs, self.maker = sources, words, graphs, maker
        self.accepted: set[int] = set()
        self.reasons: dict[int, list[tuple[str, str]]] = defaultdict(list)
        self._tried: dict[tuple[tuple[bytes, ...], int, str, int], Fit | str] = {}
        self._by_batch: dict[int, list[Sequence]] = {}

    def _try(self, pattern: Pattern, sequence: Sequence) -> Fit | str:
        key = (pattern.key, sequence.source, sequence.origin, sequence.number)
        if key not in self._tried:
            result = fit(pattern, sequence, self.words)
            # Any graph of this size fits by count, so matrix products must own kernels that multiply.
            if isinstance(result, Fit) and result.by == "count":
                names = self.maker.op_names(sequence, sequence.op)
                if not products_agree(pattern, result, names, self.words):
                    result = "the number of launches agrees, but matrix products would own other kernels"
            self._tried[key] = result
            if isinstance(result, str):
                self.reasons[sequence.source].append((sequence.origin, result))
            else:
                self.accepted.add(sequence.source)
        return self._tried[key]

    def best(self, pattern: Pattern, sequences: Many[Sequence]) -> list[Fit]:
        """The fits that cannot be told apart, of the best rank."""
        tried = (self._try(pattern, sequence) for sequence in sequences)
        fits = [result for result in tried if isinstance(result, Fit)]
        best = min((match.rank for match in fits), default=None)
        ties = [match for match in fits if match.rank == best]
        # A capture with modules also tells the layer, so it goes first.
        return sorted(ties, key=lambda match: not any(match.sequence.modules))[:MAX_TIES]

    def of_batch(self, batch: int | None) -> list[Sequence]:
        """Captured graphs that a server may replay for a batch: of the smallest size that is large enough."""
        if batch is None:
            return self.graphs
        if batch in self._by_batch:
            return self._by_batch[batch]
        # Servers pad a batch up to the next captured size; a smaller capture cannot hold it.
        large = [graph.batch for graph in self.graphs if graph.batch is not None and graph.batch >= batch]
        for graph in self.graphs:
            if graph.batch is not None and graph.batch < batch:
                reason = f"captured for batch {graph.batch}, {batch} were executed"
                self.reasons[graph.source].append((CAPTURED, reason))
        smallest = min(large, default=None)
        graphs = [graph for graph in self.graphs if graph.batch is None or graph.batch == smallest]
        self._by_batch[batch] = graphs
        return graphs

    def refused(self, num_replays: int) -> list[str]:
        """Why each given capture was not used that no replay fits; a folder with one that fits served."""
        problems = []
        served = {self.sources[index].folder for index in self.accepted} - {None}
        for index, source in enumerate(self.sources):
            if index == 0 or index in self.accepted or source.folder in served:
                continue
            if not num_replays:
                reason = "the recording has no graph replays"
            elif reasons := self.reasons.get(index):
                of_graphs = [text for origin, text in reasons if origin == CAPTURED]
                texts = of_graphs or [text for _, text in reasons]
                reason = max(dict.fromkeys(texts), key=texts.count)
            else:
                reason = "it holds neither a captured graph nor eager launches"
            problems.append(f"capture {source.path.name} is not of these replays and was not used: {reason}")
        return problems


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
    """Match every replay in `source` with the captures and eager runs in it and `beside`. Reads no file."""
    capture = source.capture
    inside = in_graph(capture)
    replays = replays_of(capture, inside)
    sources, words = (source, *beside), Words()
    patterns = _patterns(source, replays, words)
    graphs, forwards, problems = _sequences(sources, words, max(map(len, patterns), default=0))
    maker = RowMaker(sources, words, forwards)
    choice = Choice(sources, words, graphs, maker)
    batches = batches_of(capture, replays.call)
    rows, fits = no_rows(len(capture.ops)), list[Fit | None]()
    # Servers replay one graph thousands of times: equal replays are fitted once.
    cache: dict[object, tuple[Rows, Fit | None]] = {}
    for index, pattern in enumerate(patterns):
        key = (pattern.key, batches[index])
        if key not in cache:
            cache[key] = _attributed(pattern, choice, maker, choice.of_batch(batches[index]))
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
    geometry = np.stack([getattr(ops, name) for name in GEOMETRY], axis=1)
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
