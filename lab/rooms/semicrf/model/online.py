"""Decoding of a stream: segments as soon as they are certain, or `lag` frames after they ended.

    decoder = OnlineDecoder(transition, duration_KC, lag=200)
    for chunk_tC in stream:
        for start, end, label, forced in decoder.push(chunk_tC): ...
    rest = decoder.finish()

Viterbi from left to right keeps the best way into each open segment (by its last frame and its label): K C
survivors. What they all have in common no later frame can change, so it is final. Where they still differ
`lag` frames later, the best survivor decides, and those that differ up to there are dropped: a segment that
this decides is marked `forced`. Up to the first of these the result is that of `api.viterbi`, ties included.
"""

from __future__ import annotations

import heapq
import operator
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.errors import BadDataError, UsageError
from lab.rooms.semicrf.model.decoding import reject_nan
from lab.rooms.semicrf.model.log_domain import Sum
from lab.rooms.semicrf.model.naive import LARGE
from lab.rooms.semicrf.model.problem import make_problem
from lab.rooms.semicrf.model.terms import far_top, without_far_edges

BEGIN = -1
"""The node before the first segment. Others are boundary * C + label: a segment of this label ends there."""
OPEN, DROPPED = -2, -3
"""Instead of a survivor's first segment: it has not ended; the survivor is none any more."""
REBASED = 1 << 20
"""After so many frames the best score moves into an offset, or a long stream would lose its digits."""


class Final(NamedTuple):
    """A segment over the frames start..end-1 that will not change; `forced` if the lag decided it."""

    start: int
    end: int
    label: int
    forced: bool


class OnlineDecoder:
    """The best segmentation of one stream in O(K C + lag C) memory.

    `transition` (C, C) or (K, C, C), `duration_KC` (K, C), `start_C`, `end_C` as in `api.viterbi`. `lag` in
    frames, 0 or more; None never forces, and keeps as many frames as the survivors disagree on.
    """

    def __init__(
        self,
        transition: Tensor,
        duration_KC: Tensor,
        start_C: Tensor | None = None,
        end_C: Tensor | None = None,
        *,
        lag: int | None = None,
    ) -> None:
        """Raises UsageError for shapes that do not fit or a negative lag, TypeError for one that is no whole
        number, BadDataError for NaN and +inf.
        """
        lag = None if lag is None else operator.index(lag)
        if lag is not None and lag < 0:
            raise UsageError(f"lag must be 0 or more frames, got {lag}")
        one = duration_KC.new_zeros(1, 1, duration_KC.shape[-1])
        problem = make_problem(one, transition, duration_KC, None, start_C, end_C)
        if problem.per_frame:
            raise UsageError("a stream's transitions cannot depend on the frame", fix="(C, C) or (K, C, C)")
        reject_nan(problem)
        edges = far_top(problem.start_C) + far_top(problem.end_C)
        problem = without_far_edges(problem)
        values = (problem.transition, problem.duration_KC, problem.start_C, problem.end_C)
        self._transition, self._duration, start, self._end = (
            value.detach().double().cpu().numpy() for value in values
        )
        self.lag, shape = lag, self._duration.shape
        self.frames = 0
        self.score: float | None = None
        self._offset = Sum(edges.cpu())
        # Survivors: row j holds those whose open segment ends at boundary `frames` + j.
        self._value = np.full(shape, -np.inf)
        self._parent = np.full(shape, BEGIN)  # the node before the open segment
        self._first = np.full(shape, OPEN)  # the first node after the root on the way there
        self._entering = (np.broadcast_to(start, shape), np.full(shape, BEGIN), np.full(shape, OPEN))
        # The segments that end at boundaries base, base + 1, ..., frames: the node before each, by label.
        self._parents: deque[np.ndarray] = deque()
        self._base, self._root = 1, BEGIN
        self._cut = False  # whether survivors were dropped because they had ended the segment after the root

    @property
    def buffered(self) -> int:
        """The number of boundaries that are kept: at most `lag`."""
        return len(self._parents)

    def push(self, score_tC: Tensor) -> list[Final]:
        """Take the next frames, (C,) or (t, C), and return what became final; chunks change nothing.

        Raises BadDataError for NaN or +inf, or where no segmentation fits the frames so far, UsageError for
        another shape, for what is not a tensor of real numbers, or after `finish`.
        """
        labels = self._duration.shape[1]
        if self.score is not None:
            raise UsageError("this stream is finished", fix="a new OnlineDecoder for the next")
        if not isinstance(score_tC, Tensor) or score_tC.is_complex():
            kind = getattr(score_tC, "dtype", type(score_tC).__name__)
            raise UsageError(f"frames must be a tensor of real numbers, got {kind}")
        if score_tC.shape[-1:] != (labels,) or score_tC.dim() > 2:
            raise UsageError(f"frames must be ({labels},) or (t, {labels}), got {tuple(score_tC.shape)}")
        chunk_tC = score_tC.detach().double().cpu().numpy().reshape(-1, labels)
        bad_t = (np.isnan(chunk_tC) | (chunk_tC == np.inf)).any(1)
        if bad_t.any():
            raise BadDataError(f"NaN or +inf among the scores of frame {self.frames + int(bad_t.argmax())}")
        done: list[Final] = []
        for frame_C in chunk_tC:
            self._step(frame_C)
            done += self._settle()
        return done

    def finish(self) -> list[Final]:
        """The rest; `score` is then the best score. Raises BadDataError where no segmentation fits."""
        if self.score is not None:
            raise UsageError("this stream is finished")
        if self.frames == 0:
            self.score = 0.0
            return []
        value = self._value[:1] + self._end
        if not (value > -np.inf).any():
            value = self._stopped() + self._end
        self._require(value)
        row, label = (int(at) for at in np.unravel_index(int(value.argmax()), value.shape))
        self.score = float(value[row, label] + self._offset.total())
        way = self._path(int(self._survivors()[row, label]))
        done = self._emitted(way, forced=False)
        if row == 0:
            return done
        return done + self._emitted([self.frames * value.shape[1] + label], forced=True)

    def _stopped(self) -> np.ndarray:
        """The survivors with their open segment ended here: those that end here were dropped before."""
        longest, labels = self._duration.shape
        label_C = np.arange(labels)
        spent = self.frames - (self._parent // labels).clip(0)  # the frames of the open segment so far
        planned = (spent + np.arange(longest)[:, None] - 1).clip(0, longest - 1)
        now = (spent - 1).clip(0, longest - 1)
        with np.errstate(invalid="ignore"):  # where nothing survives
            value = self._value + self._duration[now, label_C] - self._duration[planned, label_C]
            if self._transition.ndim == 3:
                before = self._parent % labels
                changed = self._transition[now, before, label_C] - self._transition[planned, before, label_C]
                value = value + np.where(self._parent == BEGIN, 0.0, changed)
        return np.where(self._value > -np.inf, value, -np.inf)

    def _step(self, frame_C: np.ndarray) -> None:
        """One frame of Viterbi; the later start is the shorter segment and wins ties."""
        gamma, parent, first = self._entering
        if self.frames:  # after boundary 0 the rows move up, and the last is free
            self._value = np.concatenate([self._value[1:], np.full_like(self._value[:1], -np.inf)])
            self._parent = np.concatenate([self._parent[1:], self._parent[:1]])
            self._first = np.concatenate([self._first[1:], self._first[:1]])
        coming = gamma + self._duration
        better = coming >= self._value
        self._value = self._added(np.where(better, coming, self._value), frame_C)
        self._parent = np.where(better, parent, self._parent)
        self._first = np.where(better, first, self._first)
        self.frames += 1
        self._require(self._value)
        if self.frames % REBASED == 0:
            self._value = self._value - self._taken_out(self._value.max())
        own_C = self.frames * len(frame_C) + np.arange(len(frame_C))
        self._first[0] = np.where(self._first[0] == OPEN, own_C, self._first[0])
        self._parents.append(self._parent[0].copy())

    def _added(self, value: np.ndarray, frame_C: np.ndarray) -> np.ndarray:
        """The values with a frame, less its best score where that is large: 1e30 would swallow all others."""
        top = frame_C.max(initial=-np.inf, where=(value > -np.inf).any(0))
        if np.isfinite(top) and abs(top) > LARGE:
            frame_C = frame_C - self._taken_out(top)
        added: np.ndarray = value + frame_C
        return added

    def _taken_out(self, shift: float) -> float:
        """A number that all values lose."""
        self._offset.add(torch.tensor(shift, dtype=torch.float64, device="cpu"))
        return shift

    def _settle(self) -> list[Final]:
        """What all survivors agree on, then what is due; and the survivors that enter the next frame."""
        done = self._agreed()
        if self.lag is not None and self.frames > self.lag:
            due = (self.frames - self.lag + 1) * self._duration.shape[1]  # ends at or before frames - lag
            if ((self._value > -np.inf) & (self._first >= 0) & (self._first < due)).any():
                best = np.unravel_index(int(np.argmax(self._value)), self._value.shape)
                way = self._path(int(self._survivors()[best]))
                done += self._emitted([node for node in way if node < due], forced=True)
                ended = (self._first >= 0) & (self._first < due)
                self._cut = bool((ended & (self._value > -np.inf)).any())
                self._value[ended | (self._first == DROPPED)] = -np.inf
                done += self._agreed()
            while self._parents and self._base <= self.frames - self.lag:
                self._forget()
        self._enter()
        return done

    def _enter(self) -> None:
        """What segments that start with the next frame begin from: value, node before, first node."""
        joined = self._value[0][:, None] + self._transition
        before = joined.argmax(-2)
        parent = self.frames * len(self._end) + before
        first = np.where(parent == self._root, OPEN, self._first[0][before])
        shape = self._value.shape
        self._entering = (joined.max(-2), np.broadcast_to(parent, shape), np.broadcast_to(first, shape))

    def _survivors(self) -> np.ndarray:
        """The last node of each survivor: its own where its segment ends here, else the one before it."""
        nodes: np.ndarray = self._parent.copy()
        nodes[0] = self.frames * len(self._end) + np.arange(len(self._end))
        return nodes

    def _agreed(self) -> list[Final]:
        """The segments that all survivors have in common."""
        alive = self._value > -np.inf
        first = self._first[alive]
        if first[0] < 0 or (first != first[0]).any():
            return []
        nodes = set(self._survivors()[alive].tolist())
        latest = [-node for node in nodes]
        heapq.heapify(latest)
        while len(nodes) > 1:
            node = -heapq.heappop(latest)
            nodes.discard(node)
            before = self._before(node)
            if before not in nodes:
                nodes.add(before)
                heapq.heappush(latest, -before)
        return self._emitted(self._path(nodes.pop()), forced=False)

    def _before(self, node: int) -> int:
        boundary, label = divmod(node, len(self._end))
        return int(self._parents[boundary - self._base][label])

    def _path(self, node: int) -> list[int]:
        """The nodes after the root up to this one."""
        path = []
        while node != self._root:
            path.append(node)
            node = self._before(node)
        return path[::-1]

    def _emitted(self, nodes: list[int], forced: bool) -> list[Final]:
        """The segments that end at these nodes, of which the last becomes the root."""
        labels, done = len(self._end), []
        for node in nodes:
            done.append(Final(max(self._root // labels, 0), *divmod(node, labels), forced or self._cut))
            self._root, self._cut = node, False
        if nodes:
            while self._parents and self._base <= self._root // labels:
                self._forget()
            self._reroot()
        return done

    def _reroot(self) -> None:
        """Find the first node after the new root again, of every node and survivor."""
        labels = len(self._end)
        table = np.full((len(self._parents), labels), DROPPED)

        def first_of(parent: np.ndarray, root_is: np.ndarray | int) -> np.ndarray:
            at = parent // labels - self._base
            known = np.where(at >= 0, table[at.clip(0), parent % labels], DROPPED) if len(table) else DROPPED
            found: np.ndarray = np.where(parent == self._root, root_is, known)
            return found

        for at, parent in enumerate(self._parents):
            table[at] = first_of(parent, (self._base + at) * labels + np.arange(labels))
        self._first[1:] = first_of(self._parent[1:], OPEN)
        own_C = self.frames * labels + np.arange(labels)
        ended_C = table[-1] if len(table) else np.full(labels, DROPPED)
        self._first[0] = np.where(own_C == self._root, OPEN, ended_C)

    def _forget(self) -> None:
        self._parents.popleft()
        self._base += 1

    def _require(self, value: np.ndarray) -> None:
        if not (value > -np.inf).any():
            raise BadDataError(
                f"no segmentation fits the first {self.frames} frames after what is final",
                fix="check masks and grammar, or, if segments were forced, take a larger lag",
            )
