"""Names of kernels that a CUDA capture does not record, from an eager run of the same operators."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from lab.recordings.graphs.sequences import Sequence
from lab.recordings.graphs.sources import Source


def with_inferred_names(
    graphs: list[Sequence], forwards: list[Sequence], sources: tuple[Source, ...]
) -> list[Sequence]:
    """CUDA names no kernel at capture: take the one that the same operator launched eagerly, if only one."""
    if not any((sequence.words < 0).any() for sequence in graphs):
        return graphs
    words_of_key: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for sequence in forwards:
        for key, word in zip(_places_in_ops(sequence, sources), sequence.words.tolist(), strict=True):
            words_of_key[key].add(word)
    named = []
    for sequence in graphs:
        keys = _places_in_ops(sequence, sources)
        words = sequence.words.copy()
        for row in np.flatnonzero(words < 0).tolist():
            names = words_of_key.get(keys[row], set())
            words[row] = next(iter(names)) if len(names) == 1 and keys[row] else -1
        named.append(replace(sequence, words=words))
    return named


def _places_in_ops(sequence: Sequence, sources: tuple[Source, ...]) -> list[tuple[str, ...]]:
    """(operator, its shapes, which of its launches) of each launch; () without an operator."""
    capture = sources[sequence.source].capture
    ranges, count = capture.ranges, defaultdict[int, int](int)
    keys: list[tuple[str, ...]] = []
    for row in sequence.op.tolist():
        if row < 0:
            keys.append(())
            continue
        texts = (capture.name(int(getattr(ranges, name)[row])) for name in ("name_id", "dims_id", "types_id"))
        keys.append((*texts, str(count[row])))
        count[row] += 1
    return keys
