"""Write timelines for Perfetto and Chrome: all ranks of a step on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.words import ranks_text
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.merge import merge_captures, read_ranks

LEFT_OUT, LACKS, ABSENT = "left out:", "missing from the recording", "no recording of"
MISSING = (LEFT_OUT, LACKS, ABSENT)  # prefixes of notes that make an export incomplete


def write_perfetto(paths: Sequence[Path], target: Path) -> list[str]:
    """All ranks of these recordings, of any profiler, in one gzipped JSON; returns what is not in it.

    Raises what the reader raises for a single recording, BadDataError where none of several can be read.
    """
    ranks = read_ranks([(None, path) for path in paths])
    merge_captures(ranks.traces, target, offsets_ns=ranks.offsets_ns, absent=ranks.absent)
    notes = [f"{LEFT_OUT} {text}" for text in ranks.left_out] + [*ranks.unnamed, *ranks.odd]
    notes += [f"{LACKS} {text}" for text in ranks.torn]
    if ranks.absent:
        notes.append(f"{ABSENT} {ranks_text(ranks.absent, limit=16)}")
    return list(dict.fromkeys(notes))


def notes_of(path: Path, recording: Capture) -> list[str]:
    """Sentences on what its reader met in a recording, and on what is missing from it."""
    missing = sentences(holes(recording.lacks))
    return [f"{path.name}: {text}" for text in recording.problems] + [
        f"{LACKS} {path.name}: {text}" for text in missing
    ]
