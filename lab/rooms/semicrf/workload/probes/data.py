"""Probes of the input: every utterance, and the scores that the network gives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from lab.rooms.semicrf.workload.cases.case import Case
from lab.rooms.semicrf.workload.corpus.utterances import Corpus
from lab.rooms.semicrf.workload.probes.row import Row, row


def data_probes(corpus: Corpus, longest: int) -> Iterator[Row]:
    """Every utterance, before any model sees it."""
    wild, empty, labels, over = [], [], [], 0
    for split in ("train", "dev", "test"):
        for utterance in getattr(corpus, split):
            bad = ~np.isfinite(utterance.features)
            if bad.any():
                t, d = np.argwhere(bad)[0].tolist()
                wild.append(
                    f"{split} utterance {utterance.name}: "
                    f"frame {t}, feature {d} is {utterance.features[t, d]}"
                )
            if not len(utterance.features):
                empty.append(f"{split} utterance {utterance.name}")
            labels += [
                utterance.name for s, e, c in utterance.segments if not 0 <= c < len(corpus.phones) or e <= s
            ]
            over += sum(1 for s, e, _ in utterance.segments if e - s > longest)
    yield row(
        "features are finite", "input", not wild, len(wild), 0, some_of(wild) or "every feature is finite"
    )
    yield row(
        "lengths are positive",
        "boundary",
        not empty,
        len(empty),
        0,
        f"length 0: {some_of(empty)}" if empty else "every utterance has a frame",
    )
    yield row(
        "labels are in range",
        "input",
        not labels,
        len(labels),
        0,
        some_of(labels) or "every label is a phone",
    )
    yield row(
        "gold fits the support",
        "input",
        True,
        over,
        0,
        f"{over} gold segments are longer than {longest} frames and are split"
        if over
        else "no gold segment is too long",
    )


def score_probes(case: Case) -> Iterator[Row]:
    """The scores: -inf is a mask and legal, but not for every label of a frame."""
    inside = torch.arange(case.score_BTC.shape[1]) < case.lengths_B[:, None]
    score = case.score_BTC.cpu()
    wild = (torch.isnan(score) | (score == math.inf)).any(2) & inside
    closed = (score == -math.inf).all(2) & inside
    yield row(
        "scores are finite or -inf",
        "input",
        not bool(wild.any()),
        int(wild.sum()),
        0,
        f"first at sequence {first_place(wild)}" if bool(wild.any()) else "no NaN, no +inf",
    )
    yield row(
        "every frame allows a label",
        "input",
        not bool(closed.any()),
        int(closed.sum()),
        0,
        f"all labels are -inf at sequence {first_place(closed)}: no segmentation is possible"
        if bool(closed.any())
        else "no frame has -inf for every label",
    )


def first_place(found: torch.Tensor) -> str:
    b, t = found.nonzero()[0].tolist()
    return f"{b}, frame {t}"


def some_of(texts: list[str], most: int = 3) -> str:
    return "; ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
