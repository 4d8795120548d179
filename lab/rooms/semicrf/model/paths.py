"""Segmentations instead of sums: the best one, the k best, and draws from the model. Float64, log domain.

Only the messages are stored; the label before each segment is recomputed on the way back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

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
        one = problem.rows(row)
        draw = _Draw(one)
        drawn.append([draw.once(generator(seed, one, n)) for n in range(samples)])
    return drawn


def generator(seed: int, one: Problem, number: int) -> np.random.Generator:
    """Random numbers by the seed, the sequence's own scores and the draw's number, whatever its batch."""
    own = one.score_BTC[0, : int(one.lengths_B)].double() + 0.0  # -0.0 becomes 0.0
    content = hashlib.blake2b(own.cpu().numpy().tobytes(), digest_size=8).digest()
    counter = [0, 0, int.from_bytes(content, "little"), number]
    return np.random.Generator(np.random.Philox(key=seed % 2**64, counter=counter))


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
    """The k best: each (t, c) keeps its best (duration, rank) pairs, each (s, c) its (label, rank) pairs."""
    return [_KBest(problem, b, count).paths() for b in range(problem.shape[0])]


class _KBest:
    """Lists of the N best for one sequence, in descending order, -inf past the last.

    `alpha[t]` (C, N) ends at t, of `duration[t]` and of the rank `rank[t]` in what it followed: `entered[s]`
    (X, C, N), from `origin[s]`, label * N + rank. X is K where the transition depends on it, else 1.
    """

    def __init__(self, problem: Problem, b: int, count: int) -> None:
        self.count, self.length = count, int(problem.lengths_B[b])
        problem = problem.rows(torch.tensor([b], device=problem.lengths_B.device))
        _, _, longest, labels = problem.shape
        self.into, self.ways = into(problem, 0), longest if problem.by_duration else 1
        self.end_C = problem.end_C.double().cpu().numpy()
        shape, first = (self.length + 1, labels, count), np.full((self.ways, labels, count), -np.inf)
        self.alpha, self.duration = np.full(shape, -np.inf), np.zeros(shape, int)
        self.rank = np.zeros(shape, int)
        first[..., 0] = problem.start_C.double().cpu().numpy()
        self.entered, self.origin = [first], [np.zeros(first.shape, int)]
        for t, lasting_KC in enumerate(segment_scores(problem, self.length), 1):
            self._end(t, lasting_KC)
            if t < self.length:
                self._cross(t)

    def _end(self, t: int, lasting_KC: np.ndarray) -> None:
        reach = len(lasting_KC)
        before_KCN = np.stack([self.entered[t - k][min(k, self.ways) - 1] for k in range(1, reach + 1)])
        value_CKN = (before_KCN + lasting_KC[:, :, None]).transpose(1, 0, 2)
        self.alpha[t], at = top(value_CKN, self.count)
        self.duration[t], self.rank[t] = at // self.count + 1, at % self.count

    def _cross(self, t: int) -> None:
        across_XCC = np.stack([self.into(t, k) for k in range(1, self.ways + 1)])
        entered, origin = top(self.alpha[t] + across_XCC.transpose(0, 2, 1)[..., None], self.count)
        self.entered.append(entered)
        self.origin.append(origin)

    def paths(self) -> list[tuple[float, list[Segment]]]:
        score_N, at_N = top(self.alpha[self.length] + self.end_C[:, None], self.count)
        ranked = zip(score_N.tolist(), at_N.tolist(), strict=True)
        return [(score, self._path(*divmod(at, self.count))) for score, at in ranked if np.isfinite(score)]

    def _path(self, label: int, rank: int) -> list[Segment]:
        path: list[Segment] = []
        t = self.length
        while t > 0:
            k, followed = int(self.duration[t, label, rank]), self.rank[t, label, rank]
            path.append((t - k, t, label))
            t -= k
            before = self.origin[t][min(k, self.ways) - 1, label, followed]
            label, rank = divmod(int(before), self.count)
        return path[::-1]


def segment_scores(problem: Problem, length: int) -> Iterator[np.ndarray]:
    """For t = 1 to `length` what segments of each duration and label that end at t add, (reach, C): their
    frames, and all of their own but transitions.
    """
    terms, longest = Terms(problem), problem.shape[2]
    score_TC, zero_BC = terms.frame_TBC[:, 0].cpu().numpy(), torch.zeros_like(terms.frame_TBC[0])
    opened = torch.stack([terms.opened(zero_BC, t) for t in range(length)])
    content_KC = np.zeros((longest, score_TC.shape[1]))
    for t in range(1, length + 1):
        reach = min(longest, t)
        content_KC = np.concatenate([np.zeros_like(content_KC[:1]), content_KC[:-1]]) + score_TC[t - 1]
        own = terms.closed(terms.arriving(t, reach) + opened[t - reach : t].flip(0), t - 1)
        yield content_KC[:reach] + own[:, 0].cpu().numpy()


def top(value: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest over the last two dimensions taken as one, the first of equals first; and where."""
    flat = value.reshape(*value.shape[:-2], -1)
    at = np.argsort(-flat, axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(flat, at, -1), at
