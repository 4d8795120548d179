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


def viterbi(problem: Problem) -> tuple[Tensor, list[list[Segment]]]:
    """Best score (B,) and path of each sequence: the factorised recursion with max, O(T (C^2 + K C))."""
    alpha_TBC, duration_TBC = best_messages(problem)
    rows = torch.arange(problem.shape[0], device=alpha_TBC.device)
    final_BC = alpha_TBC[problem.lengths_B, rows] + problem.end_C.double()
    score_B, label_B = final_BC.max(-1)
    walk = _Walk(problem, alpha_TBC, duration_TBC)
    return score_B, [walk.back(b, int(label_B[b]), float(score_B[b])) for b in range(problem.shape[0])]


def best_messages(problem: Problem) -> tuple[Tensor, Tensor]:
    """alpha (T+1, B, C): best score up to a boundary; and the shortest duration of its last segment."""
    batch, frames, longest, labels = problem.shape
    terms = Terms(problem)
    pending = terms.frame_TBC.new_full((frames + longest, batch, labels), -float("inf"))
    taken = torch.zeros(frames + longest, batch, labels, dtype=torch.int32, device=pending.device)
    durations_K11 = torch.arange(1, longest + 1, dtype=torch.int32, device=pending.device)[:, None, None]
    alpha = [torch.full_like(terms.frame_TBC[0], -float("inf"))]
    gamma = terms.first()
    for t in range(frames):
        window, best = pending[t : t + longest], taken[t : t + longest]
        coming = gamma + terms.lasting(t)
        better = coming >= window  # a later start is a shorter segment: it wins ties
        best.copy_(torch.where(better, durations_K11, best))
        window.copy_(torch.where(better, coming, window) + terms.frame_TBC[t])
        alpha.append(terms.closed(window[0], t).clone())
        crossing = terms.crossing(t + 1)
        if problem.by_duration:
            gamma = terms.opened((alpha[-1][:, None, :, None] + crossing).amax(2).transpose(0, 1), t + 1)
        else:
            gamma = terms.opened((alpha[-1][:, :, None] + crossing).amax(1), t + 1)
    first = torch.zeros_like(taken[:1])
    return torch.stack(alpha), torch.cat([first, taken[:frames]])


def into(problem: Problem, b: int) -> Callable[[int, int], np.ndarray]:
    """Transitions of sequence `b` on the CPU: (C, C) into a segment of k frames from frame s on."""
    row = slice(b, b + 1) if problem.per_frame else slice(None)
    table_TKCC = canonical(problem.transition)[row][0].detach().double().cpu().numpy()
    frame, duration = int(problem.per_frame), int(problem.by_duration)
    return lambda s, k: np.asarray(table_TKCC[s * frame, (k - 1) * duration])


class _Walk:
    """The way back through best messages, on the CPU."""

    def __init__(self, problem: Problem, alpha_TBC: Tensor, duration_TBC: Tensor) -> None:
        self.alpha, self.duration = alpha_TBC.cpu().numpy(), duration_TBC.cpu().numpy()
        self.into = [into(problem, b) for b in range(problem.shape[0])]
        self.lengths = problem.lengths_B.tolist()

    def back(self, b: int, label: int, score: float) -> list[Segment]:
        if not np.isfinite(score):
            return []
        path: list[Segment] = []
        t = self.lengths[b]
        while True:
            k = int(self.duration[t, b, label])
            path.append((t - k, t, label))
            t -= k
            if t == 0:
                return path[::-1]
            label = int(np.argmax(self.alpha[t, b] + self.into[b](t, k)[:, label]))


def sample(problem: Problem, samples: int, seed: int) -> list[list[list[Segment]]]:
    """Draw backwards: the last label, then for each segment its duration and the label before it."""
    drawn = []
    for b in range(problem.shape[0]):
        row = torch.tensor([b], device=problem.lengths_B.device)
        draw = _Draw(problem.rows(row))
        random = [
            np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, b, n])) for n in range(samples)
        ]
        drawn.append([draw.once(one) for one in random])
    return drawn


class _Draw:
    """Exact draws for one sequence from its log messages."""

    def __init__(self, problem: Problem) -> None:
        state = log_domain.forward(problem)
        self.feasible = bool(torch.isfinite(state.log_z_B[0]))
        self.alpha = torch.stack(state.alpha)[:, 0].cpu().numpy()
        self.gamma = torch.stack(state.gamma).select(-2, 0).cpu().numpy()
        self.frame = state.frame_TBC[:, 0].cpu().numpy()
        self.terms, self.into = state.terms, into(problem, 0)
        self.longest, self.end = problem.shape[2], problem.end_C.double().cpu().numpy()
        self.length = int(problem.lengths_B[0])

    def once(self, random: np.random.Generator) -> list[Segment]:
        if not self.feasible:
            return []
        path: list[Segment] = []
        t, label = self.length, pick(self.alpha[self.length] + self.end, random)
        while True:
            reach = min(self.longest, t)
            content = self.frame[t - reach : t, label][::-1].cumsum()
            lasted = self.terms.arriving(t, reach)[:, 0, label].cpu().numpy()
            k = 1 + pick(self._entered(t, reach, label) + content + lasted, random)
            path.append((t - k, t, label))
            t -= k
            if t == 0:
                return path[::-1]
            label = pick(self.alpha[t] + self.into(t, k)[:, label], random)

    def _entered(self, t: int, reach: int, label: int) -> np.ndarray:
        """gamma[t-k, label] for k = 1..reach."""
        durations = np.arange(1, reach + 1)
        if self.gamma.ndim == 2:
            return np.asarray(self.gamma[t - durations, label])
        return np.asarray(self.gamma[t - durations, durations - 1, label])


def pick(log_weight: np.ndarray, random: np.random.Generator) -> int:
    """An index drawn by its log weight; one with -inf never is."""
    mass = np.exp(log_weight - log_weight.max()).cumsum()
    return int(np.searchsorted(mass, random.random() * mass[-1], side="right"))


def kbest(problem: Problem, count: int) -> list[list[tuple[float, list[Segment]]]]:
    """The k best: each (t, c) keeps its best (duration, rank) pairs, each (s, c) its best labels."""
    return [_KBest(problem, b, count).paths() for b in range(problem.shape[0])]


class _KBest:
    """Lists of the N best for one sequence; `alpha` (T+1, C, N) descending."""

    def __init__(self, problem: Problem, b: int, count: int) -> None:
        self.count, self.length = count, int(problem.lengths_B[b])
        problem = problem.rows(torch.tensor([b], device=problem.lengths_B.device))
        terms = Terms(problem)
        zero_BC, labels = torch.zeros_like(terms.frame_TBC[0]), problem.shape[3]
        self.score, self.into = terms.frame_TBC[:, 0].cpu().numpy(), into(problem, 0)
        self.start, self.end = (x.double().cpu().numpy() for x in (problem.start_C, problem.end_C))
        # What a segment of each duration that ends at t adds beside its frames.
        self.own = [np.zeros((0, labels))]
        opened = torch.stack([terms.opened(zero_BC, t) for t in range(self.length)])
        for t in range(1, self.length + 1):
            reach = min(problem.shape[2], t)
            ended = terms.closed(terms.arriving(t, reach) + opened[t - reach : t].flip(0), t - 1)
            self.own.append(ended[:, 0].cpu().numpy())
        self.alpha = np.full((self.length + 1, labels, count), -np.inf)
        self.back: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for t in range(1, self.length + 1):
            for label in range(labels):
                self._fill(t, label)

    def _fill(self, t: int, label: int) -> None:
        """The best (duration, label before, its rank) of segments of `label` that end at t."""
        found: list[tuple[float, tuple[int, int, int]]] = []
        content = 0.0
        for k in range(1, len(self.own[t]) + 1):
            content += self.score[t - k, label]
            base = content + self.own[t][k - 1, label]
            if k == t:
                found.append((base + self.start[label], (k, -1, 0)))
                continue
            value = self.alpha[t - k] + self.into(t - k, k)[:, label, None] + base
            order = np.argsort(-value, axis=None, kind="stable")[: self.count]
            found += [(value.flat[i], (k, *divmod(int(i), self.count))) for i in order]
        found = sorted(found, key=lambda pair: -pair[0])[: self.count]
        self.alpha[t, label, : len(found)] = [value for value, _ in found]
        self.back[t, label] = [where for _, where in found]

    def paths(self) -> list[tuple[float, list[Segment]]]:
        final = self.alpha[self.length] + self.end[:, None]
        order = np.argsort(-final, axis=None, kind="stable")[: self.count]
        ranked = [(float(final.flat[i]), divmod(int(i), self.count)) for i in order]
        return [(score, self._path(*at)) for score, at in ranked if np.isfinite(score)]

    def _path(self, label: int, rank: int) -> list[Segment]:
        path: list[Segment] = []
        t = self.length
        while t > 0:
            k, before, next_rank = self.back[t, label][rank]
            path.append((t - k, t, label))
            t, label, rank = t - k, before, next_rank
        return path[::-1]
