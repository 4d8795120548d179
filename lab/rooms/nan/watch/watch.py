"""The watch: every call of every module of a model, with what went in and what came out, counted.

While the model runs, references are collected (`recorder`). When the outermost call ends, all tensors are
counted together (`count`), and only if something is bad are the calls put into order to name who made it
(`explain`, `roles`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from lab.errors import LabError, UsageError
from lab.rooms.nan.watch.batch import Label
from lab.rooms.nan.watch.choose import choose_counter, counter_named
from lab.rooms.nan.watch.explain import Explainer
from lab.rooms.nan.watch.forward import Forward, Seen
from lab.rooms.nan.watch.recorder import Recorder
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.steps import Step, Total
from lab.rooms.nan.watch.totals import RunningTotals, add_counts

MOST_KEPT = 64  # forwards with bad numbers that are kept call by call


class NonFiniteError(LabError, FloatingPointError):
    """A watched forward made a NaN or an infinity, and the watch was asked to stop there."""

    exit_code = 1


class Watch(Recorder):
    """Watches a model between `__enter__` and `__exit__`.

    counter: "kernel", "bits", "norm" or "plain" (default: the best on the model's device). on_bad: "keep"
    goes on, "raise" raises NonFiniteError after the forward that went bad, a function is called with its
    `Step`. budget_bytes: what references may hold before they are counted and let go. keep_rows: keep call by
    call the first forward of a phase too.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        counter: str | None = None,
        on_bad: str | Callable[[Step], None] = "keep",
        budget_bytes: int | None = None,
        keep_rows: bool = True,
        check_weights: bool = True,
    ) -> None:
        if on_bad not in ("keep", "raise") and not callable(on_bad):
            raise UsageError(f"invalid on_bad: {on_bad!r}", fix='use "keep", "raise" or a function of a Step')
        _refuse_fused_or_copied(model)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        if counter is None:
            self.counter, count, self.counter_reason = choose_counter(device)
        else:
            self.counter, count, self.counter_reason = counter, counter_named(counter), "asked for"
        super().__init__(model, count, budget_bytes or _budget(device))
        self.on_bad, self.keep_rows, self.check_weights = on_bad, keep_rows, check_weights
        self.steps: list[Step] = []
        self.weights: list[dict[str, Any]] = []
        self._count = count
        self._explainer = Explainer(self._names, self._modules)
        self._totals: dict[tuple[str, tuple[Label, ...]], RunningTotals] = {}
        self._last: dict[str, RunningTotals] = {}  # by phase
        self._kept = 0  # steps with rows

    def __enter__(self) -> Watch:
        self.refuse_second_use()
        if self.check_weights:
            self.weights += self._explainer.check_weights(self._count)
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    @property
    def first(self) -> Birth | None:
        """The first place where bad numbers were made; None while all is finite."""
        step = self.first_step
        return step.births[0] if step else None

    @property
    def first_step(self) -> Step | None:
        return next((step for step in self.steps if step.births), None)

    @property
    def clean(self) -> bool:
        return not any(step.bad_leaves for step in self.steps) and not self.weights

    def totals(self) -> list[Total]:
        """All calls, summed by module, side, leaf and phase."""
        found: dict[tuple[int, int, str, str], Total] = {}
        for part in self._totals.values():
            for at, (module, side, leaf) in enumerate(part.labels):
                key = (module, side, leaf, part.phase)
                if key not in found:
                    kind = type(self._modules[module]).__name__
                    words = (self._names[module], kind, ("in", "out")[side], leaf, part.phase)
                    found[key] = Total(*words, part.dtypes[at])
                    found[key].counts[3:] = -1
                total = found[key]
                total.calls += part.calls
                total.numel += part.calls * int(part.sizes[at])
                add_counts(total.counts, part.counts[at])
                bad_step = int(part.first_bad[at])
                if bad_step >= 0 and (total.first_bad_step < 0 or bad_step < total.first_bad_step):
                    total.first_bad_step = bad_step
        return list(found.values())

    def next_number(self) -> int:
        return len(self.steps)

    def take(self, forward: Forward, seen: Seen) -> None:
        """Turn a forward into the next step."""
        step = Step(forward.number, forward.phase, forward.query_length)
        bad = None
        if np.count_nonzero(seen.counts[:, :3]):
            bad = np.append(seen.counts[:, :3].sum(axis=1) > 0, False)[seen.index]  # -1 takes the added False
            step.bad_leaves = int(bad.sum())
            self._explainer.explain(step, forward, seen, bad, self.steps)
        first_of_phase = forward.phase not in self._last
        self._sum_up(step, seen, bad)
        if (bad is not None and self._kept < MOST_KEPT) or (self.keep_rows and first_of_phase):
            self._kept += 1
            step.rows = self._explainer.rows(forward, seen, bad)
        self.steps.append(step)

    def react(self) -> None:
        """The model's call has ended without an exception: stop or call back if it went bad."""
        step = self.steps[-1]
        if step.bad_leaves and self.on_bad == "raise":
            place = step.births[0].place if step.births else "at an unknown place"
            raise NonFiniteError(
                f"NaN or infinity first seen {place}", where=f"step {step.number} ({step.phase})"
            )
        if step.bad_leaves and callable(self.on_bad):
            self.on_bad(step)

    def _sum_up(self, step: Step, seen: Seen, bad: np.ndarray | None) -> None:
        """Add this forward to the running totals of forwards with the same calls."""
        part = self._last.get(step.phase)
        if part is None or (part.labels is not seen.labels and part.labels != seen.labels):
            key = (step.phase, tuple(seen.labels))
            if key not in self._totals:
                self._totals[key] = RunningTotals(
                    step.phase, seen.labels, seen.leaf_dtypes(), seen.leaf_numel()
                )
            part = self._last[step.phase] = self._totals[key]
        part.add(step, seen, bad)


def _budget(device: torch.device) -> int:
    """A quarter of the free memory, at most 4 GiB."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(free // 4, 4 << 30)
    return 1 << 30


def _refuse_fused_or_copied(model: nn.Module) -> None:
    """Raises UsageError for models whose modules do not run as Python calls one by one."""
    kinds = {type(module).__name__ for module in model.modules()}
    if isinstance(model, torch.jit.ScriptModule) or "OptimizedModule" in kinds:
        raise UsageError(
            "a compiled model cannot be watched: its modules are fused into one program",
            fix="watch the model before torch.compile or torch.jit",
        )
    if "DataParallel" in kinds:
        raise UsageError(
            "nn.DataParallel copies the model for every call", fix="watch the model inside it, on one GPU"
        )
