"""One training: encoder, head, optimizer; shared by the benchmark and the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lab.errors import MissingError
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.metrics import segments_of
from lab.rooms.semicrf.model.head import Decoded, SemiCRF
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.model.segments import gold_score, run_starts
from lab.rooms.semicrf.model.validation import Validator
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, Utterance, collate

Batch = dict[str, Tensor]


class BiLSTM(nn.Module):
    """Linear, dropout, LSTM layers of half the width each way; (B, T, D) -> (B, T, H)."""

    def __init__(self, dim: int, hidden_dim: int, layers: int, dropout: float) -> None:
        super().__init__()
        if hidden_dim % 2:
            raise ValueError(f"hidden_dim must be even for a bidirectional LSTM, got {hidden_dim}")
        self.inward, self.drop = nn.Linear(dim, hidden_dim), nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(
            hidden_dim, hidden_dim // 2, layers, batch_first=True, bidirectional=True, dropout=between
        )

    def forward(self, features_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        inner = self.drop(self.inward(features_BTD))
        # A length of 0 has no packed form; the head's own check names it.
        lengths_B = lengths_B.cpu().clamp(min=1)
        packed = pack_padded_sequence(inner, lengths_B, batch_first=True, enforce_sorted=False)
        outer, _ = self.lstm(packed)
        hidden, _ = pad_packed_sequence(outer, batch_first=True, total_length=features_BTD.shape[1])
        dropped: Tensor = self.drop(hidden)
        return dropped


class Tagger(nn.Module):
    """Encoder and head; `forward` gives the loss of a batch."""

    def __init__(self, encoder: nn.Module, head: Any, crf_reg: float) -> None:
        super().__init__()
        self.encoder, self.crf_reg = encoder, crf_reg
        self.head: Any = head

    @property
    def validator(self) -> Validator | None:
        return getattr(self.head, "validator", None)

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.encoder(batch["features"], batch["lengths"]), batch["lengths"]

    def forward(self, batch: Batch) -> Tensor:
        loss: Tensor = self.head.loss(*self.hidden(batch), batch["labels"], batch["starts"])
        return loss + self.crf_reg * self.head.parameter_penalty() if self.crf_reg else loss

    @torch.no_grad()
    def segments(self, batch: Batch) -> list[list[tuple[int, int, int]]]:
        return [decoded.segments for decoded in self.head.decode(*self.hidden(batch))]


class TorchCRF(nn.Module):
    """The linear CRF of the package pytorch-crf behind the same calls."""

    def __init__(self, num_classes: int, hidden_dim: int) -> None:
        super().__init__()
        try:
            from torchcrf import CRF  # type: ignore[import-not-found, unused-ignore]
        except ModuleNotFoundError as error:
            fix = "pip install pytorch-crf"
            raise MissingError("the package torchcrf is not installed here", fix=fix) from error
        self.projection, self.crf = nn.Linear(hidden_dim, num_classes), CRF(num_classes, batch_first=True)

    def loss(self, hidden: Tensor, lengths: Tensor, labels: Tensor, starts: Tensor) -> Tensor:
        mask = inside(hidden.shape[1], lengths, hidden.device)
        loss: Tensor = -self.crf(self.projection(hidden), labels, mask=mask, reduction="mean")
        return loss

    def decode(self, hidden: Tensor, lengths: Tensor) -> list[Decoded]:
        mask = inside(hidden.shape[1], lengths, hidden.device)
        paths = self.crf.decode(self.projection(hidden), mask=mask)
        return [Decoded(float("nan"), segments_of(path)) for path in paths]

    def parameter_penalty(self) -> Tensor:
        penalty: Tensor = self.crf.transitions.pow(2).sum()
        return penalty

    def magnitudes(self) -> tuple[float, float]:
        return float(self.crf.transitions.detach().abs().max()), 0.0


def make_tagger(config: TrainConfig, corpus: Corpus, model: str, backend: str) -> Tagger:
    """Weights drawn by `config.seed`: the same for every head and backend, as far as their shapes agree."""
    torch.manual_seed(config.seed)
    encoder = BiLSTM(corpus.dim, config.hidden_dim, config.num_layers, config.dropout)
    return Tagger(encoder, make_head(config, len(corpus.phones), model, backend), config.crf_reg)


def make_head(config: TrainConfig, classes: int, model: str, backend: str) -> nn.Module:
    if model == "pytorch-crf":
        return TorchCRF(classes, config.hidden_dim)
    longest, over_long = (1, "split") if model == "linear" else (config.max_duration, config.over_long)
    options: Any = {"backend": backend, "over_long": over_long, "validate": config.validate}
    head = SemiCRF(classes, longest, config.hidden_dim, **options)
    if config.objective == "guide":
        plant_objective(head)
    return head


def to_batch(utterances: Sequence[Utterance], device: torch.device) -> Batch:
    """Tensors on `device`; lengths stay on the CPU, for packing and for checks that must not wait."""
    batch = {name: torch.from_numpy(array) for name, array in collate(utterances).items()}
    return {
        name: tensor if name == "lengths" else tensor.to(device, non_blocking=True)
        for name, tensor in batch.items()
    }


def train_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, clip: float
) -> tuple[Tensor, Tensor]:
    """One optimizer step -> (loss, gradient norm before clipping), both still on the device.

    A gradient that is not finite would make all weights NaN. On the CPU it is not applied; on a GPU, where
    looking would wait, it is: the caller ends the training by the norm.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = module(batch)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), clip)
    if norm.is_cuda or bool(torch.isfinite(norm)):
        optimizer.step()
    return loss.detach(), norm


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation by seed and epoch alone, the same on every backend."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def over_long_segments(corpus: Corpus, longest: int) -> int:
    """Gold segments of the training set that are longer than the model's longest."""
    return sum(end - start > longest for u in corpus.train for start, end, _ in u.segments)


def plant_objective(head: SemiCRF) -> None:
    """Give the head the guide's objective, to show what is wrong with it: its partition charges the first
    segment a transition that its gold score does not, and covers other durations than that.
    """

    def gold(score_BTC: Tensor, *, starts_BT: Tensor, start_C: Tensor, end_C: Tensor, **model: Any) -> Tensor:
        return guide_gold(score_BTC, **model)

    head.partition, head.gold = with_first_transition(head.partition), gold


def with_first_transition(partition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The model of flash-semicrf: the first segment pays the log-sum over sources of its transition."""

    def modelled(*, start_C: Tensor, transition_CC: Tensor, **model: Any) -> Tensor:
        first_C = start_C + torch.logsumexp(transition_CC, 0)
        return partition(start_C=first_C, transition_CC=transition_CC, **model)

    return modelled


def guide_gold(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    labels_BT: Tensor,
    lengths_B: Tensor | None,
) -> Tensor:
    """(B,) float64: content, transitions between maximal runs, and bias min(d, K - 1) of each run."""
    shifted_KC = torch.cat([duration_KC[1:], duration_KC[-1:]])
    return gold_score(score_BTC, transition_CC, shifted_KC, labels_BT, run_starts(labels_BT), lengths_B)
