"""Energy of single launches and of the whole model, on the GPU.

    python -m lab.rooms.kernels.workload.energy --plan replay_plan.json --config energy.json --out DIR

Idle is measured before the first CUDA call and again with a context. Each distinct call then repeats from a CUDA graph
(a deep queue where it cannot be captured) while a thread polls the meter; windows run from one step of the counter to
another. Windows of different calls are interleaved, so that a drift of the card hits all of them. Last the model
itself, or where it cannot be built the recording replayed in order. Writes `energy_raw.json`, after every round.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.core.files import write_atomic
from lab.errors import GpuError
from lab.gpus.discover import discover
from lab.gpus.meters import Meter, meter_of
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy, RunEnergy, SignatureEnergy, choose
from lab.rooms.kernels.energy.windows import Progress, Sampler, Samples, update_period_s, window
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.resolve import Unresolved
from lab.rooms.kernels.workload.replay import progress as say
from lab.rooms.kernels.workload.replay import read_replay_plan, versions
from lab.rooms.kernels.workload.replay_build import Bound, bind, first_call, footprint_bytes, resolved
from lab.rooms.kernels.workload.replay_order import ROTATED_BYTES, InOrder, Ready, l2_bytes
from lab.rooms.kernels.workload.torch_switches import restored
from lab.workload.start import read_config, start

RAW = "energy_raw.json"
BATCH_S = 0.02  # between two looks at how far the GPU is
GRAPH_CALLS = 200
MOST_BYTES = 8 << 30


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.rooms.kernels.workload.energy", description="Energy of recorded ops."
    )
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--config", required=True, type=Path)
    args, _ = start(parser, argv)
    measure(read_replay_plan(args.plan), read_config(args.config, EnergyConfig), args.out)


def measure(plan: ReplayPlan, config: EnergyConfig, out: Path) -> RawEnergy:
    """Everything in turn. Raises GpuError without a GPU, without a meter, or where others share it."""
    if torch.cuda.device_count() == 0:
        raise GpuError(
            f"torch {torch.__version__} sees no GPU: there is no energy to measure",
            fix="run where the GPU is",
        )
    vendor = "amd" if torch.version.hip else "nvidia"
    meter = meter_of(vendor, uuid_of_first(vendor))
    write_atomic(
        out / "environment.json", msgspec.json.encode({"versions": versions(), "meter": meter.facts()})
    )
    raw = RawEnergy(meter=meter.name, config=config, facts_before=meter.facts(), versions=versions())
    raw.idle_cold = at_rest(meter, config.idle_s)
    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    if reason := meter.refusal():
        raise GpuError(
            f"energy would not be of this program alone: {reason}", fix="take a whole GPU for yourself"
        )
    time.sleep(1.0)
    raw.idle_context = at_rest(meter, config.idle_s)
    raw.device_name = torch.cuda.get_device_properties(0).name
    say(f"idle {_watts(raw.idle_cold)} W cold, {_watts(raw.idle_context)} W with a context")
    with torch.no_grad(), restored(plan.state):
        Measurement(plan, config, meter, raw, out).all()
    raw.facts_after = meter.facts()
    save(raw, out)
    return raw


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


def generation(plan: ReplayPlan, device: torch.device, out: Path) -> Callable[[], Any]:
    """One whole generation of the profiled model, with as many new tokens as were recorded."""
    from lab.rooms.kernels.config import KernelsConfig
    from lab.rooms.kernels.workload.model import load
    from lab.rooms.kernels.workload.profile import Run

    known = set(KernelsConfig.__struct_fields__)
    wanted = {name: value for name, value in plan.config.items() if name in known}
    tokens = int(plan.config.get("new_tokens", plan.config.get("max_new_tokens", 16)))
    config = msgspec.convert({**wanted, "max_new_tokens": tokens, "fixed_tokens": True}, KernelsConfig)
    run = Run(config, load(config, device, on_cpu=False), out, 0, device)
    run.generate()
    return run.generate


class Load:
    """A call made ready to keep the GPU busy: `launch()` queues `calls` of it.

    Buffers rotate when a call touches more than ROTATED_BYTES, so that weights come from memory as in a model.
    """

    def __init__(self, launch: Callable[[], Any], calls: int, buffers: int, captured: bool) -> None:
        self.launch, self.calls, self.buffers, self.captured = launch, calls, buffers, captured

    @classmethod
    def of(cls, ready: Ready, device: torch.device) -> Load:
        op, overload, args, _ = ready
        first, _ = first_call(bind(op, overload, args, device))
        size = max(1, footprint_bytes(first))
        count = (
            1
            if size < ROTATED_BYTES
            else max(1, min(64, 1 + 2 * l2_bytes(device) // size, MOST_BYTES // size))
        )
        sets = [first, *(first_call(bind(op, overload, args, device))[0] for _ in range(count - 1))]
        calls = max(count, GRAPH_CALLS // count * count)
        graph = captured(sets, calls)
        if graph is not None:
            return cls(graph.replay, calls, count, True)
        return cls(lambda: [sets[place % count]() for place in range(calls)], calls, count, False)


def captured(sets: list[Bound], calls: int) -> Any:
    """A CUDA graph of `calls` calls over the sets in turn; None where the op cannot be captured."""
    if not hasattr(torch.cuda, "CUDAGraph") or any(
        t.device.type == "cpu" for one in sets for t in one.tensors()
    ):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for place in range(calls):
                sets[place % len(sets)]()
    except RuntimeError as error:
        torch.cuda.synchronize()
        say(f"not captured, queued instead: {str(error).splitlines()[0][:120]}")
        return None
    return graph


def uuid_of_first(vendor: str) -> str:
    """UUID of CUDA device 0, from the driver's list: asking torch would create a context."""
    if vendor != "nvidia":
        return ""
    gpus = [gpu for gpu in discover() if gpu.vendor == "nvidia"]
    if not gpus:
        raise GpuError("the driver lists no GPU, though torch sees one", fix="see `lab doctor`")
    return gpus[0].uuid


def _watts(done: Any) -> str:
    return "?" if done.energy_j is None else f"{done.energy_j / done.seconds:.1f}"


if __name__ == "__main__":
    main()
