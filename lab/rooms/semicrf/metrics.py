"""Metrics of phoneme segmentation, numpy only.

A segment is (start, end_exclusive, label); frames are 0-based.

- PER: summed Levenshtein distance of label sequences, equal neighbours merged, over the reference's length.
- Boundaries: starts of all segments but the first, matched one to one in order within a tolerance of frames.
- Segments: correct when start, end and label all agree.
- Durations: per phone, and as distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

Segment = tuple[int, int, int]
Split = Sequence[Sequence[Segment]]
"""The segments of each utterance."""
TOLERANCES = (0, 1, 2)


def score(reference: Split, predicted: Split, names: Sequence[str], max_duration: int) -> dict[str, Any]:
    """All metrics of a test set; `names` are the labels' names."""
    pairs = list(zip(reference, predicted, strict=True))
    phones = [(collapsed(ref), collapsed(got)) for ref, got in pairs]
    length = sum(len(ref) for ref, _ in phones)
    starts = [([s[0] for s in ref[1:]], [s[0] for s in got[1:]]) for ref, got in pairs]
    bounds = [
        _precision_recall_f1(starts, [matched(*pair, tolerance) for pair in starts])
        for tolerance in TOLERANCES
    ]
    same = [len(set(map(tuple, ref)) & set(map(tuple, got))) for ref, got in pairs]
    return {
        "phone_error_rate": sum(edit_distance(*pair) for pair in phones) / length if length else 0.0,
        **_named("boundary", bounds[0]),
        "boundary_f1_tolerances": {str(TOLERANCES[i]): bound[2] for i, bound in enumerate(bounds)},
        **_named("segment", _precision_recall_f1(pairs, same)),
        "duration_stats": duration_stats(reference, predicted, names),
        "duration_kl": duration_kl(reference, predicted, max_duration),
    }


def _named(kind: str, ratios: tuple[float, float, float]) -> dict[str, float]:
    return {f"{kind}_{name}": x for name, x in zip(("precision", "recall", "f1"), ratios, strict=True)}


def edit_distance(reference: Sequence[int], predicted: Sequence[int]) -> int:
    """Levenshtein distance, one row of the table at a time: every edit costs 1."""
    target = np.asarray(predicted)
    row = offsets = np.arange(len(target) + 1)
    for deletions, label in enumerate(reference, start=1):
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (target != label))
        best[0] = deletions
        # Insertions run along the row: the least over earlier cells plus their distance.
        row = np.minimum.accumulate(best - offsets) + offsets
    return int(row[-1])


def collapsed(segments: Sequence[Segment]) -> list[int]:
    """Labels in order, equal neighbours merged."""
    return [label for label, _ in groupby(label for _, _, label in segments)]


def merged(segments: Sequence[Segment]) -> list[Segment]:
    """Equal neighbours as one segment, so that a split over-long run counts once."""
    runs = (list(run) for _, run in groupby(segments, key=lambda segment: segment[2]))
    return [(run[0][0], run[-1][1], run[0][2]) for run in runs]


def matched(reference: Sequence[int], predicted: Sequence[int], tolerance: int) -> int:
    """How many boundaries of two rising lists pair one to one within `tolerance` frames: the maximum."""
    left = right = count = 0
    while left < len(reference) and right < len(predicted):
        gap = predicted[right] - reference[left]
        if abs(gap) <= tolerance:
            count, left, right = count + 1, left + 1, right + 1
        elif gap < 0:
            right += 1
        else:
            left += 1
    return count


def duration_stats(reference: Split, predicted: Split, names: Sequence[str]) -> dict[str, Any]:
    """Mean and deviation of durations per phone; `mae` is null where a phone is missing on either side."""
    durations = [_durations(reference), _durations(predicted)]
    per_phone = {}
    for label, name in enumerate(names):
        ref, got = (np.array([k for k, c in split if c == label], dtype=float) for split in durations)
        if len(ref) or len(got):
            gap = abs(float(got.mean()) - float(ref.mean())) if len(ref) and len(got) else None
            per_phone[name] = {**_moments("pred", got), **_moments("ref", ref), "mae": gap}
    compared = [phone for phone in per_phone.values() if phone["mae"] is not None]
    means = np.array([(phone["ref_mean"], phone["pred_mean"]) for phone in compared]).reshape(-1, 2)
    varied = len(means) > 1 and bool((means.std(axis=0) > 0).all())
    overall = {
        "mean_absolute_error": float(np.mean([phone["mae"] for phone in compared])) if compared else None,
        "duration_correlation": float(np.corrcoef(means.T)[0, 1]) if varied else None,
    }
    return {"per_phone": per_phone, "overall": overall}


def duration_kl(reference: Split, predicted: Split, max_duration: int) -> float:
    """KL divergence, nats, of the predicted from the reference distribution of durations over all phones.

    Bins are 1..max_duration and longer; half a count in each bin keeps an empty one from being infinite.
    """

    def histogram(split: Split) -> np.ndarray:
        durations = np.array([k for k, _ in _durations(split)], dtype=int)
        counts = np.bincount(np.minimum(durations, max_duration + 1), minlength=max_duration + 2)[1:] + 0.5
        shares: np.ndarray = counts / counts.sum()
        return shares

    ref, got = histogram(reference), histogram(predicted)
    return float(np.sum(ref * np.log(ref / got)))


def segments_of(labels: Sequence[int] | np.ndarray) -> list[Segment]:
    """Maximal runs of equal labels."""
    return merged([(t, t + 1, int(label)) for t, label in enumerate(labels)])


def _precision_recall_f1(
    pairs: Sequence[tuple[Any, Any]], right: Sequence[int]
) -> tuple[float, float, float]:
    """Of (reference, predicted) lists, and how many entries of each pair are the same."""
    hits, expected, predicted = sum(right), *(sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    precision = hits / predicted if predicted else 0.0
    recall = hits / expected if expected else 0.0
    return precision, recall, 2 * hits / (expected + predicted) if expected + predicted else 0.0


def _durations(split: Split) -> list[tuple[int, int]]:
    """(frames, label) of every segment."""
    return [(end - start, label) for segments in split for start, end, label in segments]


def _moments(prefix: str, values: np.ndarray) -> dict[str, Any]:
    moments = (float(values.mean()), float(values.std())) if len(values) else (None, None)
    return {f"{prefix}_mean": moments[0], f"{prefix}_std": moments[1], f"{prefix}_count": len(values)}
