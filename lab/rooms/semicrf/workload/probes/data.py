"""Probes of the input: every utterance, and the scores that the network gives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lab.core.words import first_few
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.workload.cases import Case
from lab.rooms.semicrf.workload.corpus.utterances import Corpus
from lab.rooms.semicrf.workload.probes import Row, row


def data_probes(corpus: Corpus, longest: int) -> Iterator[Row]:
    """What the reader noted of the corpus; it refuses what cannot be trained on."""
    suspects = [note.text for note in corpus.notes if note.suspect]
    text = first_few(suspects, 3, between="; ") or "no utterance and no speaker is in both"
    yield row("test data is apart from training data", "input", not suspects, len(suspects), 0, text)
    mended = [note.text for note in corpus.notes if not note.suspect]
    text = first_few(mended, 3, between="; ") or "nothing had to be mended"
    yield row("what was mended", "input", True, len(mended), 0, text)
    over = sum(e - s > longest for u in corpus.train for s, e, _ in u.segments)
    text = f"{over} gold segments are longer than {longest} frames and are split"
    yield row(
        "gold fits the support", "input", True, over, 0, text if over else "no gold segment is too long"
    )


def score_probes(case: Case) -> Iterator[Row]:
    """The scores: -inf is a mask and legal, but not for every label of a frame."""
    score = case.score_BTC.cpu()
    within = inside(score.shape[1], case.lengths_B)
    wild = (torch.isnan(score) | (score == math.inf)).any(2) & within
    text = f"first at sequence {first_place(wild)}" if bool(wild.any()) else "no NaN, no +inf"
    yield row("scores are finite or -inf", "input", not bool(wild.any()), int(wild.sum()), 0, text)
    closed = (score == -math.inf).all(2) & within
    text = "no frame has -inf for every label"
    if bool(closed.any()):
        text = f"all labels are -inf at sequence {first_place(closed)}: no segmentation is possible"
    yield row("every frame allows a label", "input", not bool(closed.any()), int(closed.sum()), 0, text)


def first_place(marked: torch.Tensor) -> str:
    b, t = marked.nonzero()[0].tolist()
    return f"{b}, frame {t}"
