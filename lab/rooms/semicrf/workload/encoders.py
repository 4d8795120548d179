"""The encoders before the head: a bidirectional LSTM, or none that sees beyond a frame.

Padding never reaches a real frame.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BiLSTM(nn.Module):
    """Linear, dropout, LSTM layers of half the width each way; (B, T, D) -> (B, T, H)."""

    def __init__(self, dim: int, hidden_dim: int, layers: int, dropout: float) -> None:
        super().__init__()
        if hidden_dim % 2:
            raise ValueError(f"hidden_dim must be even for a bidirectional LSTM, got {hidden_dim}")
        self.inward, self.drop = nn.Linear(dim, hidden_dim), nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            hidden_dim,
            hidden_dim // 2,
            layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if layers > 1 else 0.0,
        )

    def forward(self, features_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        inner = self.drop(self.inward(features_BTD))
        # A length of 0 has no packed form; the head's own check names it.
        packed = pack_padded_sequence(
            inner, lengths_B.cpu().clamp(min=1), batch_first=True, enforce_sorted=False
        )
        outer, _ = self.lstm(packed)
        hidden, _ = pad_packed_sequence(outer, batch_first=True, total_length=features_BTD.shape[1])
        dropped: Tensor = self.drop(hidden)
        return dropped


class Framewise(nn.Module):
    """A linear layer and dropout on each frame alone: what lies around it is left to the head."""

    def __init__(self, dim: int, hidden_dim: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.inward = nn.Sequential(nn.Linear(dim, hidden_dim), nn.Dropout(dropout))

    def forward(self, features_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        hidden: Tensor = self.inward(features_BTD)
        return hidden


def make_encoder(kind: str, dim: int, hidden_dim: int, layers: int, dropout: float) -> nn.Module:
    kinds = {"bilstm": BiLSTM, "none": Framewise}
    encoder: nn.Module = kinds[kind](dim, hidden_dim, layers, dropout)
    return encoder
