"""From an NsysConfig and a site to steps: per cell one recorded process and one without a profiler."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.errors import UsageError
from lab.rooms.nsys.config import Cell, NsysConfig, cells, resolved
from lab.rooms.nsys.flops import SIZES, least_memory_bytes

CONFIG = "nsys.json"
WORKLOAD = "lab.rooms.nsys.workload"
RECORDER = "lab.rooms.nsys.workload.record"


def plan(config: NsysConfig, site: Site, root: Path, *, skip_existing: bool = False) -> Plan:
    """Two steps per cell, in the order of the matrix, so that small cells have results first."""
    if config.collector == "nsys" and site.vendor != "nvidia":
        raise UsageError(
            "nsys needs an NVIDIA GPU, and there is none here",
            fix="--collector auto records with torch.profiler instead",
        )
    config = resolved(config, on_gpu=bool(site.gpus))
    steps: list[Step] = []
    skipped: dict[str, str] = {}
    for cell in cells(config):
        of_cell = _cell_steps(config, cell, site)
        steps += of_cell
        if reason := _too_big(cell, site):
            skipped |= {step.name: reason for step in of_cell}
    if skip_existing:
        skipped |= {
            step.name: "its result is already there"
            for step in steps
            if all((root / path).is_file() for path in step.expects)
        }
    return Plan(
        steps=tuple(steps),
        inputs={CONFIG: msgspec.json.format(msgspec.json.encode(config)).decode() + "\n"},
        config=msgspec.to_builtins(config),
        skipped=skipped,
        notes=_notes(site),
    )


def _cell_steps(config: NsysConfig, cell: Cell, site: Site) -> list[Step]:
    """The recorded process, and its twin without a profiler before it."""
    folder = f"captures/{cell.name}"
    twin = f"{folder}/unprofiled"
    recorder = ["-m", RECORDER, "--collector", config.collector]
    recorder += ["--keep-original"] if config.keep_original else []
    recorded = _step(config, cell, site, folder, [*recorder, "--out", folder, "--"])
    if not config.twin:
        return [recorded]
    return [_step(config, cell, site, twin, ["-m", WORKLOAD, "--out", twin]), recorded]


def _step(config: NsysConfig, cell: Cell, site: Site, folder: str, program: list[str]) -> Step:
    on_gpu, is_profiled = bool(site.gpus), RECORDER in program
    return Step(
        name=cell.name.lower() + ("" if is_profiled else "_unprofiled"),
        folder=folder,
        num_gpus=1 if on_gpu else 0,
        argv=("python", "-u", *program, *_workload_arguments(config, cell, on_gpu=on_gpu)),
        timeout_s=config.step_timeout_s,
        settle_s=config.pause_s if on_gpu else 0.0,
        expects=(f"{folder}/cell.json",),
        labels={
            "size": cell.size,
            "context": cell.context,
            "type": cell.type,
            "profiled": int(is_profiled),
        },
    )


def _workload_arguments(config: NsysConfig, cell: Cell, *, on_gpu: bool) -> list[str]:
    """The workload's own flags, named as in the published experiment."""
    workload = config.workload
    flags = {
        "--model-size": cell.size,
        "--context-length": cell.context,
        "--profile-type": cell.type,
        "--batch-size": workload.batch_size,
        "--warmup-steps": workload.warmup_steps,
        "--measure-steps": workload.measure_steps,
        "--dtype": workload.dtype,
        "--softmax": workload.softmax,
        "--seed": workload.seed,
        "--device": "cuda" if on_gpu else "cpu",
    }
    switches = ["--use-annotated-attention"] if workload.annotated_attention else []
    switches += ["--fused-qkv"] if workload.fused_qkv else []
    return [*(str(word) for pair in flags.items() for word in pair), *switches]


def _too_big(cell: Cell, site: Site) -> str | None:
    """Why this cell cannot fit, from weights, gradients and moments alone; None if it may."""
    memory = min((gpu.mem_bytes for gpu in site.gpus if gpu.mem_bytes), default=None)
    needed = least_memory_bytes(SIZES[cell.size], cell.type)
    if memory is None or needed <= memory:
        return None
    return (
        f"skipped_estimate: weights and optimizer alone need {needed / 1e9:.1f} GB, "
        f"the GPU has {memory / 1e9:.1f} GB"
    )


def _notes(site: Site) -> tuple[str, ...]:
    notes = []
    if site.vendor == "none":
        notes.append("no GPU: torch.profiler records ranges and CPU operators, but no kernels")
    if site.vendor == "amd":
        notes.append("nsys does not support this GPU: torch.profiler records the same ranges")
    if not site.resolved:
        notes.append("these GPUs are not in this machine; their names are placeholders")
    return tuple(notes)
