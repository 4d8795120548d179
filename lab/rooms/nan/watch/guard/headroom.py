"""Before the NaN: how much of a format's range is used, and what a narrower one would lose.

A class is (activation | gradient | weight | optimizer, dtype). Its largest magnitude is known at every step
from the counts; the shares come from a sample every few steps. They are of the values BEFORE a cast.
"""

from __future__ import annotations

from collections import defaultdict
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
FIRST_STEPS = 32
# Once these are over: magnitudes so many times as often as asked for, shares so many times as seldom.
MAGNITUDES, SHARES = 2, 16


@dataclass(frozen=True)
class Shares:
    """What a cast to one format would do to a sample of one class."""

    format: str
    overflow: float
    underflow: float  # of the values that are not zero
    subnormal: float
    saturated: float  # already at the largest number, if this is the values' own format


class Headroom:
    """Follows the largest magnitudes of each class and samples shares every `every` steps (0: never)."""

    def __init__(self, interval: int) -> None:
        self.interval, self.magnitudes_every = interval, max(1, interval // MAGNITUDES)
        self.peaks: dict[tuple[str, str], float] = {}  # the largest magnitude of each class so far
        self.shares: dict[tuple[str, str], list[Shares]] = {}
        self.sampled_at = -1  # step of the newest shares
        self.latest: dict[tuple[str, str], float] = defaultdict(float)  # magnitudes of this step

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
            self.met_all([(stage, dtype) for dtype in dtypes], largest)

    @passes_on
    def has_points(self, step: int) -> bool:
        """Whether there is anything to keep at the end of this step."""
        return bool(self.latest) or self.due(step)

    @passes_on
    def due(self, step: int) -> bool:
        """Whether shares are sampled in this step."""
        if not self.interval:
            return False
        return step % (self.interval if step <= FIRST_STEPS else self.interval * SHARES) == 0

    def magnitudes_due(self, step: int) -> bool:
        """Whether largest magnitudes are counted in this step, where they cost extra: at first in each."""
        return bool(self.interval) and (step < FIRST_STEPS or step % self.magnitudes_every == 0)

    def step_ends(self, guard: Any, states: Iterable[Tensor]) -> None:
        """A step is over: sample weights and gradients now and then."""
        if self.due(guard.step):
            self.sampled_at = guard.step
            self.sample("optimizer", states)
            self.sample("weight", guard.model.parameters())
            self.sample(
                "gradient",
                (parameter.grad for parameter in guard.model.parameters() if parameter.grad is not None),
            )
        for key, largest in self.latest.items():
            self.peaks[key] = max(self.peaks.get(key, 0.0), largest)
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

    def sentences(self) -> list[str]:
        """The largest magnitude of each class, and its share of its type's range."""
        sentences = []
        for (kind, dtype), peak in self.peaks.items():
            share = peak / torch.finfo(getattr(torch, dtype)).max
            part = f"{share:.1%}" if share >= 1e-3 else "less than 0.1%"
            sentences.append(f"{kind} in {dtype}: largest {peak:.4g}, {part} of what the type can hold")
        return sentences

    def near_edge(self) -> list[str]:
        """The sentences of classes that use more than half of their type's range."""
        sentences = self.sentences()
        near = [dtype in FORMATS and peak * 2 > FORMATS[dtype][0] for (_, dtype), peak in self.peaks.items()]
        return [text for text, is_near in zip(sentences, near, strict=True) if is_near]


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
