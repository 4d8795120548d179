"""Validation points: messages that begin with the guide's exact texts and continue with the place of the
fault.

Cheap enough to leave on: a point is one pass for the minimum and maximum of a tensor, kept on the device. All
points of a step travel in one small copy, which is read when the next step begins, long after it arrived.
Details are computed only after something was found. On a CPU there is nothing to wait for: points raise at
once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.config import DRIFT
from lab.rooms.semicrf.model.problem import LIMIT, inside

NAMES = {"torch": "PyTorch", "naive": "PyTorch", "native": "native"}
Range = tuple[float, float]
"""From the smallest allowed number to the largest; NaN is in none."""
FINITE = (-sys.float_info.max, sys.float_info.max)


@dataclass(frozen=True)
class Point:
    """One watched tensor; `low_high` (2,) are its minimum and maximum in float64, NaN if it holds one."""

    name: str
    low_high: Tensor
    allowed: Range
    error: Callable[[], Exception]

    def check(self, low: float, high: float) -> None:
        if not (self.allowed[0] <= low and high <= self.allowed[1]):
            raise self.error()


class Validator:
    """Collects points and raises for the first invalid one, in the order of computation.

    `settle()` begins each step and, with `wait`, ends the last one; it raises what an earlier step found.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.travelling: tuple[list[Point], Tensor, Any] | None = None

    def watch(self, name: str, tensor: Tensor, allowed: Range, error: Callable[[], Exception]) -> None:
        """Note the minimum and maximum of `tensor`; on a CPU raise `error()` at once if they are outside."""
        if tensor.numel() == 0:
            return
        point = Point(name, torch.stack(torch.aminmax(tensor.detach())).double(), allowed, error)
        if tensor.device.type == "cpu":
            point.check(*point.low_high.tolist())
        else:
            self.points.append(point)

    def settle(self, *, wait: bool = False) -> None:
        """Read what has arrived, then send what was noted since; with `wait` read that too."""
        self._look()
        if self.points:
            together = torch.stack([point.low_high for point in self.points])
            # Pinned, because a copy to other memory waits for the GPU.
            arrived = torch.empty(together.shape, dtype=together.dtype, device="cpu", pin_memory=True)
            arrived.copy_(together, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self.travelling, self.points = (self.points, arrived, event), []
        if wait:
            self._look()

    def _look(self) -> None:
        if self.travelling is None:
            return
        points, arrived, event = self.travelling
        event.synchronize()
        self.travelling = None
        noted, self.points = self.points, []
        for point, low_high in zip(points, arrived.tolist(), strict=True):
            point.check(*low_high)
        self.points = noted

    def inputs(self, hidden: Tensor, lengths: Tensor | None, labels: Tensor, classes: int) -> None:
        """Shapes at once; lengths and labels as one point each. Labels past a sequence's end are ignored."""
        if hidden.dim() != 3:
            raise ValueError(f"hidden_states must be 3D (batch, T, features), got {hidden.dim()}D")
        frames = hidden.shape[1]
        if lengths is not None:
            self.watch("lengths", lengths, (1, frames), lambda: _lengths(lengths, frames))
            within = inside(frames, lengths, labels.device)
            labels = torch.where(within, labels, torch.zeros_like(labels))
        self.watch("labels", labels, (0, classes - 1), lambda: _labels(labels, classes))

    def scores(self, hidden: Tensor, score: Tensor, *, projected: bool) -> None:
        """The scores: after the projection, if there is one, and before the prefix sums."""
        if projected:
            self.watch("projection", score, (-math.inf, math.inf), lambda: _projection(hidden, score))
        # -inf is a mask and legal; +inf and what is too large are not.
        self.watch("cumulative scores", score, (-math.inf, LIMIT), lambda: _cumulative(score))

    def gold(
        self,
        gold_B: Tensor,
        score_BTC: Tensor,
        model: dict[str, Tensor],
        labels_BT: Tensor,
        starts_BT: Tensor,
        lengths_B: Tensor | None,
    ) -> None:
        """The gold path's score; `model` has the parameters by name, `starts_BT` those of its pieces."""
        # Parameters move in the step before the point is read on a GPU; the forbidden ones stay.
        values = {"score_BTC": score_BTC.detach(), **{name: x.detach() for name, x in model.items()}}

        def error() -> ValueError:
            b = first_place(~torch.isfinite(gold_B))["b"]
            length = labels_BT.shape[1] if lengths_B is None else int(lengths_B[b])
            pieces = starts_BT[b, :length].nonzero()[:, 0].tolist()
            reason = forbidden_piece(values, b, labels_BT[b, :length].tolist(), pieces)
            score = float(gold_B[b].detach())
            return ValueError(
                f"gold path has score {score}, so the loss is infinite or NaN [first b={b}: {reason}]"
            )

        self.watch("gold path", gold_B, FINITE, error)


def forbidden_piece(model: dict[str, Tensor], b: int, labels: list[int], starts: list[int]) -> str:
    """The first piece of a gold path that is not finite: its frames, its label, and what forbids it."""
    longest = len(model["duration_KC"])
    previous_start = 0
    for start, end in zip(starts, [*starts[1:], len(labels)], strict=True):
        label, previous = labels[start], labels[start - 1] if start else -1
        split = bool(start) and previous == label and start - previous_start == longest
        previous_start = start
        k = end - start - 1
        terms = {
            f"start[{label}]": model["start_C"][label] if not start else None,
            f"transition[{previous}, {label}]": model["transition_CC"][previous, label] if start else None,
            f"duration of {plural(end - start, 'frame')}": model["duration_KC"][k, label],
            f"end[{label}]": model["end_C"][label] if end == len(labels) else None,
            **{f"score at t={t}": model["score_BTC"][b, t, label] for t in range(start, end)},
        }
        places: dict[str, tuple[int, ...]]
        places = {"seg_start_BTC": (b, start), "seg_end_BTC": (b, end - 1), "segment_BTKC": (b, start, k)}
        terms |= {name: model[name][place][label] for name, place in places.items() if name in model}
        for name, value in terms.items():
            if value is not None and not float(value) > -LIMIT:
                reason = (
                    f"frames {start}..{end - 1} of label {label}: {name} is {float(value):g}, which forbids"
                )
                return f"{reason}; {SPLIT.format(longest)}" if split and name.startswith("trans") else reason
    return "the sum of its terms is not finite"


SPLIT = (
    "the segment is longer than max_duration={} and was split, which needs a finite self-transition: "
    "over_long='mask' leaves such sequences out, a larger max_duration holds them"
)


def backend_name(backend: str, tensor: Tensor) -> str:
    """The guide's word for a backend, `auto` resolved; it has none for `native`."""
    if backend == "auto":
        from lab.rooms.semicrf.model.api import resolve_backend

        backend = resolve_backend(backend, tensor)
    return NAMES.get(backend, backend)


def drift_messages(epoch: int, transition_max: float, duration_max: float) -> list[tuple[str, str]]:
    """(level, text) to log at the end of an epoch, in the guide's words."""
    sizes = f"transition_max={transition_max:.4f}, duration_bias_max={duration_max:.4f}"
    messages = [("DEBUG", f"Epoch {epoch} CRF params: {sizes}")]
    if transition_max > DRIFT or duration_max > DRIFT:
        messages.append(
            (
                "WARNING",
                f"Epoch {epoch}: CRF parameters drifting high! trans_max={transition_max:.2f}, "
                f"dur_max={duration_max:.2f}. Consider increasing --crf-reg.",
            )
        )
    return messages


def first_place(bad: Tensor) -> dict[str, int]:
    """Coordinates of the first True in the order of computation: by time, then sequence, then label.

    Axes are named by their number: (B, T, C), (B,), and (row, column) of parameters.
    """
    places = bad.nonzero()
    if bad.dim() == 3:
        b, t, c = min(places.tolist(), key=lambda place: (place[1], place[0], place[2]))
        return {"b": b, "t": t, "c": c}
    names = {1: ("b",), 2: ("row", "column")}[bad.dim()]
    return dict(zip(names, places[0].tolist(), strict=True))


def where(bad: Tensor) -> str:
    return "first " + " ".join(f"{name}={at}" for name, at in first_place(bad).items())


def _projection(hidden: Tensor, score: Tensor) -> ValueError:
    bad = torch.isnan(score)
    unsound = torch.isnan(hidden) | torch.isinf(hidden)
    source = (
        f"the input has {counted(hidden)}: {where(unsound)}"
        if bool(unsound.any())
        else "the input is finite: the projection's weights are not"
    )
    return ValueError(
        f"hidden_states contains NaN values after projection layer [{counted(score)}, {where(bad)}; {source}]"
    )


def _cumulative(score: Tensor) -> ValueError:
    bad = ~(score <= LIMIT)
    large = "" if bool((torch.isnan(score) | torch.isinf(score))[bad].any()) else f": above {LIMIT:g}"
    return ValueError(
        f"NaN detected in cumulative scores after cumsum [{counted(score)}, {where(bad)}{large}]"
    )


def _lengths(lengths: Tensor, frames: int) -> ValueError:
    low, high = int(lengths.min()), int(lengths.max())
    if low < 1:
        return ValueError(f"lengths must be positive, got min={low} [{where(lengths < 1)}]")
    return ValueError(f"lengths cannot exceed T={frames}, got max={high} [{where(lengths > frames)}]")


def _labels(labels: Tensor, classes: int) -> ValueError:
    bad = (labels < 0) | (labels >= classes)
    b, t = bad.nonzero()[0].tolist()
    span = f"[{int(labels.min())}, {int(labels.max())}]"
    return ValueError(f"labels must be in [0, {classes}), got range {span} [first b={b} t={t}]")


def counted(tensor: Tensor) -> str:
    return f"{int(torch.isnan(tensor).sum())} NaN, {int(torch.isinf(tensor).sum())} Inf"
