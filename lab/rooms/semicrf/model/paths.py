"""Segmentations instead of sums: the best one, the k best, and draws from the model. Float64, log domain.

Only the messages are stored; the label before each segment is recomputed on the way back.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.naive import Segment
from lab.rooms.semicrf.model.problem import Problem
from lab.rooms.semicrf.model.terms import Terms, canonical


def best(problem: Problem, count: int) -> list[list[tuple[float, list[Segment]]]]:
    """The `count` best segmentations of each sequence, best first; fewer if fewer exist.

    The factorised recursion with lists of the `count` best for sums, O(T (C^2 + K C)) of them.
    """
    alpha, ended, entered = best_messages(problem, count)
    rows = torch.arange(problem.shape[0], device=alpha.device)
    final_BCN = (alpha[problem.lengths_B, :, rows] + problem.end_C.double()).transpose(1, 2)
    score_BN, at_BN = largest(final_BCN.flatten(1), count, 1)
    tables = (ended.cpu().numpy(), entered.cpu().numpy())
    sequences = zip(problem.lengths_B.tolist(), score_BN.tolist(), at_BN.tolist(), strict=True)
    return [
        [(score, way_back(*tables, b, t, at)) for score, at in zip(*lists, strict=True) if score > -np.inf]
        for b, (t, *lists) in enumerate(sequences)
    ]


def best_messages(problem: Problem, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """alpha (T+1, N, B, C): the N best scores up to a boundary, in descending order, -inf past the last; and
    where they came from. `ended` (T, N, B, C), of boundaries 1 to T: (duration - 1) * N + the rank in what
    the last segment began from. `entered` (T, X, N, B, C), of the same boundaries, for what goes on from
    there: label * N + rank. X as in `Terms`.
    """
    batch, frames, longest, labels = problem.shape
    terms = Terms(problem)
    pending = terms.frame_TBC.new_full((frames + longest, count, batch, labels), -float("inf"))
    taken = torch.zeros(pending.shape, dtype=torch.int32, device=pending.device)
    coming_codes = torch.arange(longest * count, dtype=torch.int32, device=pending.device)
    coming_codes = coming_codes.view(longest, count, 1, 1).expand(-1, -1, batch, labels)
    alpha, entered = [torch.full_like(pending[0], -float("inf"))], []
    first_XBC = terms.first()
    gamma = first_XBC.new_full((len(first_XBC), *pending.shape[1:]), -float("inf"))
    gamma[:, 0] = first_XBC
    for t in range(frames):
        window, codes = pending[t : t + longest], taken[t : t + longest]
        coming = gamma + terms.lasting(t)[:, None]
        # A later start is a shorter segment: it wins ties.
        value, indices = largest(torch.cat([coming, window], 1), count, 1)
        codes.copy_(torch.cat([coming_codes, codes], 1).gather(1, indices))
        window.copy_(value + terms.frame_TBC[t])
        alpha.append(terms.closed(window[0], t).clone())
        crossing = terms.crossing(t + 1).transpose(2, 3)[..., None]
        sent = (alpha[-1].permute(1, 2, 0)[:, None, None] + crossing).flatten(3)  # (B, X, C, C' N)
        value, indices = largest(sent, count, 3)
        gamma = terms.opened(value.permute(1, 3, 0, 2), t + 1)
        entered.append(indices.permute(1, 3, 0, 2).int())
    return torch.stack(alpha), taken[:frames], torch.stack(entered)


def largest(value: Tensor, count: int, dim: int) -> tuple[Tensor, Tensor]:
    """The `count` largest in descending order, the first of equals first; and where."""
    if count == 1:  # a sort takes several times as long
        return value.max(dim, keepdim=True)
    values, indices = torch.sort(value, stable=True, dim=dim, descending=True)
    return values.narrow(dim, 0, count), indices.narrow(dim, 0, count)


def way_back(ended: np.ndarray, entered: np.ndarray, b: int, t: int, code: int) -> list[Segment]:
    """From label * N + rank at boundary `t`."""
    _, ways, count, _, _ = entered.shape
    path: list[Segment] = []
    while True:
        label, rank = divmod(code, count)
        index, rank = divmod(int(ended[t - 1, rank, b, label]), count)
        path.append((t - 1 - index, t, label))
        t -= 1 + index
        if t == 0:
            return path[::-1]
        code = int(entered[t - 1, min(index, ways - 1), rank, b, label])


Into = Callable[[int, int], np.ndarray]
"""(C, C) into a segment that starts with frame s and has k frames."""


def into(problem: Problem, b: int) -> Into:
    """Transitions of sequence `b` on the CPU."""
    row = slice(b, b + 1) if problem.per_frame else slice(None)
    table_TKCC = canonical(problem.transition)[row][0].detach().double().cpu().numpy()
    frame, duration = int(problem.per_frame), int(problem.by_duration)
    return lambda s, k: np.asarray(table_TKCC[s * frame, (k - 1) * duration])


def sample(problem: Problem, samples: int, seed: int) -> list[list[list[Segment]]]:
    """Draw backwards: the last label, then for each segment its duration and the label before it."""
    return [
        [draw.path(stream(seed, b, number)) for number in range(samples)]
        for b, draw in enumerate(_Draw(problem.rows([b])) for b in range(problem.shape[0]))
    ]


def stream(seed: int, b: int, number: int) -> np.random.Generator:
    """Random numbers of one draw of one sequence."""
    return np.random.Generator(np.random.Philox(key=seed % 2**64, counter=[0, 0, b, number]))


class _Draw:
    """Exact draws for one sequence from its log messages."""

    def __init__(self, problem: Problem) -> None:
        state = log_domain.forward(problem)
        self.feasible = bool(torch.isfinite(state.log_z_B[0]))
        self.alpha = state.alpha_TBC[:, 0].cpu().numpy()
        self.gamma = state.gamma_TXBC[:, :, 0].cpu().numpy()
        self.frame = state.frame_TBC[:, 0].cpu().numpy()
        self.terms, self.into = state.terms, into(state.terms.problem, 0)
        self.longest, self.end = problem.shape[2], state.terms.end_C.cpu().numpy()
        self.length = int(problem.lengths_B[0])

    def path(self, random: np.random.Generator) -> list[Segment]:
        if not self.feasible:
            return []
        path: list[Segment] = []
        t, label = self.length, pick(self.alpha[self.length] + self.end, random)
        while True:
            reach = min(self.longest, t)
            content = self.frame[t - reach : t, label][::-1].cumsum()
            lasted = self.terms.arriving(t, reach)[:, 0, label].cpu().numpy()
            durations = np.arange(1, reach + 1)
            entered = self.gamma[t - durations, (durations - 1) % self.gamma.shape[1], label]
            k = 1 + pick(entered + content + lasted, random)
            path.append((t - k, t, label))
            t -= k
            if t == 0:
                return path[::-1]
            label = pick(self.alpha[t] + self.into(t, k)[:, label], random)


def pick(log_weight: np.ndarray, random: np.random.Generator) -> int:
    """An index drawn by its log weight; one with -inf never is."""
    mass = np.exp(log_weight - log_weight.max()).cumsum()
    return int(np.searchsorted(mass, random.random() * mass[-1], side="right"))
