"""Metrics of phoneme segmentation, numpy only.

A segment is (start, end_exclusive, label); frames are 0-based.

- PER: summed Levenshtein distance of label sequences, equal neighbours merged, over the reference's length.
- Boundaries: starts of all segments but the first, matched one to one in order within a tolerance of frames.
- Segments: correct when start, end and label all agree.
- Durations: per phone, and as distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Segment = tuple[int, int, int]
TOLERANCES = (0, 1, 2)


def score(
    reference: Sequence[Sequence[Segment]],
    predicted: Sequence[Sequence[Segment]],
    names: Sequence[str],
    max_duration: int,
) -> dict[str, Any]:
    """All metrics of a test set, from one list of segments per utterance; `names` are the labels' names."""
    pairs = list(zip(reference, predicted, strict=True))
    edits = sum(edit_distance(collapsed(ref), collapsed(got)) for ref, got in pairs)
    length = sum(len(collapsed(ref)) for ref in reference)
    bounds = {
        tolerance: _precision_recall_f1(*_boundary_counts(pairs, tolerance)) for tolerance in TOLERANCES
    }
    precision, recall, f1 = bounds[0]
    segment = _precision_recall_f1(*_segment_counts(pairs))
    return {
        "phone_error_rate": edits / length if length else 0.0,
        "boundary_precision": precision,
        "boundary_recall": recall,
        "boundary_f1": f1,
        "boundary_f1_tolerances": {str(tolerance): bound[2] for tolerance, bound in bounds.items()},
        "segment_precision": segment[0],
        "segment_recall": segment[1],
        "segment_f1": segment[2],
        "duration_stats": duration_stats(reference, predicted, names),
        "duration_kl": duration_kl(reference, predicted, max_duration),
    }


def edit_distance(reference: Sequence[int], predicted: Sequence[int]) -> int:
    """Levenshtein distance, one row of the table at a time: every edit costs 1."""
    target = np.asarray(predicted)
    row = np.arange(len(target) + 1)
    offsets = np.arange(len(target) + 1)
    for deletions, label in enumerate(reference, start=1):
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (target != label))
        best[0] = deletions
        # Insertions run along the row: the least over earlier cells plus their distance.
        row = np.minimum.accumulate(best - offsets) + offsets
    return int(row[-1])


def collapsed(segments: Sequence[Segment]) -> list[int]:
    """Labels in order, equal neighbours merged."""
    labels = [label for _, _, label in segments]
    return [c for i, c in enumerate(labels) if i == 0 or labels[i - 1] != c]


def merged(segments: Sequence[Segment]) -> list[Segment]:
    """Equal neighbours as one segment, so that a split over-long run counts once."""
    joined: list[Segment] = []
    for start, end, label in segments:
        if joined and joined[-1][2] == label and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end, label)
        else:
            joined.append((start, end, label))
    return joined


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


def duration_stats(
    reference: Sequence[Sequence[Segment]], predicted: Sequence[Sequence[Segment]], names: Sequence[str]
) -> dict[str, Any]:
    """Mean and deviation of durations per phone; `mae` is null where a phone is missing on either side."""
    ref, got = _durations(reference, len(names)), _durations(predicted, len(names))
    per_phone, means = {}, []
    for label, name in enumerate(names):
        comparable = len(ref[label]) > 0 and len(got[label]) > 0
        if not len(ref[label]) and not len(got[label]):
            continue
        if comparable:
            means.append((float(np.mean(ref[label])), float(np.mean(got[label]))))
        per_phone[name] = {
            **_moments("pred", got[label]),
            **_moments("ref", ref[label]),
            "mae": abs(means[-1][1] - means[-1][0]) if comparable else None,
        }
    pairs = np.array(means) if means else np.zeros((0, 2))
    varied = len(pairs) > 1 and bool((pairs.std(axis=0) > 0).all())
    return {
        "per_phone": per_phone,
        "overall": {
            "mean_absolute_error": float(np.abs(pairs[:, 0] - pairs[:, 1]).mean()) if len(pairs) else None,
            "duration_correlation": float(np.corrcoef(pairs.T)[0, 1]) if varied else None,
        },
    }


def duration_kl(
    reference: Sequence[Sequence[Segment]], predicted: Sequence[Sequence[Segment]], max_duration: int
) -> float:
    """KL divergence, nats, of the predicted from the reference distribution of durations over all phones.

    Bins are 1..max_duration and longer; half a count in each bin keeps an empty one from being infinite.
    """
    histograms = []
    for utterances in (reference, predicted):
        durations = np.array(
            [end - start for segments in utterances for start, end, _ in segments], dtype=int
        )
        counts = np.bincount(np.minimum(durations, max_duration + 1), minlength=max_duration + 2)[1:] + 0.5
        histograms.append(counts / counts.sum())
    ref, got = histograms
    return float(np.sum(ref * np.log(ref / got)))


def segments_of(labels: Sequence[int] | np.ndarray) -> list[Segment]:
    """Maximal runs of equal labels."""
    values = np.asarray(labels)
    if not len(values):
        return []
    starts = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()]
    return [
        (start, end, int(values[start]))
        for start, end in zip(starts, [*starts[1:], len(values)], strict=True)
    ]


def _boundary_counts(
    pairs: Sequence[tuple[Sequence[Segment], Sequence[Segment]]], tolerance: int
) -> tuple[int, int, int]:
    right = expected = predicted = 0
    for ref, got in pairs:
        wanted, boundaries = [s[0] for s in ref[1:]], [s[0] for s in got[1:]]
        right += matched(wanted, boundaries, tolerance)
        expected, predicted = expected + len(wanted), predicted + len(boundaries)
    return right, expected, predicted


def _segment_counts(pairs: Sequence[tuple[Sequence[Segment], Sequence[Segment]]]) -> tuple[int, int, int]:
    right = sum(len(set(map(tuple, ref)) & set(map(tuple, got))) for ref, got in pairs)
    return right, sum(len(ref) for ref, _ in pairs), sum(len(got) for _, got in pairs)


def _precision_recall_f1(right: int, expected: int, predicted: int) -> tuple[float, float, float]:
    precision = right / predicted if predicted else 0.0
    recall = right / expected if expected else 0.0
    return precision, recall, 2 * right / (expected + predicted) if expected + predicted else 0.0


def _durations(utterances: Sequence[Sequence[Segment]], classes: int) -> list[np.ndarray]:
    durations: list[list[int]] = [[] for _ in range(classes)]
    for segments in utterances:
        for start, end, label in segments:
            durations[label].append(end - start)
    return [np.array(values, dtype=float) for values in durations]


def _moments(prefix: str, values: np.ndarray) -> dict[str, Any]:
    any_values = len(values) > 0
    return {
        f"{prefix}_mean": float(values.mean()) if any_values else None,
        f"{prefix}_std": float(values.std()) if any_values else None,
        f"{prefix}_count": len(values),
    }
