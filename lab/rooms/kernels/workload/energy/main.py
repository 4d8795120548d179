"""Energy of single launches and of the whole model, on the GPU.

    python -m lab.rooms.kernels.workload.energy.main --plan replay_plan.json --config energy.json --out DIR

Idle is measured before the first CUDA call and again with a context. Then the model itself runs, or the
recording in order if the model cannot be built. Each distinct call repeats from a CUDA graph (a deep queue if
it cannot be captured) while a thread polls the meter; windows run from one step of the counter to another and
are interleaved over calls, so that a drift of the card affects all of them. `energy_raw.json` is written
after every round.
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
from lab.core.words import plural
from lab.errors import GpuError
from lab.gpus.discover import discover
from lab.power.meters import Meter, meter_of
from lab.power.windows import Progress, Sampler, Samples, Window, update_period_s, watts, window
from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.cures import first_line
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy, RunEnergy, SignatureEnergy, choose
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from lab.rooms.kernels.workload.model import load
from lab.rooms.kernels.workload.profile.passes import Run
from lab.rooms.kernels.workload.replay.build import Bound, bind, first_call, footprint_bytes, resolved
from lab.rooms.kernels.workload.replay.machine import (
    known_versions,
    l2_bytes,
    progress,
    read_replay_plan,
    restored,
)
from lab.rooms.kernels.workload.replay.order import MOST_SETS, ROTATED_BYTES, InOrder, Ready
from lab.workload.start import read_config, start


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.rooms.kernels.workload.energy", description="Energy of recorded ops."
    )
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--config", required=True, type=Path)
    args, _ = start(parser, argv)
    measure(read_replay_plan(args.plan), read_config(args.config, EnergyConfig), args.out)


def measure(plan: ReplayPlan, config: EnergyConfig, out: Path) -> RawEnergy:
    """Measure everything. Raises GpuError without a GPU, without a meter, or if others use the GPU."""
    if torch.cuda.device_count() == 0:
        raise GpuError(
            f"torch {torch.__version__} sees no GPU, so energy cannot be measured",
            fix="run on a machine with a GPU",
        )
    vendor = "amd" if torch.version.hip else "nvidia"
    meter = meter_of(vendor, uuid_of_first(vendor))
    write_atomic(
        out / "environment.json", msgspec.json.encode({"versions": known_versions(), "meter": meter.facts()})
    )
    raw = RawEnergy(meter=meter.name, config=config, facts_before=meter.facts(), versions=known_versions())
    raw.idle_cold = at_rest(meter, config.idle_s)
    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    if reason := meter.refusal():
        raise GpuError(f"the meter would include other programs: {reason}", fix="use a whole, idle GPU")
    time.sleep(1.0)
    raw.idle_context = at_rest(meter, config.idle_s)
    raw.device_name = torch.cuda.get_device_properties(0).name
    progress(f"idle {_watts(raw.idle_cold)} cold, {_watts(raw.idle_context)} with a context")
    with torch.no_grad(), restored(plan.state) as unknown:
        raw.notes += [f"this torch has no switch {name}" for name in unknown]
        Measurement(plan, config, meter, raw, out).all()
    raw.facts_after = meter.facts()
    save(raw, out)
    return raw


def _watts(measured: Window) -> str:
    power = watts(measured)
    return "unknown" if power is None else f"{power:.1f} W"


def uuid_of_first(vendor: str) -> str:
    """UUID of CUDA device 0, from the driver's list: asking torch would create a context."""
    if vendor != "nvidia":
        return ""
    gpus = [gpu for gpu in discover() if gpu.vendor == "nvidia"]
    if not gpus:
        raise GpuError("the driver lists no GPU, but torch sees one", fix="see `lab doctor`")
    return gpus[0].uuid


# The windows of one run: calls in turn, and the whole model.

GRAPH_CALLS = 200
MOST_BYTES = 8 << 30  # of all buffers of one call


class Load:
    """A call made ready to keep the GPU busy: `launch()` queues `calls` of it.

    Buffers rotate when a call touches more than ROTATED_BYTES, so that weights come from memory as in a
    model.
    """

    def __init__(self, launch: Callable[[], Any], calls: int, buffers: int, captured: bool) -> None:
        self.launch, self.calls, self.buffers, self.captured = launch, calls, buffers, captured

    @classmethod
    def of(cls, ready: Ready, device: torch.device) -> Load:
        op, overload, args, _ = ready
        bound, _ = first_call(bind(op, overload, args, device))
        count = _num_buffers(max(1, footprint_bytes(bound)), device)
        sets = [bound, *(first_call(bind(op, overload, args, device))[0] for _ in range(count - 1))]
        calls = max(count, GRAPH_CALLS // count * count)
        graph = captured(sets, calls)
        if graph is not None:
            return cls(graph.replay, calls, count, True)
        return cls(lambda: [sets[index % count]() for index in range(calls)], calls, count, False)


def _num_buffers(size_bytes: int, device: torch.device) -> int:
    """Enough buffers to overflow the L2 cache twice; small calls keep a single one."""
    if size_bytes < ROTATED_BYTES:
        return 1
    return max(1, min(MOST_SETS, 1 + 2 * l2_bytes(device) // size_bytes, MOST_BYTES // size_bytes))


def captured(sets: list[Bound], calls: int) -> Any:
    """A CUDA graph of `calls` calls over the sets in turn; None if the op cannot be captured."""
    on_cpu = any(tensor.device.type == "cpu" for one in sets for tensor in one.tensors())
    if on_cpu or not hasattr(torch.cuda, "CUDAGraph"):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for index in range(calls):
                sets[index % len(sets)]()
    except RuntimeError as error:
        torch.cuda.synchronize()
        progress(f"not captured, queued instead: {first_line(error)[:120]}")
        return None
    return graph


def generation(plan: ReplayPlan, device: torch.device, out: Path) -> Callable[[], Any]:
    """A function that runs one whole generation, with as many new tokens as were recorded."""
    fields = set(KernelsConfig.__struct_fields__)
    wanted = {name: value for name, value in plan.config.items() if name in fields}
    tokens = int(plan.config.get("new_tokens", plan.config.get("max_new_tokens", 16)))
    config = msgspec.convert({**wanted, "max_new_tokens": tokens, "fixed_tokens": True}, KernelsConfig)
    run = Run(config, load(config, device, on_cpu=False), out, 0, device)
    run.generate()
    return run.generate


RAW = "energy_raw.json"
BATCH_S = 0.02  # between two checks of the GPU's progress


def save(raw: RawEnergy, out: Path) -> None:
    write_atomic(out / RAW, msgspec.json.encode(raw))


def at_rest(meter: Meter, seconds: float) -> Window:
    """A window in which nothing runs."""
    with Sampler(meter) as samples:
        start = time.monotonic()
        time.sleep(seconds + 0.3)
        end = time.monotonic()
    return window(samples, start, end)


class Measurement:
    """Fills `raw` with windows; it is written after every round, so a kill loses at most one round."""

    def __init__(
        self, plan: ReplayPlan, config: EnergyConfig, meter: Meter, raw: RawEnergy, out: Path
    ) -> None:
        self.plan, self.config, self.meter, self.raw, self.out = plan, config, meter, raw, out
        self.device = torch.device("cuda", 0)
        self.ready: dict[int, Ready] = {}

    def all(self) -> None:
        chosen, self.raw.stands_for = choose(self.plan, self.config)
        signatures = self.plan.signatures
        self.raw.signatures = [SignatureEnergy(sig_id=signatures[sig].sig_id, place=sig) for sig in chosen]
        self._resolve_all()
        if self.config.model_run:
            self._model()
            save(self.raw, self.out)
        for turn in range(self.config.windows):
            for entry in self.raw.signatures:
                self._round(entry)
            save(self.raw, self.out)
            progress(f"round {turn + 1} of {self.config.windows}: {plural(len(self.raw.signatures), 'call')}")

    def _resolve_all(self) -> None:
        """Call each signature once; a chosen one that cannot be called keeps the reason."""
        chosen = {entry.place: entry for entry in self.raw.signatures}
        for sig, signature in enumerate(self.plan.signatures):
            try:
                overload, args = resolved(signature)
                bound, _ = first_call(bind(signature.op, overload, args, self.device))
            except (Unresolved, RuntimeError, TypeError, ValueError) as error:
                if sig in chosen:
                    chosen[sig].reason = first_line(error)
                continue
            numbers = any(map(_is_number, bound.args))
            self.ready[sig] = Ready(signature.op, overload, args, numbers)

    def _round(self, entry: SignatureEnergy) -> None:
        """One window of one call."""
        if entry.place not in self.ready:
            return
        try:
            load = Load.of(self.ready[entry.place], self.device)
        except (RuntimeError, TypeError, ValueError) as error:
            entry.reason = first_line(error)
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
        event, num_done = waiting.popleft()
        event.synchronize()
        marks.t_s.append(time.monotonic())
        marks.num_done.append(float(num_done))

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
        """The model's own runs, with jitter against synchronising with the meter; idle between them."""
        subject, once, forwards = self._model_or_replay()
        for _ in range(self.config.windows):
            marks = Progress()
            dice = random.Random(len(self.raw.model))
            with Sampler(self.meter) as samples:
                marks.t_s.append(time.monotonic())
                marks.num_done.append(0.0)
                begin = time.monotonic() + self.config.preroll_s
                finish = begin + self.config.window_s
                num_done = 0
                while time.monotonic() < finish:
                    once()
                    num_done += 1
                    marks.t_s.append(time.monotonic())
                    marks.num_done.append(float(num_done))
                    time.sleep(dice.random() * 0.01)
            measured = window(samples, begin, min(finish, marks.t_s[-1]), marks)
            self.raw.model.append(RunEnergy(subject=subject, forwards_per_run=forwards, window=measured))
            self.raw.update_period_s = self.raw.update_period_s or update_period_s(samples)
            torch.cuda.synchronize()
            self.raw.idle_between.append(at_rest(self.meter, min(self.config.idle_s, self.config.window_s)))
        progress(f"whole model ({subject}): {plural(len(self.raw.model), 'window')}")

    def _model_or_replay(self) -> tuple[str, Callable[[], Any], int]:
        """(what runs, one run of it, forwards in it)."""
        marked = sum(forward.phase in ("prefill", "decode") for forward in self.plan.forwards)
        if self.plan.config.get("model") and marked:
            once = generation(self.plan, self.device, self.out)
            return f"generation by {self.plan.config['model']}", once, marked
        order = InOrder(self.plan, self.ready, self.device)
        self.raw.notes.append("the recording names no model: the recorded calls run in order instead")
        if lost := len(self.plan.calls) - len(order.steps):
            of = f"{lost} of {plural(len(self.plan.calls), 'call')}"
            self.raw.notes.append(f"{of} cannot be made here: their energy is missing from the whole")
        return "the recording, in order", order.once, max(1, marked)


def _is_number(value: Any) -> bool:
    """Whether an argument is a Python number that had to go in as a 0-dim tensor."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"


if __name__ == "__main__":
    main()
