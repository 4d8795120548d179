"""The watch: every call of every module of a model, with what went in and what came out, counted.

While the model runs, references are collected (`recorder`). When the outermost call ends, all tensors are
counted together (`count`), and only if something is bad are the calls put into order to name who made it
(`explain`, `roles`).
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from lab.core.words import plural
from lab.errors import LabError, MissingError, UsageError
from lab.rooms.nan.watch.count import Counter, NativeCounts, norm_counts, plain_counts
from lab.rooms.nan.watch.explain import Explainer, Judged, RunningTotals, Step, Total, add_counts
from lab.rooms.nan.watch.forward import RECOMPUTE, Forward, Label
from lab.rooms.nan.watch.leaves import CACHE, FP8
from lab.rooms.nan.watch.native import library, library_state
from lab.rooms.nan.watch.recorder import Recorder
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.seam import Modules

MOST_KEPT = 64  # forwards with bad numbers that are kept call by call
MOST_STEPS = 20_000  # forwards in `steps`; `forwards` and `totals` count all


def choose_counter(device: torch.device) -> tuple[str, Counter, str]:
    """(name, function, reason) of the best way on `device`."""
    if device.type != "cuda":
        name = "bits" if library() is not None else "plain"
        return name, counter_named(name), f"the model is not on a GPU ({library_state()})"
    try:
        return "kernel", counter_named("kernel"), "Triton is available"
    except MissingError as error:
        return "norm", norm_counts, f"Triton is not available ({error.__cause__})"


def counter_named(name: str) -> Counter:
    """The counter of this name. Raises UsageError for an unknown name, MissingError without Triton."""
    if name == "bits":
        loaded = library()
        return NativeCounts(loaded).exact if loaded is not None else plain_counts
    counters: dict[str, Counter] = {"plain": plain_counts, "norm": norm_counts}
    if name in counters:
        return counters[name]
    if name != "kernel":
        raise UsageError(f"no counter {name!r}", fix="use kernel, bits, norm or plain")
    try:
        from lab.rooms.nan.watch.kernel import KernelCounter
    except ImportError as error:
        raise MissingError(f"the kernel needs Triton: {error}", fix="use counter=norm") from error
    return KernelCounter()


class NonFiniteError(LabError, FloatingPointError):
    """A watched forward made a NaN or an infinity, and the watch was asked to stop there."""

    exit_code = 1


class Watch(Recorder):
    """Watches a model between `__enter__` and `__exit__`.

    counter: "kernel", "bits", "norm" or "plain" (default: the best on the model's device), or a function.
    on_bad: "keep" goes on, "raise" raises NonFiniteError after the forward that went bad, a function is
    called with its `Step`. budget_bytes: what references may hold before they are counted and let go.
    keep_rows: keep call by call the first forward of a phase too. allow: modules (patterns of names, or class
    names) whose infinities are allowed, or "+inf" and "-inf" for all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        counter: str | Counter | None = None,
        on_bad: str | Callable[[Step], None] = "keep",
        budget_bytes: int | None = None,
        keep_rows: bool = True,
        check_weights: bool = True,
        modules: Modules | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        if on_bad not in ("keep", "raise") and not callable(on_bad):
            raise UsageError(f"invalid on_bad: {on_bad!r}", fix='use "keep", "raise" or a function of a Step')
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        if counter is None:
            self.counter, count, self.counter_reason = choose_counter(device)
        elif callable(counter):
            self.counter, count, self.counter_reason = "own", counter, "given"
        else:
            self.counter, count, self.counter_reason = counter, counter_named(counter), "asked for"
        super().__init__(model, count, budget_bytes or _budget(device), modules)
        if "DataParallel" in {type(module).__name__ for module in self.modules.all}:
            self.note("nn.DataParallel calls copies of the model, which are not seen: watch it on one GPU")
        self.on_bad, self.keep_rows, self.check_weights = on_bad, keep_rows, check_weights
        self.absorbed: Tally[str] = Tally()  # infinities that were gone before output, loss and gradient
        self.forwards = 0  # that were counted; `steps` may keep fewer
        self.recomputed = 0  # forwards that repeated a checkpointed one; not steps of their own
        self._steps: list[Step] = []
        self.weights: list[dict[str, Any]] = []
        self.sentinels: list[str] = []  # buffers that began with infinities
        self._explainer = Explainer(self.modules.names, self.modules.all, allow)
        self._totals: dict[tuple[str, tuple[Label, ...]], RunningTotals] = {}
        self._latest_totals: dict[str, RunningTotals] = {}  # by phase
        self._num_kept = 0  # steps with rows

    def __enter__(self) -> Watch:
        if self._makers or self._ended:
            raise UsageError("this watch has already been used", fix="make a new one: watch(model)")
        if self.check_weights:
            self.weights += self._explainer.check_weights(self._count, sentinels=self.sentinels)
            for name in self.sentinels:
                self.note(f"the buffer {name} begins with infinities, which are taken for its initial values")
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    @property
    def steps(self) -> list[Step]:
        """One per forward of the whole model, all counted; of very many, the newer ones and the bad ones."""
        self.settle()
        return self._steps

    @property
    def first(self) -> Birth | None:
        """The first place where bad numbers were made; None while all is finite."""
        step = self.first_step
        return step.births[0] if step is not None else None

    @property
    def first_step(self) -> Step | None:
        return next((step for step in self.steps if step.births), None)

    @property
    def clean(self) -> bool:
        """Whether forwards were seen, all of them, and nothing in them or in the weights was bad."""
        return self.status == "clean"

    @property
    def status(self) -> str:
        """bad; nothing-seen if no forward was counted; partly-seen if something was not; clean."""
        steps = self.steps
        if any(step.bad_leaves for step in steps) or self.weights:
            return "bad"
        if not self.forwards + self.recomputed - self.failed:
            return "nothing-seen"
        return "partly-seen" if self.not_seen() else "clean"

    def __str__(self) -> str:
        """The verdict in a few lines."""
        return printed("watch", self, self)

    def sentence(self) -> str:
        """The verdict in one line."""
        birth, step = self.first, self.first_step
        if birth is not None and step is not None:
            return f"step {step.number} ({step.phase}): first bad number {birth.place}"
        if self.weights:
            return f"bad: the weights {self.weights[0]['name']} were bad from the start"
        return f"{self.status}: {plural(self.forwards, 'forward')}"

    def not_seen(self) -> list[str]:
        """What was not seen, in sentences; caches, which are skipped by their role, are in `unseen` only."""
        self.settle()
        sentences = [f"{plural(times, 'forward')} not seen: {reason}" for reason, times in self.blind.items()]
        for text, times in self.direct.items():
            sentences.append(f"{text} ({times}x): its own code, what it took and what it gave were not seen")
        if not self.called:
            sentences.append("no call of this model was seen: is it compiled, or run by another object?")
        if self.failed:
            sentences.append(
                f"{plural(self.failed, 'forward')} could not be counted: {'; '.join(self.notes[-3:])}"
            )
        if self.unknown:
            also = " or not counted" if self.uncounted else ""
            sentences.append(
                f"{plural(self.unknown, 'tensor')} overwritten in place before being counted{also}"
            )
        for reason, times in self.uncounted.items():
            sentences.append(f"{plural(times, 'tensor')} could not be counted: {reason}")
        for (module, leaf, reason), times in self.unseen.items():
            if reason != CACHE:
                sentences.append(
                    f"{leaf} of {module or 'the model itself'} not looked into: {reason} ({times}x)"
                )
        return [*sentences, *self._inside_compiled()]

    def _inside_compiled(self) -> list[str]:
        """Compiled modules that were called: what is inside runs as one program and is seen as one."""
        sentences = []
        for number, module in enumerate(self.modules.all):
            compiled = type(module).__name__ == "OptimizedModule" or getattr(
                module, "_compiled_call_impl", None
            )
            fused = compiled is not False and compiled is not None and number in self.called
            inside = sum(1 for _ in module.modules()) - 1
            if (fused or (isinstance(module, torch.jit.ScriptModule) and number in self.called)) and inside:
                name = self.modules.names[number] or "the model itself"
                sentences.append(f"{plural(inside, 'module')} inside the compiled {name}, seen as one")
        return sentences

    def totals(self) -> list[Total]:
        """All calls, summed by module, side, leaf and phase."""
        totals: dict[tuple[int, int, str, str], Total] = {}
        self.settle()
        for part in self._totals.values():
            for index, (module, side, leaf) in enumerate(part.labels):
                key = (module, side, leaf, part.phase)
                if key not in totals:
                    kind = type(self.modules.all[module]).__name__
                    words = (self.modules.names[module], kind, ("in", "out")[side], leaf, part.phase)
                    totals[key] = Total(*words, part.dtypes[index])
                    totals[key].counts[3:] = -1
                total = totals[key]
                total.calls += part.calls
                total.numel += part.calls * int(part.sizes[index])
                add_counts(total.counts, part.counts[index])
                bad_step = int(part.first_bad[index])
                if bad_step >= 0 and (total.first_bad_step < 0 or bad_step < total.first_bad_step):
                    total.first_bad_step = bad_step
        return list(totals.values())

    def take(self, forward: Forward) -> None:
        """Turn a forward into the next step; a clean recomputation is none."""
        step = Step(forward.number, forward.phase, forward.query_length)
        forward.step = step
        judged = self._explainer.judge(forward, has_loss=self.has_loss(forward))
        bad = judged.bad
        if forward.fp8:
            self._note_saturated(forward)
        if bad is None and not judged.waits:
            self.absorb(judged)
        self.forwards += forward.phase != RECOMPUTE
        if forward.phase == RECOMPUTE:
            self.recomputed += 1
            if bad is None:
                return
        if judged.waits:
            self.wait_for_loss(forward, judged)
            bad = None
        elif bad is not None:
            step.bad_leaves = int(bad.sum())
            self._explainer.explain(step, forward, bad, self._count)
        first_of_phase = forward.phase not in self._latest_totals
        self._sum_up(step, forward, bad)
        if (bad is not None and self._num_kept < MOST_KEPT) or (self.keep_rows and first_of_phase):
            self._num_kept += 1
            step.rows = self._explainer.rows(forward, bad)
        self._steps.append(step)
        if len(self._steps) > MOST_STEPS:  # a server has no end of forwards: the older clean ones go
            older, newer = self._steps[: MOST_STEPS // 2], self._steps[MOST_STEPS // 2 :]
            self._steps = [one for one in older if one.bad_leaves][: MOST_STEPS // 4] + newer
        self.stepped(step, forward)

    def bad_weights(self, *, read: bool) -> list[dict[str, Any]]:
        """Weights and buffers that are bad now, or all weights that were when they were read last."""
        return self._explainer.check_weights(self._count) if read else self._explainer.bad_weights

    def absorb(self, judged: Judged) -> None:
        """Its infinities were gone before they did harm."""
        self.absorbed.update(self._explainer.absorb(judged.infinities))

    def has_loss(self, forward: Forward) -> bool:
        """Whether a loss decides on infinities in the output, and not the output itself."""
        return False

    def wait_for_loss(self, forward: Forward, judged: Judged) -> None:
        """A hook for those who look at losses."""

    def _note_saturated(self, forward: Forward) -> None:
        """A float8 tensor that holds its largest number: since torch 2.12 a cast of infinity gives it."""
        limits = {dtype: torch.finfo(dtype).max for dtype in FP8}
        for u, (_, dtype) in enumerate(forward.shapes()):
            if dtype in limits and forward.rows[u, 4] == limits[dtype]:
                number, _, leaf = forward.labels[int(np.flatnonzero(forward.leaf_rows == u)[0])]
                name, kind = self.modules.names[number] or "the model itself", str(dtype)[6:]
                self.note(
                    f"{leaf} of {name} holds {kind}'s largest number, {limits[dtype]:g}: a cast may saturate"
                )

    def takes_at_once(self, forward: Forward) -> bool:
        """One that a GPU has found clean can wait: while it is taken, the GPU would have nothing to do.

        What is bad cannot: it is explained by the weights and caches as they are now.
        """
        clean = forward.turned_out_clean()
        if clean:
            forward.caches = ()
        return not clean

    def stepped(self, step: Step, forward: Forward) -> None:
        """A hook for those who want each step as it is counted."""

    def react(self, forward: Forward) -> None:
        """The model's call has ended without an exception: stop or call back if it went bad."""
        step = forward.step
        if step is None or not step.bad_leaves:
            return
        if self.on_bad == "raise":
            place = step.births[0].place if step.births else "at an unknown place"
            raise NonFiniteError(
                f"NaN or infinity first seen {place}", location=f"step {step.number} ({step.phase})"
            )
        if callable(self.on_bad):
            self.on_bad(step)

    def _sum_up(self, step: Step, forward: Forward, bad: np.ndarray | None) -> None:
        """Add this forward to the running totals of forwards with the same calls."""
        part = self._latest_totals.get(step.phase)
        if part is None or (part.labels is not forward.labels and part.labels != forward.labels):
            key = (step.phase, tuple(forward.labels))
            if key not in self._totals:
                self._totals[key] = RunningTotals(step.phase, forward)
            part = self._latest_totals[step.phase] = self._totals[key]
        part.add(step, forward, bad)


def printed(kind: str, findings: Any, watch: Watch, *looked_at: str) -> str:
    """A watch or a guard in a few lines."""
    gaps = findings.not_seen()
    further = f" and {len(gaps) - 1} more" if len(gaps) > 1 else ""
    lines = (
        f"{kind} of {type(watch.model).__name__}: {findings.status}",
        findings.sentence(),
        *looked_at,
        f"infinities that did no harm: {', '.join([*watch.absorbed][:3]) or 'none'}",
        f"not seen: {gaps[0] + further if gaps else 'nothing'}",
    )
    return "\n".join(lines)


def _budget(device: torch.device) -> int:
    """A quarter of the free memory, at most 4 GiB."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(free // 4, 4 << 30)
    return 1 << 30
