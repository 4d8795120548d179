"""Kernels of no phase that were launched while another thread had a range open: a phase by another name?"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import PUSH_POP, Capture
from lab.recordings.phase_names import PHASES, is_step, is_warmup
from lab.recordings.projection.nest import RangeForest
from lab.recordings.projection.result import AMBIGUOUS, Projection
from lab.recordings.projection.threads import has_above, phase_elsewhere


@dataclass(frozen=True)
class Offer:
    """Kernels that would belong to ranges whose name fits `pattern`, if these were a phase."""

    name: str
    pattern: str
    kernels: int
    kernel_ms: float

    @property
    def sentence(self) -> str:
        kernels = plural(self.kernels, "kernel")
        return f"{kernels} ran under `{self.name}`: --phase {shlex.quote(self.pattern)}"


def offers(projection: Projection, phases: re.Pattern[str] = PHASES) -> tuple[Offer, ...]:
    """What other ranges could own, costliest first; () for `attribution="nsys"`, which asks one thread only.

    Counted are kernels without a phase or a step around them on their own thread, and without an inherited
    phase, while exactly one other thread of the process had a range of the program open; it is the
    innermost that counts. Names that differ in numbers only are one offer.
    """
    capture = projection.capture
    if projection.attribution == "nsys" or not len(capture.ranges):
        return ()
    wanted, phase, step = _kinds(capture, phases)
    wanted[projection.instances.level < 0] = False
    has_phase = has_above(projection.instances.parent, projection.ops.range, phase | step)
    lent = has_above(projection.instances.parent, projection.ops.inherited, phase)
    open_ones = (projection.ops.api >= 0) & capture.kernels & (projection.ops.rule != AMBIGUOUS)
    lost = np.flatnonzero(open_ones & ~has_phase & ~lent)
    if not len(lost) or not wanted.any():
        return ()
    nest = RangeForest(capture)
    elsewhere, count = phase_elsewhere(capture, nest, projection.ops.api[lost], np.flatnonzero(wanted))
    elsewhere[count != 1] = -1
    return _by_name(capture, lost[elsewhere >= 0], elsewhere[elsewhere >= 0])


def _kinds(capture: Capture, phases: re.Pattern[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks of `ranges`: the program's own ranges that are neither phase nor step; phases; steps."""
    texts = capture.strings
    names = capture.ranges.name_id
    phase = np.array([*(bool(phases.fullmatch(text)) for text in texts), False])[names]
    step = np.array([*(is_step(text) or is_warmup(text) for text in texts), False])[names]
    library = np.array([*("::" in text or "#" in text for text in texts), True])[names]
    return (capture.ranges.kind == PUSH_POP) & ~(phase | step | library), phase, step


def _by_name(capture: Capture, ops: np.ndarray, rows: np.ndarray) -> tuple[Offer, ...]:
    dur_ns = capture.ops.end_ns[ops] - capture.ops.start_ns[ops]
    groups: dict[str, list[int]] = {}
    used, name_index = np.unique(capture.ranges.name_id[rows], return_inverse=True)
    numbers = [re.sub(r"\d+", "0", capture.name(int(name))) for name in used]
    for index, text in enumerate(numbers):
        groups.setdefault(text, []).append(index)
    offers_by_name = []
    for members in groups.values():
        of_name = np.isin(name_index, members)
        example = capture.name(int(used[members[0]]))
        pattern = re.escape(example).replace("\\ ", " ").replace("\\-", "-")
        if len(members) > 1:
            pattern = re.sub(r"\d+", r"\\d+", pattern)
        name = example if len(members) == 1 else f"{example} and the like"
        offers_by_name.append(Offer(name, pattern, int(of_name.sum()), float(dur_ns[of_name].sum()) / 1e6))
    return tuple(sorted(offers_by_name, key=lambda offer: (-offer.kernel_ms, offer.name)))
