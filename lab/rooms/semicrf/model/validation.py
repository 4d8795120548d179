"""Validation points: messages that begin with the guide's exact texts and continue with the place of the
fault.

Cheap enough to leave on: a point is one pass for the minimum and maximum of a tensor, kept on the device. All
points of a step travel in one small copy, which is read when the next step begins, long after it arrived.
Details are computed only after something was found. On a CPU there is nothing to wait for: points raise at
once.

The posterior mass is the main alarm. Guards against NaN miss a stale message or a wrong scale, because the
results stay finite. But then the labels of some frame no longer sum to probability 1, which is checked in
every backward pass on the counts that the kernels computed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import mass_by_durations, tolerance_of
from lab.rooms.semicrf.model.problem import FLOATS, LIMIT, Posteriors, inside, make_problem, onto

Model = dict[str, Tensor]
"""Scores and parameters by the names of api.py."""
Range = tuple[float, float]
"""From the smallest allowed number to the largest; NaN is in none."""
FINITE = (-sys.float_info.max, sys.float_info.max)
BACKENDS = {"torch": "PyTorch", "naive": "PyTorch"}
"""The guide's words."""
GRADIENTS = {
    "score_BTC": "grad_cum_scores",
    "transition_CC": "grad_transition",
    "duration_KC": "grad_duration_bias",
}


class Point(NamedTuple):
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
            self.watch("lengths", lengths, (1, frames), partial(_lengths, lengths, frames))
            within = inside(frames, lengths, labels.device)
            labels = torch.where(within, labels, torch.zeros_like(labels))
        self.watch("labels", labels, (0, classes - 1), partial(_labels, labels, classes))

    def scores(self, hidden: Tensor, score: Tensor, *, projected: bool) -> None:
        """The scores: after the projection, if there is one, and before the prefix sums."""
        if projected:
            self.watch("projection", score, (-math.inf, math.inf), partial(_projection, hidden, score))
        # -inf is a mask and legal; +inf and what is too large are not.
        self.watch("cumulative scores", score, (-math.inf, LIMIT), partial(_cumulative, score))

    def gold(
        self, gold_B: Tensor, model: Model, labels_BT: Tensor, starts_BT: Tensor, lengths_B: Tensor | None
    ) -> None:
        """The gold path's score; `starts_BT` are those of its pieces."""
        # Parameters move in the step before the point is read on a GPU; the forbidden ones stay.
        values = {name: value.detach() for name, value in model.items()}

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


class CRFWatch:
    """The points of one forward and backward pass through the CRF: partition, posterior mass, gradients.

    What is found on a GPU is reported one step later, when the optimizer has moved the parameters: so
    parameters are copied, and scores are kept detached, because a graph that its own hooks hold is never
    freed.
    """

    def __init__(self, validator: Validator, model: Model, lengths: Tensor | None, backend: str) -> None:
        self.validator, self.backend = validator, BACKENDS.get(backend, backend)
        self.lengths = None if lengths is None else lengths.long()
        by_sequence = ("score_BTC", *FLOATS[5:])
        self.by_sequence = {name: model[name].detach() for name in by_sequence if name in model}
        shared = [name for name in model if name not in by_sequence]
        self.shared = {name: model[name].detach().clone() for name in shared}
        self.mass_error_B: Tensor | None = None

    def partition(self, logZ_B: Tensor, model: Model) -> None:
        """Watch the forward pass's result now, and the backward pass's gradients when they come.

        `model` are views that only this pass holds: a hook on a parameter itself would stay for good.
        """
        value_B = logZ_B.detach()
        self.validator.watch("partition", value_B, FINITE, partial(self.partition_error, value_B))
        for name, title in GRADIENTS.items():
            if model[name].requires_grad:
                model[name].register_hook(partial(self.gradient, title))  # type: ignore[no-untyped-call]

    def posteriors(self, posteriors: Posteriors) -> None:
        """The mass of the counts that become gradients; the `alarm` of `log_partition`."""
        label_BTC = posteriors.label_BTC
        tolerance = tolerance_of(label_BTC.dtype, label_BTC.shape[1])
        lengths_B = label_BTC.shape[1] if self.lengths is None else onto(self.lengths, label_BTC.device)
        covered_B = mass_by_durations(posteriors.duration_BKC, lengths_B, posteriors.log_z_B)
        self.mass_error_B = torch.maximum(posteriors.mass_error_B, covered_B)
        error = partial(self.mass_error, label_BTC, self.mass_error_B, posteriors.mass_frame_B)
        self.validator.watch("posterior mass", self.mass_error_B, (-math.inf, tolerance), error)
        self.validator.watch("posteriors", label_BTC, (-tolerance, 1 + tolerance), error)

    def gradient(self, title: str, gradient: Tensor) -> None:
        self.validator.watch(title, gradient, FINITE, partial(self.gradient_error, gradient, title))

    def partition_error(self, logZ_B: Tensor) -> RuntimeError:
        b = first_place(~torch.isfinite(logZ_B))["b"]
        head = f"Non-finite partition from forward pass ({self.backend})"
        return RuntimeError(f"{head}: {counted(logZ_B)} [first b={b}; {self._replayed(b)}]")

    def mass_error(self, label_BTC: Tensor, mass_error_B: Tensor, frame_B: Tensor) -> RuntimeError:
        """Where and by how much; non-finite posteriors are reported in the guide's words for gradients."""
        if not bool(torch.isfinite(label_BTC).all()):
            return self.gradient_error(label_BTC, GRADIENTS["score_BTC"])
        beyond_B = torch.maximum(label_BTC - 1, -label_BTC).flatten(1).amax(1).double()
        error_B = torch.maximum(mass_error_B, beyond_B)
        b = int(error_B.argmax())
        head = f"Posterior mass is not 1 in CRF backward ({self.backend})"
        place = f"first b={b} t={int(frame_B[b])}; {self._replayed(b)}"
        return RuntimeError(f"{head}: worst error {float(error_B[b]):.1e} [{place}]")

    def gradient_error(self, gradient: Tensor, title: str) -> RuntimeError:
        place = where(~torch.isfinite(gradient))
        if self.mass_error_B is not None:
            place += f"; coverage {float(self.mass_error_B.max()):.1e}"
        head = f"Non-finite values in CRF backward ({self.backend})"
        return RuntimeError(f"{head}: {title} has {counted(gradient)} [{place}]")

    def _replayed(self, b: int) -> str:
        """Recompute by the plain float64 reference the log Z of sequence `b`."""
        length = self.by_sequence["score_BTC"].shape[1] if self.lengths is None else int(self.lengths[b])
        if length < 1:
            return "its length is 0"
        rows = {name: value[b : b + 1, :length].cpu() for name, value in self.by_sequence.items()}
        problem = make_problem(**rows, **{name: value.cpu() for name, value in self.shared.items()})
        replay = float(log_domain.log_partition(problem))
        if replay == -math.inf:
            closed = (problem.score_BTC[0] == -math.inf).all(dim=1).nonzero()
            reason = f": all scores are -inf at t={int(closed[0])}" if len(closed) else ""
            return f"fp64 replay is -inf: no segmentation is possible{reason}"
        return f"fp64 replay is finite, {replay:.6g}: the inputs are sound"


SPLIT = (
    "the segment is longer than max_duration={} and was split, which needs a finite self-transition: "
    "over_long='mask' leaves such sequences out, a larger max_duration holds them"
)


def forbidden_piece(model: Model, b: int, labels: list[int], starts: list[int]) -> str:
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
                frames = f"frames {start}..{end - 1} of label {label}"
                advice = f"; {SPLIT.format(longest)}" if split and name.startswith("trans") else ""
                return f"{frames}: {name} is {float(value):g}, which forbids{advice}"
    return "the sum of its terms is not finite"


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


def counted(tensor: Tensor) -> str:
    return f"{int(torch.isnan(tensor).sum())} NaN, {int(torch.isinf(tensor).sum())} Inf"


def _projection(hidden: Tensor, score: Tensor) -> ValueError:
    unsound, source = ~torch.isfinite(hidden), "the input is finite: the projection's weights are not"
    if bool(unsound.any()):
        source = f"the input has {counted(hidden)}: {where(unsound)}"
    place = f"{counted(score)}, {where(torch.isnan(score))}; {source}"
    return ValueError(f"hidden_states contains NaN values after projection layer [{place}]")


def _cumulative(score: Tensor) -> ValueError:
    bad = ~(score <= LIMIT)
    large = "" if bool((~torch.isfinite(score))[bad].any()) else f": above {LIMIT:g}"
    place = f"{counted(score)}, {where(bad)}{large}"
    return ValueError(f"NaN detected in cumulative scores after cumsum [{place}]")


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
