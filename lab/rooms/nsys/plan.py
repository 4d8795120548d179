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
    wanted = cells(config)
    steps = tuple(step for cell in wanted for step in cell_steps(config, cell, site))
    skipped = {
        step.name: why
        for cell in wanted
        if (why := too_big(cell, site))
        for step in cell_steps(config, cell, site)
    }
    if skip_existing:
        skipped |= {step.name: "its result is already there" for step in steps if _complete(root, step)}
    text = msgspec.json.format(msgspec.json.encode(config)).decode() + "\n"
    return Plan(
        steps=steps,
        inputs={CONFIG: text},
        config=msgspec.to_builtins(config),
        skipped=skipped,
        notes=_notes(site),
    )


def cell_steps(config: NsysConfig, cell: Cell, site: Site) -> list[Step]:
    """The recorded process, and its twin without a profiler before it."""
    folder = folder_of(cell)
    recorded = _step(
        config,
        cell,
        site,
        cell.name.lower(),
        folder,
        (
            "-m",
            RECORDER,
            "--collector",
            config.collector,
            *(("--keep-original",) if config.keep_original else ()),
            "--out",
            folder,
            "--",
        ),
    )
    if not config.twin:
        return [recorded]
    folder = twin_of(cell)
    name = f"{cell.name.lower()}_unprofiled"
    return [_step(config, cell, site, name, folder, ("-m", WORKLOAD, "--out", folder)), recorded]


def folder_of(cell: Cell) -> str:
    return f"captures/{cell.name}"


def twin_of(cell: Cell) -> str:
    return f"captures/{cell.name}/unprofiled"


def workload_arguments(config: NsysConfig, cell: Cell, *, on_gpu: bool) -> tuple[str, ...]:
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
    switches = [
        flag
        for flag, on in (
            ("--use-annotated-attention", workload.annotated_attention),
            ("--fused-qkv", workload.fused_qkv),
        )
        if on
    ]
    return (*(str(word) for pair in flags.items() for word in pair), *switches)


def too_big(cell: Cell, site: Site) -> str | None:
    """Why this cell cannot fit, from weights, gradients and moments alone; None if it may."""
    memory = min((gpu.mem_bytes for gpu in site.gpus if gpu.mem_bytes), default=None)
    least = least_memory_bytes(SIZES[cell.size], cell.type)
    if memory is None or least <= memory:
        return None
    return (
        f"skipped_estimate: weights and optimizer alone need {least / 1e9:.1f} GB, "
        f"the GPU has {memory / 1e9:.1f} GB"
    )


def _step(
    config: NsysConfig, cell: Cell, site: Site, name: str, folder: str, program: tuple[str, ...]
) -> Step:
    on_gpu = bool(site.gpus)
    return Step(
        name=name,
        folder=folder,
        num_gpus=1 if on_gpu else 0,
        argv=("python", "-u", *program, *workload_arguments(config, cell, on_gpu=on_gpu)),
        timeout_s=config.step_timeout_s,
        settle_s=config.pause_s if on_gpu else 0.0,
        expects=(f"{folder}/cell.json",),
        labels={
            "size": cell.size,
            "context": cell.context,
            "type": cell.type,
            "profiled": int(RECORDER in program),
        },
    )


def _complete(root: Path, step: Step) -> bool:
    return all((root / pattern).is_file() for pattern in step.expects)


def _notes(site: Site) -> tuple[str, ...]:
    notes = []
    if site.vendor == "none":
        notes.append("no GPU: torch.profiler records ranges and CPU operators, but no kernels")
    if site.vendor == "amd":
        notes.append("nsys does not support this GPU: torch.profiler records the same ranges")
    if not site.resolved:
        notes.append("these GPUs are not in this machine; their names are placeholders")
    return tuple(notes)
