"""The guide's objective, written out plainly to show what is wrong with it; not for use in earnest.

Its partition charges the first segment a transition that its gold score does not, and covers other durations
than the gold score.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.model.segments import gold_score, index_in_segment, run_starts


def plant_objective(head: SemiCRF) -> None:
    """Give the head the published objective: its partition has a first transition, its gold score none."""
    inner = head.partition

    def partition(*, start_C: Tensor, transition_CC: Tensor, **model: Any) -> Tensor:
        first_C = start_C + torch.logsumexp(transition_CC, 0)
        return inner(start_C=first_C, transition_CC=transition_CC, **model)

    def gold(score_BTC: Tensor, *, starts_BT: Tensor, start_C: Tensor, end_C: Tensor, **model: Any) -> Tensor:
        return guide_gold(score_BTC, **model, longest=len(model["duration_KC"]))

    head.partition, head.gold = partition, gold


def guide_gold(
    score_BTC: Tensor,
    transition_CC: Tensor,
    duration_KC: Tensor,
    labels_BT: Tensor,
    lengths_B: Tensor | None,
    *,
    longest: int,
) -> Tensor:
    """(B,) float64: content, transitions between maximal runs, and bias min(d, K - 1) of each run."""
    frames = labels_BT.shape[1]
    lengths_B = labels_BT.new_full((len(labels_BT),), frames) if lengths_B is None else lengths_B
    lengths_B = lengths_B.to(labels_BT.device)
    starts_BT, within_BT = run_starts(labels_BT), inside(frames, lengths_B)
    plain_B = gold_score(
        score_BTC, transition_CC, torch.zeros_like(duration_KC), labels_BT, starts_BT, lengths_B
    )
    last_BT = torch.arange(frames, device=labels_BT.device) == lengths_B[:, None] - 1
    ends_BT = (last_BT | torch.cat([starts_BT[:, 1:], last_BT[:, -1:]], 1)) & within_BT
    index_BT = (index_in_segment(starts_BT) + 1).clamp(max=longest - 1)
    return plain_B + torch.where(
        ends_BT, duration_KC[index_BT, labels_BT].double(), torch.zeros_like(plain_B[:, None])
    ).sum(1)
