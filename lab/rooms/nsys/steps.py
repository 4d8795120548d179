"""What a set of GPU operations cost in each step: the one place where the figures of phases come from.

A step is one range (an instance), whatever its number: two ranges `step_0` are two steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.stats import intervals


@dataclass(frozen=True)
class StepFigures:
    """Arrays (steps,): counts of kernels and of copies and fills; kernel time, time busy, and span, in ns."""

    kernels: np.ndarray
    copies_and_fills: np.ndarray
    kernel_ns: np.ndarray
    busy_ns: np.ndarray
    span_ns: np.ndarray

    @property
    def same_launches(self) -> bool:
        return bool((self.kernels == self.kernels[:1]).all())


def step_figures(
    start_ns: np.ndarray, end_ns: np.ndarray, kernel: np.ndarray, step: np.ndarray, num_steps: int
) -> StepFigures:
    """Figures of operations (n,): `kernel` marks the kernels, `step` is the step of each, -1 outside."""
    inside = np.flatnonzero(step >= 0)
    start_ns, end_ns, step, kernel = start_ns[inside], end_ns[inside], step[inside], kernel[inside]
    first_ns = np.full(num_steps, np.iinfo(np.int64).max)
    last_ns = np.full(num_steps, np.iinfo(np.int64).min)
    np.minimum.at(first_ns, step, start_ns)
    np.maximum.at(last_ns, step, end_ns)
    has_ops = np.bincount(step, minlength=num_steps) > 0
    kernels = np.bincount(step[kernel], minlength=num_steps)
    return StepFigures(
        kernels=kernels,
        copies_and_fills=np.bincount(step, minlength=num_steps) - kernels,
        kernel_ns=summed(end_ns - start_ns, np.where(kernel, step, -1), num_steps),
        busy_ns=intervals.totals(np.stack([start_ns, end_ns], axis=1), step, num_steps),
        span_ns=np.where(has_ops, last_ns - np.where(has_ops, first_ns, 0), 0),
    )


def summed(values: np.ndarray, step: np.ndarray, num_steps: int) -> np.ndarray:
    """Sums (steps,) of integers (n,) by step; -1 is left out."""
    sums = np.zeros(num_steps, dtype=np.int64)
    np.add.at(sums, step[step >= 0], values[step >= 0])
    return sums


def sample_sd(values: np.ndarray) -> float:
    """Sample standard deviation; 0 for a single value, as nsys writes it."""
    return float(np.asarray(values, dtype=float).std(ddof=1)) if len(values) > 1 else 0.0
