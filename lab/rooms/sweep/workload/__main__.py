"""The training run that the sweep measures; runs where the GPU is, one process per rank.

    python -m torch.distributed.run --nproc_per_node 8 -m lab.rooms.sweep.workload --config F --out DIR

Without torchrun it runs as world size 1. It writes into DIR (JSON and traces whole or not at all):

- `torch_profiler/rank{r}/{stem}_step{N}.json.gz`: one Kineto trace per rank and window; N = steps done.
- `rank{r}.log`: everything that the rank and its libraries print.
- `rank_{rr:02d}_metrics.jsonl`: one line per optimizer step, flushed. A NaN or infinite figure is null there
  and spelled out in `nonfinite`. `profile.overlap` stays empty: DDP's reducer cannot be timed from Python;
  the overlap is in the trace.
- `hang/rank{r}.pkl` and `.stack.txt`: only of a step that stalled (`--stall-timeout`, `lab ranks hang`).
- `environment.json` (rank 0): versions, devices, variables that steer them, the GPUs before and after.

Exit codes are those of lab.errors, 1 for any other exception, 130 and 143 for SIGINT and SIGTERM.
Written for torch 1.12 to 2.13.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.errors import writing
from lab.rooms.sweep.config.load import ignored_keys, load_train_config, planned_steps
from lab.rooms.sweep.config.train import TrainConfig
from lab.rooms.sweep.workload.trainer import (
    Trainer,
    check_torch_can_run,
)
from lab.workload.environment import describe_environment, gpu_state
from lab.workload.rank import RankContext, choose_device, process_group
from lab.workload.stall import watch_for_stall
from lab.workload.start import leave_group, start, write_json

log = logging.getLogger("lab.workload")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments, send this rank's output to its log, train."""
    parser = argparse.ArgumentParser(prog="lab.rooms.sweep.workload", description="The sweep's training run.")
    parser.add_argument("--config", required=True, help="YAML file or preset name")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="repeatable, applied in order"
    )
    args, context = start(parser, argv, own_log=True)
    run(load_train_config(args.config, args.override), args.out, context)
    leave_group(context)


def run(config: TrainConfig, out: Path, context: RankContext) -> None:
    """Train as `config` says and leave every artefact in `out`.

    Raises ConfigError and GpuError for what cannot run here, StorageError when `out` cannot be written.
    """
    log.setLevel(config.logging.level)
    if ignored_keys(config):
        log.warning("ignored, these keys have no effect: %s", ", ".join(ignored_keys(config)))
    planned_steps(config, context.world_size)  # an error here, before the GPU is touched
    device = choose_device(context, config.distributed.backend)
    check_torch_can_run(config, device)
    environment: dict[str, Any] = {}
    if context.rank == 0:
        environment = {**describe_environment(context, device), "ignored_keys": ignored_keys(config)}
        write_json(out / "environment.json", environment)
    with watch_for_stall(out, context) as progressed, process_group(context, device):
        train(config, out, context, device, progressed)
    if environment:
        write_json(out / "environment.json", {**environment, "smi_after": gpu_state()})


def train(
    config: TrainConfig,
    out: Path,
    context: RankContext,
    device: torch.device,
    progressed: Callable[[], None] = lambda: None,
) -> None:
    """The loop: one optimizer step, one line of metrics, one step of the profiler."""
    total_steps, steps_per_epoch = planned_steps(config, context.world_size)
    trainer = Trainer(config, context, device)
    log.info(
        "training %s (%s parameters) with %s on %d ranks (%s), %d steps",
        config.model.kind,
        f"{trainer.model.num_params:,}",
        trainer.model.parallel,
        context.world_size,
        device.type,
        total_steps,
    )
    path = out / f"rank_{context.rank:02d}_metrics.jsonl"
    with writing(path):
        metrics = path.open("wb")
    with metrics, profiler(config, out, context.rank, device) as profile:
        for step in range(total_steps):
            epoch, step_in_epoch = divmod(step, steps_per_epoch)
            line: dict[str, Any] = {"rank": context.rank, "world_size": context.world_size}
            line.update(epoch=epoch, step=step_in_epoch, global_step=step + 1, **trainer.step())
            line["profile"] = trainer.clock.summary(step, profile_phase(profile))
            report_step(line, config.training.log_interval, total_steps)
            with writing(path):
                metrics.write(msgspec.json.encode(line) + b"\n")
                metrics.flush()
            if profile is not None:
                profile.step()
            progressed()


def report_step(line: dict[str, Any], log_interval: int, total_steps: int) -> None:
    """Log a step; name figures that are not finite, which JSON can only write as null."""
    nonfinite = {key: str(line[key]) for key in ("loss", "grad_norm") if not math.isfinite(line[key])}
    if nonfinite:
        line["nonfinite"] = nonfinite
        log.warning("step %d: not finite: %s", line["global_step"], nonfinite)
    if line["global_step"] % log_interval == 0 or line["global_step"] in (1, total_steps):
        log.info(
            "step %d/%d  loss %.4f  grad_norm %.4f  lr %.2e  %.1f ms",
            line["global_step"],
            total_steps,
            line["loss"],
            line["grad_norm"],
            line["lr"],
            line["profile"]["total_ms"],
        )


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


if __name__ == "__main__":
    main()
