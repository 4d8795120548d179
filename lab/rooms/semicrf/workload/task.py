"""What one training is: config, corpus, model and place."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.corpus.utterances import Corpus
from lab.rooms.semicrf.workload.training import Tagger
from lab.workload.rank import RankContext


@dataclass(frozen=True)
class TrainingTask:
    """One head (`model`) on one backend, on this rank's device."""

    config: TrainConfig
    model: str
    backend: str
    corpus: Corpus
    tagger: Tagger
    context: RankContext
    device: torch.device

    @property
    def over_long_segments(self) -> int:
        """Gold segments of the training set that are longer than the model's longest."""
        longest = self.config.max_duration
        return sum(end - start > longest for u in self.corpus.train for start, end, _ in u.segments)
