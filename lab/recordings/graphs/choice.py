"""Which captured graphs a replay may be of: by batch, by step, and by what fits best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Many

from lab.recordings.graphs.batches import steps_of
from lab.recordings.graphs.fit import Fit, Pattern, fit, products_agree
from lab.recordings.graphs.replays import Replays, Words
from lab.recordings.graphs.rows import RowMaker
from lab.recordings.graphs.sequences import CAPTURED, Sequence
from lab.recordings.graphs.sources import Source

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
        fits = [
            candidate
            for candidate in (self._try(pattern, candidate) for candidate in sequences)
            if isinstance(candidate, Fit)
        ]
        best = min((candidate.rank for candidate in fits), default=None)
        ties = [candidate for candidate in fits if candidate.rank == best]
        # A capture with modules also tells the layer, so it goes first.
        return sorted(ties, key=lambda candidate: not any(candidate.sequence.modules))[:MAX_TIES]

    def of_batch(self, batch: int | None) -> list[Sequence]:
        """Captured graphs that a server may replay for a batch: of the smallest size that is large enough."""
        if batch is None:
            return self.graphs
        if batch in self._by_batch:
            return self._by_batch[batch]
        large = [graph.batch for graph in self.graphs if graph.batch is not None and graph.batch >= batch]
        for graph in self.graphs:
            if graph.batch is not None and graph.batch < batch:
                reason = f"captured for batch {graph.batch}, {batch} were executed"
                self.reasons[graph.source].append((CAPTURED, reason))
        smallest = min(large, default=None)
        graphs = [graph for graph in self.graphs if graph.batch is None or graph.batch == smallest]
        self._by_batch[batch] = graphs
        return graphs

    def pinned(
        self, replays: Replays, patterns: Many[Pattern], batches: list[int | None]
    ) -> dict[int, tuple[int, int]]:
        """Replay -> (source, window) where a step replays all windows of a capture, one after the other."""
        groups: dict[object, list[int]] = defaultdict(list)
        for index, step in enumerate(steps_of(self.sources[0].capture, replays.call)):
            groups[step].append(index)
        windows_of_replays: dict[int, tuple[int, int]] = {}
        by_source: dict[tuple[int, int | None], list[Sequence]] = defaultdict(list)
        for graph in self.graphs:
            by_source[graph.source, graph.batch].append(graph)
        for members in groups.values():
            allowed = {id(graph) for graph in self.of_batch(batches[members[0]])}
            for windows in by_source.values():
                if len(windows) < 2 or len(windows) != len(members) or id(windows[0]) not in allowed:
                    continue
                tried = [
                    self._try(patterns[index], graph) for index, graph in zip(members, windows, strict=True)
                ]
                if all(isinstance(graph, Fit) for graph in tried):
                    for index, graph in zip(members, windows, strict=True):
                        windows_of_replays[index] = (graph.source, graph.number)
        return windows_of_replays

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
