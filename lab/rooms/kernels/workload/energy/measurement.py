"""measurement"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.core.files import write_atomic
from lab.gpus.meters import Meter
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy, RunEnergy, SignatureEnergy, choose
from lab.rooms.kernels.energy.windows import Progress, Sampler, Samples, update_period_s, window
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.schemas import Unresolved
from lab.rooms.kernels.workload.energy.generation import generation
from lab.rooms.kernels.workload.energy.load import Load
from lab.rooms.kernels.workload.replay.build import bind, first_call
from lab.rooms.kernels.workload.replay.machine import progress as say
from lab.rooms.kernels.workload.replay.order import InOrder, Ready
from lab.rooms.kernels.workload.replay.overloads import resolved

RAW = "energy_raw.json"


BATCH_S = 0.02  # between two looks at how far the GPU is


def save(raw: RawEnergy, out: Path) -> None:
    write_atomic(out / RAW, msgspec.json.encode(raw))


def at_rest(meter: Meter, seconds: float) -> Any:
    """A window in which nothing runs."""
    with Sampler(meter) as samples:
        start = time.monotonic()
        time.sleep(seconds + 0.3)
        end = time.monotonic()
    return window(samples, start, end)


class Measurement:
    """The windows of one run; `raw` is written after every round, so a kill loses one round."""

    def __init__(
        self, plan: ReplayPlan, config: EnergyConfig, meter: Meter, raw: RawEnergy, out: Path
    ) -> None:
        self.plan, self.config, self.meter, self.raw, self.out = plan, config, meter, raw, out
        self.device = torch.device("cuda", 0)
        self.ready: dict[int, Ready] = {}
        self.began = time.monotonic()

    def all(self) -> None:
        chosen, self.raw.stands_for = choose(self.plan, self.config)
        self.raw.signatures = [
            SignatureEnergy(sig_id=self.plan.signatures[place].sig_id, place=place) for place in chosen
        ]
        self._resolve_all()
        if self.config.model_run:
            self._model()
            save(self.raw, self.out)
        for turn in range(self.config.windows):
            for entry in self.raw.signatures:
                if time.monotonic() - self.began > self.config.budget_s:
                    self.raw.notes.append(
                        f"the budget of {self.config.budget_s:g} s ended in round {turn + 1}"
                    )
                    return
                self._round(entry)
            save(self.raw, self.out)
            say(f"round {turn + 1} of {self.config.windows}: {len(self.raw.signatures)} calls")

    def _resolve_all(self) -> None:
        for place, signature in enumerate(self.plan.signatures):
            try:
                overload, args = resolved(signature)
                bound, _ = first_call(bind(signature.op, overload, args, self.device))
            except (Unresolved, RuntimeError, TypeError, ValueError) as why:
                self._failed(place, str(why).strip().splitlines()[0])
                continue
            numbers = any(
                isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"
                for value in bound.args
            )
            self.ready[place] = (signature.op, overload, args, numbers)

    def _failed(self, place: int, reason: str) -> None:
        for entry in self.raw.signatures:
            if entry.place == place:
                entry.reason = reason

    def _round(self, entry: SignatureEnergy) -> None:
        """One window of one call."""
        if entry.place not in self.ready:
            return
        try:
            load = Load.of(self.ready[entry.place], self.device)
        except (RuntimeError, TypeError, ValueError) as error:
            entry.reason = str(error).strip().splitlines()[0]
            return
        entry.buffers, entry.captured = load.buffers, load.captured
        samples, marks, start, end = self._busy(load.launch, load.calls)
        entry.windows.append(window(samples, start, end, marks))
        self.raw.update_period_s = self.raw.update_period_s or update_period_s(samples)

    def _busy(self, launch: Callable[[], Any], calls: int) -> tuple[Samples, Progress, float, float]:
        """Keep the GPU busy through pre-roll and window; launches are counted as the GPU finishes them."""
        marks, waiting = Progress(), deque[tuple[Any, int]]()
        per_batch = self._per_batch(launch)
        with Sampler(self.meter) as samples:
            begin = time.monotonic() + self.config.preroll_s
            finish = begin + self.config.window_s
            queued = 0
            while time.monotonic() < finish:
                for _ in range(per_batch):
                    launch()
                queued += per_batch * calls
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
                waiting.append((event, queued))
                if len(waiting) > 3:
                    self._collect(waiting, marks)
            while waiting:
                self._collect(waiting, marks)
        return samples, marks, begin, min(finish, marks.t_s[-1])

    @staticmethod
    def _collect(waiting: deque[tuple[Any, int]], marks: Progress) -> None:
        event, done = waiting.popleft()
        event.synchronize()
        marks.t_s.append(time.monotonic())
        marks.done.append(float(done))

    def _per_batch(self, launch: Callable[[], Any]) -> int:
        """How many launches fill BATCH_S."""
        launch()
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(3):
            launch()
        torch.cuda.synchronize()
        return max(1, int(BATCH_S / max((time.monotonic() - begin) / 3, 1e-6)))

    def _model(self) -> None:
        """The model's own runs, jittered so that they do not fall in step with the meter."""
        what, once, forwards = self._model_or_replay()
        for _ in range(self.config.windows):
            marks = Progress()
            dice = random.Random(len(self.raw.model))
            with Sampler(self.meter) as samples:
                marks.t_s.append(time.monotonic())
                marks.done.append(0.0)
                begin = time.monotonic() + self.config.preroll_s
                finish = begin + max(self.config.window_s, self.config.model_window_s)
                done = 0
                while time.monotonic() < finish:
                    once()
                    done += 1
                    marks.t_s.append(time.monotonic())
                    marks.done.append(float(done))
                    time.sleep(dice.random() * 0.01)
            self.raw.model.append(
                RunEnergy(
                    what=what,
                    forwards_per_run=forwards,
                    window=window(samples, begin, min(finish, marks.t_s[-1]), marks),
                )
            )
            self.raw.update_period_s = self.raw.update_period_s or update_period_s(samples)
            torch.cuda.synchronize()
            self.raw.idle_between.append(at_rest(self.meter, min(self.config.idle_s, self.config.window_s)))
        say(f"whole model ({what}): {len(self.raw.model)} windows")

    def _model_or_replay(self) -> tuple[str, Callable[[], Any], int]:
        """(what runs, one run of it, forwards in it)."""
        marked = sum(forward.phase in ("prefill", "decode") for forward in self.plan.forwards)
        if self.plan.config.get("model") and marked:
            return (
                f"generation by {self.plan.config['model']}",
                generation(self.plan, self.device, self.out),
                marked,
            )
        order = InOrder(self.plan, self.ready, self.device)
        self.raw.notes.append("the recording names no model: the recorded calls in order stand for it")
        return "the recording, in order", order.once, max(1, marked)


def watts_text(done: Any) -> str:
    return "?" if done.energy_j is None else f"{done.energy_j / done.seconds:.1f}"
