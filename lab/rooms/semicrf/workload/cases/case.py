"""A case: one batch of scores and parameters, apart from any network.

It can be saved as `case.npz` and run again by the few lines of `reproduce.py` beside it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.core.files import write_atomic
from lab.errors import BadDataError

Partition = Callable[..., Tensor]
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Case:
    """score (B, T, C), transition (C, C), duration (K, C), lengths (B,), start and end (C,)."""

    score_BTC: Tensor
    transition_CC: Tensor
    duration_KC: Tensor
    lengths_B: Tensor
    start_C: Tensor
    end_C: Tensor

    def inputs(self) -> dict[str, Tensor]:
        """The arguments of the functions in api.py."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Case:
        """Floats to `dtype`, all but the lengths to `device`."""
        moved = {
            field.name: getattr(self, field.name).to(device=device, dtype=dtype)
            for field in fields(self)
            if field.name != "lengths_B"
        }
        return replace(self, **moved)

    def rows(self, index: list[int]) -> Case:
        lengths = self.lengths_B[index]
        return replace(
            self, score_BTC=self.score_BTC[index][:, : max(1, int(lengths.max()))], lengths_B=lengths
        )

    def cut(self, frames: int) -> Case:
        """The first `frames` frames of every sequence."""
        return replace(self, score_BTC=self.score_BTC[:, :frames], lengths_B=self.lengths_B.clamp(max=frames))

    def without_first(self, frames: int) -> Case:
        return replace(self, score_BTC=self.score_BTC[:, frames:], lengths_B=self.lengths_B - frames)

    def padded(self, frames: int, value: float) -> Case:
        """`frames` more frames, and `value` wherever no sequence is."""
        size, length, classes = self.score_BTC.shape
        rows_added = self.score_BTC.new_zeros(size, frames, classes)
        score = torch.cat([self.score_BTC, rows_added], dim=1)
        inside = torch.arange(length + frames) < self.lengths_B[:, None]
        return replace(
            self, score_BTC=torch.where(inside[..., None].to(score.device), score, score.new_full((), value))
        )

    def save(self, path: Path) -> None:
        data = io.BytesIO()
        np.savez_compressed(
            data, **{f.name: getattr(self, f.name).detach().cpu().numpy() for f in fields(self)}
        )
        write_atomic(path, data.getvalue())

    @classmethod
    def load(cls, path: Path) -> Case:
        """Raises BadDataError for a file that is not a case; nothing in it is executed."""
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                    raise BadDataError("a case of more than 1 GiB when unpacked", location=path)
            with np.load(path, allow_pickle=False) as arrays:
                return cls(**{field.name: torch.from_numpy(arrays[field.name]) for field in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise BadDataError(f"not a semi-CRF case: {error}", location=path) from error


def poison_free_memory(device: torch.device, amount_bytes: int = 256 << 20) -> None:
    """Fill free memory with NaN, so that reading what was never written shows."""
    blocks = [
        torch.full((max(1, amount_bytes >> shift) // 4,), float("nan"), device=device)
        for shift in range(1, 16)
    ]
    del blocks


def random_case(
    dice: Any,
    batch: int,
    frames: int,
    longest: int,
    classes: int,
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Normal scores and parameters, lengths 1..frames with one full; `dice` is a torch.Generator."""

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=dice, dtype=dtype)

    lengths = torch.randint(1, frames + 1, (batch,), generator=dice)
    lengths[0] = frames
    return Case(
        normal(batch, frames, classes),
        normal(classes, classes),
        normal(longest, classes),
        lengths,
        normal(classes),
        normal(classes),
    )
