"""torch.profiler as the config asks for it: one Kineto trace per rank and window."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from lab.errors import writing
from lab.rooms.sweep.config.train import TrainConfig

log = logging.getLogger("lab.workload")


@contextlib.contextmanager
def profiler(config: TrainConfig, out: Path, rank: int, device: torch.device) -> Iterator[Any]:
    """A running torch.profiler that writes one trace per window; None if the config disables it."""
    options = config.profiling
    if not options.enabled:
        yield None
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)  # also ROCm's name for it
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(
            wait=options.wait, warmup=options.warmup, active=options.active, repeat=options.repeat
        ),
        on_trace_ready=functools.partial(write_trace, config=config, out=out, rank=rank),
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
        with_flops=options.with_flops,
        **(sync_events() if options.cuda_sync else {}),
    ) as profile:
        yield profile


def sync_events() -> dict[str, Any]:
    """The profiler's argument that records which stream waited for which event; {} where torch has none."""
    make = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    if make is None or torch.version.hip is not None:
        return {}
    try:
        return {"experimental_config": make(enable_cuda_sync_events=True)}
    except TypeError:  # before torch 2.1
        log.info("torch %s records no waits of streams", torch.__version__)
        return {}


def profile_phase(profile: Any) -> str:
    """What the profiler does with the current step: off, none, warmup, record, record_and_save."""
    return profile.current_action.name.lower() if profile is not None else "off"


def write_trace(profile: Any, *, config: TrainConfig, out: Path, rank: int) -> None:
    """Export the window that just ended."""
    stem, step = Path(config.profiling.trace_filename).stem, profile.step_num
    folder = out / "torch_profiler" / f"rank{rank}"
    # The dot hides the file from readers until it is complete; .json.gz makes torch compress.
    draft = folder / f".draft_{stem}_step{step}.json.gz"
    with writing(draft):
        folder.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(draft))
        if config.profiling.tensorboard:
            (out / "tensorboard").mkdir(exist_ok=True)
            copy = out / "tensorboard" / f"rank{rank}.{step}.pt.trace.json.gz"
            shutil.copyfile(draft, copy.with_name(f".draft_{copy.name}"))
            copy.with_name(f".draft_{copy.name}").replace(copy)
        if config.profiling.chrome_trace:
            draft.replace(folder / f"{stem}_step{step}.json.gz")
        else:
            draft.unlink()
    log.info("trace of the window ending at step %d written", step)


class StepClock:
    """Times the ranges of one step, in ms since its start: by GPU events, or by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.begin: Any = None
        self.marks: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """Begin a step and forget the last one."""
        self.begin, self.marks = self._now(), []

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Time the work launched inside, and name it in the trace."""
        begin = self._now()
        with record_function(name):
            yield
        self.marks.append((name, begin, self._now()))

    def summary(self, index: int, phase: str) -> dict[str, Any]:
        """The step's `profile` record; waits for the GPU."""
        end = self._now()
        if self.on_gpu:
            torch.cuda.synchronize()
        ranges = [
            {"name": name, "start_ms": self._since_begin(start), "end_ms": self._since_begin(stop)}
            for name, start, stop in self.marks
        ]
        markers = [{"name": f"profiler_{phase}", "at_ms": 0.0}]
        return {
            "index": index,
            "total_ms": self._since_begin(end),
            "ranges": ranges,
            "markers": markers,
            "overlap": {},
        }

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since_begin(self, mark: Any) -> float:
        elapsed_ms: float = self.begin.elapsed_time(mark) if self.on_gpu else (mark - self.begin) * 1e3
        return round(elapsed_ms, 4)
