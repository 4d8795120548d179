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
            found = fit(pattern, sequence, self.words)
            if isinstance(found, Fit) and found.by == "count":
                names = self.maker.op_names(sequence, sequence.op)
                if not products_agree(pattern, found, names, self.words):
                    found = "the number of launches agrees, but matrix products would own other kernels"
            self._tried[key] = found
            if isinstance(found, str):
                self.reasons[sequence.source].append((sequence.origin, found))
            else:
                self.accepted.add(sequence.source)
        return self._tried[key]

    def best(self, pattern: Pattern, sequences: Many[Sequence]) -> list[Fit]:
        """The fits that cannot be told apart, of the best rank."""
        found = [one for one in (self._try(pattern, one) for one in sequences) if isinstance(one, Fit)]
        best = min((one.rank for one in found), default=None)
        ties = [one for one in found if one.rank == best]
        return sorted(ties, key=lambda one: not any(one.sequence.modules))[:MAX_TIES]

    def of_batch(self, batch: int | None) -> list[Sequence]:
        """Captured graphs that a server may replay for a batch: of the smallest size that is large enough."""
        if batch is None:
            return self.graphs
        if batch in self._by_batch:
            return self._by_batch[batch]
        large = [one.batch for one in self.graphs if one.batch is not None and one.batch >= batch]
        for one in self.graphs:
            if one.batch is not None and one.batch < batch:
                why = f"captured for batch {one.batch}, {batch} were executed"
                self.reasons[one.source].append((CAPTURED, why))
        smallest = min(large, default=None)
        found = [one for one in self.graphs if one.batch is None or one.batch == smallest]
        self._by_batch[batch] = found
        return found

    def pinned(
        self, replays: Replays, patterns: Many[Pattern], batches: list[int | None]
    ) -> dict[int, tuple[int, int]]:
        """Replay -> (source, window) where a step replays all windows of a capture, one after the other."""
        groups: dict[object, list[int]] = defaultdict(list)
        for index, where in enumerate(steps_of(self.sources[0].capture, replays.call)):
            groups[where].append(index)
        found: dict[int, tuple[int, int]] = {}
        by_source: dict[tuple[int, int | None], list[Sequence]] = defaultdict(list)
        for one in self.graphs:
            by_source[one.source, one.batch].append(one)
        for members in groups.values():
            allowed = {id(one) for one in self.of_batch(batches[members[0]])}
            for windows in by_source.values():
                if len(windows) < 2 or len(windows) != len(members) or id(windows[0]) not in allowed:
                    continue
                tried = [self._try(patterns[index], one) for index, one in zip(members, windows, strict=True)]
                if all(isinstance(one, Fit) for one in tried):
                    for index, one in zip(members, windows, strict=True):
                        found[index] = (one.source, one.number)
        return found

    def refused(self, num_replays: int) -> list[str]:
        """Why each given capture was not used that no replay fits; a folder with one that fits served."""
        found = []
        served = {self.sources[index].folder for index in self.accepted} - {None}
        for index, source in enumerate(self.sources):
            if index == 0 or index in self.accepted or source.folder in served:
                continue
            if not num_replays:
                why = "the recording has no graph replays"
            elif reasons := self.reasons.get(index):
                of_graphs = [text for origin, text in reasons if origin == CAPTURED]
                texts = of_graphs or [text for _, text in reasons]
                why = max(dict.fromkeys(texts), key=texts.count)
            else:
                why = "it holds neither a captured graph nor eager launches"
            found.append(f"capture {source.path.name} is not of these replays and was not used: {why}")
        return found
