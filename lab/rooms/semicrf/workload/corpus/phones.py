"""The 39 phones, and .PHN files as segments of frames.

The folding of 61 phones to 39 is that of Lee and Hon (1989) as commonly used, with the glottal stop among the
silences.
"""

from __future__ import annotations

from pathlib import Path

from lab.errors import BadDataError
from lab.rooms.semicrf.workload.corpus.sound import HOP

_NAMES = (
    "aa ae ah aw ay b ch d dh dx eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh sil t th uh uw v w y z"
)
PHONES_39 = tuple(_NAMES.split())
_FOLDS = {
    "aa": "ao",
    "ah": "ax ax-h",
    "ih": "ix",
    "er": "axr",
    "uw": "ux",
    "l": "el",
    "m": "em",
    "n": "en nx",
    "ng": "eng",
    "hh": "hv",
    "sh": "zh",
    "sil": "bcl dcl gcl pcl tcl kcl q pau epi h#",
}
FOLDING = {
    **{phone: phone for phone in PHONES_39 if phone != "sil"},
    **{old: new for new, olds in _FOLDS.items() for old in olds.split()},
}


def read_phones(path: Path) -> list[tuple[int, int, int]]:
    """(start_sample, end_sample, label of 39) of a .PHN file. Raises BadDataError with the line's number."""
    segments: list[tuple[int, int, int]] = []
    for number, line in enumerate(path.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            start, end, phone = int(words[0]), int(words[1]), FOLDING[words[2].lower()]
        except (IndexError, ValueError, KeyError) as error:
            raise BadDataError(
                f"not a line `start end phone` of TIMIT: {line!r}", location=f"{path}:{number}"
            ) from error
        if end <= start or (segments and start < segments[-1][1]):
            raise BadDataError("segments overlap or end before they start", location=f"{path}:{number}")
        segments.append((start, end, PHONES_39.index(phone)))
    if not segments:
        raise BadDataError("no segment in this file", location=path)
    return segments


MOST_REST = 5
"""Frames after the last phone that belong to it; more are silence of their own."""


def frames_of(phones: list[tuple[int, int, int]], frames: int, path: Path) -> list[tuple[int, int, int]]:
    """Segments in frames that tile 0..frames: boundaries rounded to the hop, frames outside given to the
    ends, but for a longer rest, which is silence.

    A phone shorter than half a hop has no frame of its own and is left out; equal neighbours stay two
    segments.
    """
    if not frames:
        raise BadDataError("the sound is shorter than one window", location=path)
    if phones[-1][0] >= frames * HOP:
        raise BadDataError(
            f"its last phone starts at sample {phones[-1][0]}, and the sound has fewer than {frames * HOP}",
            location=path,
            fix="copy the sound again: it is cut off, or another sentence's",
        )
    if frames - round(phones[-1][1] / HOP) > MOST_REST:
        phones = [*phones, (phones[-1][1], frames * HOP, PHONES_39.index("sil"))]
    edges = [0, *(round(end / HOP) for _, end, _ in phones[:-1]), frames]
    edges = [min(edge, frames) for edge in edges]
    return [
        (start, end, label)
        for start, end, (_, _, label) in zip(edges[:-1], edges[1:], phones, strict=True)
        if end > start
    ]
