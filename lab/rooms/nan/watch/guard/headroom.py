"""Before the NaN: how much of a format's range is used, what a narrower one would lose, and the trend.

A class is (activation | gradient | weight | optimizer, dtype). Its largest magnitude is known at every step
from the counts; the shares come from a sample every few steps. They are of the values BEFORE a cast.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.plain import quiet
from lab.rooms.nan.watch.unseen_by_compile import passes_on

# largest, least normal, least subnormal number
FORMATS = {
    "float16": (65504.0, 2.0**-14, 2.0**-24),
    "bfloat16": (3.3895313892515355e38, 2.0**-126, 2.0**-133),
    "float8_e4m3fn": (448.0, 2.0**-6, 2.0**-9),
    "float8_e5m2": (57344.0, 2.0**-14, 2.0**-16),
}
CLASS = {
    "forward": "activation",
    "act_grads": "gradient",
    "param_grads": "gradient",
    "weights_after": "weight",
    "opt_state": "optimizer",
}
STAGE = {
    "activation": "forward",
    "gradient": "param_grads",
    "weight": "weights_after",
    "optimizer": "opt_state",
}
SAMPLE = 4096  # values of one tensor
MOST_TENSORS = 512
KEPT = 256  # steps of the trend
FIRST_STEPS = 32
# Once these are over: magnitudes so many times as often as asked for, shares so many times as seldom.
MAGNITUDES, SHARES = 2, 16
LEAST_POINTS, LEAST_FIT, MOST_AHEAD = 12, 0.9, 1000
LEAST_SLOPE = 1e-4  # bits per step


@dataclass(frozen=True)
class Shares:
    """What a cast to one format would do to a sample of one class."""

    format: str
    overflow: float
    underflow: float  # of the values that are not zero
    subnormal: float
    saturated: float  # already at the largest number, if this is the values' own format


@dataclass(frozen=True)
class Trend:
    """A straight line through log2 of the largest magnitude; only if it fits."""

    bits_per_step: float
    fit: float  # r squared
    steps_left: dict[str, float]  # by format: until its largest number is passed


class Headroom:
    """Follows the largest magnitudes of each class and samples shares every `every` steps (0: never)."""

    def __init__(self, every: int) -> None:
        self.every, self.magnitudes_every = every, max(1, every // MAGNITUDES)
        self.peaks: dict[tuple[str, str], float] = {}  # the largest magnitude of each class so far
        self.shares: dict[tuple[str, str], list[Shares]] = {}
        self.sampled_at = -1  # step of the newest shares
        self.latest: dict[tuple[str, str], float] = defaultdict(float)  # magnitudes of this step
        # (step, log2 of its largest magnitude) of each class
        self._points: dict[tuple[str, str], deque[tuple[int, float]]]
        self._points = defaultdict(lambda: deque(maxlen=KEPT))

    def met(self, stage: str, dtype: str, largest: float) -> None:
        """A tensor of this stage and type passed, with this largest finite magnitude."""
        if stage in CLASS and largest > 0:
            key = CLASS[stage], dtype
            self.latest[key] = max(self.latest[key], largest)

    def met_all(self, of: Sequence[tuple[str, torch.dtype]], largest: np.ndarray) -> None:
        """Many tensors of these stages and types at once."""
        groups: dict[tuple[str, torch.dtype], float] = {}
        for key, magnitude in zip(of, largest.tolist(), strict=True):
            if magnitude > groups.get(key, 0.0):
                groups[key] = magnitude
        for (stage, dtype), magnitude in groups.items():
            self.met(stage, str(dtype)[6:], magnitude)

    def met_tensors(self, stage: str, dtypes: Sequence[torch.dtype], largest: np.ndarray) -> None:
        """Many tensors of one stage, as a rule of one type."""
        kinds = {*dtypes}
        if len(kinds) == 1:
            self.met(stage, str(kinds.pop())[6:], float(largest.max()))
        else:
            self.met_all([(stage, one) for one in dtypes], largest)

    @passes_on
    def has_points(self, step: int) -> bool:
        """Whether there is anything to keep at the end of this step."""
        return bool(self.latest) or self.due(step)

    @passes_on
    def due(self, step: int) -> bool:
        """Whether shares are sampled in this step."""
        if not self.every:
            return False
        return step % (self.every if step <= FIRST_STEPS else self.every * SHARES) == 0

    def magnitudes_due(self, step: int) -> bool:
        """Whether largest magnitudes are counted in this step, where they cost extra: at first in each."""
        return bool(self.every) and (step < FIRST_STEPS or step % self.magnitudes_every == 0)

    def step_ends(self, guard: Any, states: Iterable[Tensor]) -> None:
        """A step is over: sample weights and gradients now and then, and add its point."""
        if self.due(guard.step):
            self.sampled_at = guard.step
            self.sample("optimizer", states)
            self.sample("weight", guard.model.parameters())
            self.sample("gradient", (one.grad for one in guard.model.parameters() if one.grad is not None))
        for key, largest in self.latest.items():
            self.peaks[key] = max(self.peaks.get(key, 0.0), largest)
            self._points[key].append((guard.step, math.log2(largest)))
        self.latest.clear()

    def sample(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Shares of a strided sample of each tensor."""
        by_type: dict[str, list[Tensor]] = defaultdict(list)
        for tensor in list(tensors)[:MOST_TENSORS]:
            local = getattr(tensor, "_local_tensor", tensor)
            if local.layout is torch.strided and local.is_floating_point() and local.numel():
                by_type[str(local.dtype)[6:]].append(local)
        for dtype, group in by_type.items():
            values = quiet(_sampled, group)
            self.shares[kind, dtype] = quiet(partial(shares_of, dtype=dtype), values)
            self.met(STAGE[kind], dtype, quiet(_largest, values))

    def trend(self, key: tuple[str, str]) -> Trend | None:
        """The trend of a class; None if there are too few points or no line fits them."""
        return trend_of(self._points.get(key, ()))

    def sentences(self) -> list[str]:
        """What is near the edge of a format, or on its way there."""
        sentences = []
        for key in self.peaks:
            kind, dtype = key
            if dtype in FORMATS and self.peaks[key] > FORMATS[dtype][0] / 2:
                left = math.log2(FORMATS[dtype][0] / self.peaks[key])
                sentences.append(
                    f"{kind} in {dtype}: largest {self.peaks[key]:.4g}, {left:.1f} bits below its limit"
                )
            trend = self.trend(key)
            for name, steps in (trend.steps_left if trend else {}).items():
                if trend is not None:
                    sentences.append(
                        f"{kind} ({dtype}) leaves {name} in about {steps:.0f} steps at this slope "
                        f"({trend.bits_per_step:+.3f} bits per step, r2 {trend.fit:.2f})"
                    )
        return sentences


def _sampled(tensors: Sequence[Tensor]) -> Tensor:
    parts = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        parts.append(flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].float())
    values = torch.cat(parts).abs()
    return values[torch.isfinite(values)] if bool(torch.isfinite(values).any()) else values.new_zeros(1)


def _largest(values: Tensor) -> float:
    return float(values.amax())


def shares_of(values: Tensor, dtype: str) -> list[Shares]:
    """Shares of `values` (magnitudes, float32) that each format would lose; zeros underflow nowhere."""
    count = values.numel()
    nonzero = values[values > 0]
    shares = []
    for name, (largest, normal, smallest) in FORMATS.items():
        over = float((values > largest).sum()) / count
        under = float((nonzero <= smallest / 2).sum()) / max(nonzero.numel(), 1)
        low = float(((nonzero > smallest / 2) & (nonzero < normal)).sum()) / max(nonzero.numel(), 1)
        at_edge = float((values >= largest).sum()) / count if name == dtype else 0.0
        shares.append(Shares(name, over, under, low, at_edge))
    return shares


def trend_of(points: Iterable[tuple[int, float]]) -> Trend | None:
    """A line through (step, log2 of the largest), only if it fits and rises."""
    pairs = list(points)
    if len(pairs) < LEAST_POINTS:
        return None
    steps = [float(step) for step, _ in pairs]
    bits = [value for _, value in pairs]
    mean_step, mean_bits = sum(steps) / len(steps), sum(bits) / len(bits)
    across = sum((one - mean_step) ** 2 for one in steps)
    total = sum((one - mean_bits) ** 2 for one in bits)
    if across == 0 or total == 0:
        return None
    slope = sum((s - mean_step) * (b - mean_bits) for s, b in zip(steps, bits, strict=True)) / across
    residual = sum((b - mean_bits - slope * (s - mean_step)) ** 2 for s, b in zip(steps, bits, strict=True))
    fit = 1 - residual / total
    if (
        fit < LEAST_FIT or slope < LEAST_SLOPE
    ):  # of 12 points, such a fit is nine standard errors of the slope
        return None
    bits_now = mean_bits + slope * (steps[-1] - mean_step)
    left = {
        name: (math.log2(largest) - bits_now) / slope
        for name, (largest, _, _) in FORMATS.items()
        if bits_now < math.log2(largest)
    }
    near = {name: steps for name, steps in left.items() if steps <= MOST_AHEAD}
    return Trend(slope, fit, near)
