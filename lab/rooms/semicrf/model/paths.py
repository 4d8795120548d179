"""Segmentations instead of sums: the best, the k best, and draws from the model. Float64, log domain.

Only the messages are stored; the label before each segment is recomputed on the way back.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import Problem


def best(problem: Problem, count: int) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence, best first; fewer if fewer exist."""
    _, frames, _, labels = problem.shape
    # No sequence has more segmentations; after 64 frames their number is beyond any count.
    count = min(count, labels * (labels + 1) ** (min(frames, 64) - 1))
    alpha, ended, entered = best_messages(problem, count)
    rows = torch.arange(problem.shape[0], device=alpha.device)
    final_BCN = (alpha[problem.lengths_B, :, rows] + problem.end_C.double()).transpose(1, 2)
    score_BN, code_BN = largest(final_BCN.flatten(1), count, 1)
    tables = (ended.cpu().numpy(), entered.cpu().numpy())
    sequences = zip(problem.lengths_B.tolist(), score_BN.tolist(), code_BN.tolist(), strict=True)
    return [
        [
            (score, way_back(*tables, b, t, code))
            for score, code in zip(*lists, strict=True)
            if score > -np.inf
        ]
        for b, (t, *lists) in enumerate(sequences)
    ]


def best_messages(problem: Problem, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """alpha (T+1, N, B, C): the N best scores up to a boundary, in descending order, -inf past the last; and
    where they came from. `ended` (T, N, B, C), of boundaries 1 to T: (duration - 1) * N + the rank in what
    the last segment began from. `entered` (T, N, B, C), of the same boundaries, for what goes on from
    there: label * N + rank.
    """
    batch, frames, longest, labels = problem.shape
    terms = log_domain.Terms(problem)
    nothing = terms.frame_TBC.new_full((count, batch, labels), -float("inf"))
    crossing = terms.transition.transpose(1, 2)[..., None]
    alpha, ended, entered = [nothing], [], []
    window, gamma = nothing[None][:0], nothing.clone()
    gamma[0] = terms.first()
    for t in range(frames):
        # Row k-1: what left boundary t+1-k, plus its frames so far; a shorter segment comes first and wins
        # ties.
        window = torch.cat([gamma[None], window[: longest - 1]]) + terms.frame_TBC[t]
        arrived = window + terms.arriving(t + 1, len(window))[:, None]
        value, indices = largest(arrived.flatten(0, 1), count, 0)
        ended.append(indices.int())
        alpha.append(terms.closed(value, t))
        sent = (alpha[-1].permute(1, 2, 0)[:, None] + crossing).flatten(2)  # (B, C, C' N)
        value, indices = largest(sent, count, 2)
        gamma = terms.opened(value.permute(2, 0, 1), t + 1)
        entered.append(indices.permute(2, 0, 1).int())
    return torch.stack(alpha), torch.stack(ended), torch.stack(entered)


def largest(value: Tensor, count: int, dim: int) -> tuple[Tensor, Tensor]:
    """The `count` largest in descending order, the first of equals first; and where."""
    if count == 1:  # a sort takes several times as long
        return value.max(dim, keepdim=True)
    values, indices = torch.sort(value, stable=True, dim=dim, descending=True)
    return values.narrow(dim, 0, count), indices.narrow(dim, 0, count)


def way_back(ended: np.ndarray, entered: np.ndarray, b: int, t: int, code: int) -> list[Segment]:
    """Walk back from label * N + rank at boundary `t`."""
    count = entered.shape[1]
    path: list[Segment] = []
    while True:
        label, rank = divmod(code, count)
        index, rank = divmod(int(ended[t - 1, rank, b, label]), count)
        path.append((t - 1 - index, t, label))
        t -= 1 + index
        if t == 0:
            return path[::-1]
        code = int(entered[t - 1, rank, b, label])


def sample(problem: Problem, samples: int, seed: int) -> list[list[list[Segment]]]:
    """Draw backwards: the last label, then for each segment its duration and the label before it.

    All draws of all sequences take their steps together. An infeasible sequence has empty draws.
    """
    batch, _, longest, labels = problem.shape
    state = log_domain.forward(problem)
    alpha_TBC, gamma_TBC, frame_TBC = (
        value.cpu().numpy()[..., :labels] for value in (state.alpha_TBC, state.gamma_TBC, state.frame_TBC)
    )
    model = {name: x.detach().double().cpu().numpy() for name, x in problem.by_name().items()}
    # numpy's generator on the host: a seed draws the same on every device.
    dice = np.random.default_rng(seed)
    feasible_B = torch.isfinite(state.log_z_B).cpu().numpy()
    paths: list[list[Segment]] = [[] for _ in range(batch * samples)]
    walker = np.flatnonzero(np.repeat(feasible_B, samples))
    end = problem.lengths_B.cpu().numpy()[walker // samples]
    label = drawn(alpha_TBC[end, walker // samples] + model["end_C"], dice)
    shorter_K = np.arange(longest)
    while len(walker):
        b = walker // samples
        start_WK = end[:, None] - 1 - shorter_K
        first_WK = start_WK.clip(0)
        content_WK = frame_TBC[first_WK, b[:, None], label[:, None]].cumsum(1)
        weight_WK = gamma_TBC[first_WK, b[:, None], label[:, None]] + content_WK
        weight_WK += model["duration_KC"][:, label].T
        if "segment_BTKC" in model:
            weight_WK += model["segment_BTKC"][b[:, None], first_WK, shorter_K, label[:, None]]
        start = end - 1 - drawn(np.where(start_WK < 0, -np.inf, weight_WK), dice)
        for index, *segment in np.stack([walker, start, end, label], 1).tolist():
            paths[index].append((segment[0], segment[1], segment[2]))
        inner = start > 0
        walker, b, end, label = walker[inner], b[inner], start[inner], label[inner]
        if len(walker):
            label = drawn(alpha_TBC[end, b] + model["transition_CC"].T[label], dice)
    return [[path[::-1] for path in paths[b * samples : (b + 1) * samples]] for b in range(batch)]


def drawn(log_weight_WN: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """An index of each row, drawn by its log weight; one with -inf never is."""
    # Less the largest first: exp of a score of some thousands overflows.
    mass_WN = np.exp(log_weight_WN - log_weight_WN.max(1, keepdims=True)).cumsum(1)
    share_W1 = (1 - dice.random((len(mass_WN), 1))) * mass_WN[:, -1:]  # above 0
    index: np.ndarray = (mass_WN < share_W1).sum(1)
    return index
