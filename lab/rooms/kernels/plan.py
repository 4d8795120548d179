"""From a KernelsConfig and a site to the step that profiles. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.rooms.kernels.config import KernelsConfig, known
from lab.rooms.kernels.cures import no_gpu_cure
from lab.rooms.kernels.preflight import refuse_plan
from lab.rooms.kernels.schema import PROFILE

CONFIG = "kernels.json"


def plan(
    config: KernelsConfig, site: Site, *, image: str | None = None, env: Mapping[str, str] | None = None
) -> Plan:
    """One step: the model generates, each rank leaves its files in `profile/`. Raises what `refuse_plan` raises.

    env: what the host says of GPUs and Slurm (`preflight.host_env`), for the note where there is no GPU.
    """
    gpus = [(gpu.name, gpu.mem_bytes if site.resolved else None) for gpu in site.gpus]
    refuse_plan(config, vendor=site.vendor, gpus=gpus, image=image)
    text = msgspec.json.format(msgspec.json.encode(config)).decode()
    return Plan(
        steps=(_profile(config, site),),
        inputs={CONFIG: text},
        config=msgspec.to_builtins(config),
        notes=_notes(config, site, env or {}),
    )


def _profile(config: KernelsConfig, site: Site) -> Step:
    ranks = range(config.tp)
    launcher = torchrun(config.tp) if config.tp > 1 else ("python",)
    device = "cuda" if site.gpus else "cpu"
    return Step(
        name=PROFILE,
        folder=PROFILE,
        num_gpus=config.tp if site.gpus else 0,
        argv=(
            *launcher,
            "-m",
            "lab.rooms.kernels.workload",
            "--config",
            CONFIG,
            "--out",
            PROFILE,
            "--device",
            device,
        ),
        env={"TOKENIZERS_PARALLELISM": "false"} | ({} if site.gpus else {"OMP_NUM_THREADS": "1"}),
        timeout_s=config.step_timeout_s,
        expects=tuple(
            f"{PROFILE}/{name}"
            for rank in ranks
            for name in (
                f"trace_rank{rank}.json*",
                f"recorded_ops_rank{rank}.jsonl",
                f"generation_rank{rank}.json",
            )
        ),
        logs=(f"{PROFILE}/rank*.log",),
        labels={"model": config.model, "tp": config.tp},
    )


def torchrun(ranks: int) -> tuple[str, ...]:
    """The engine's own interpreter starts the ranks; port 0 lets runs side by side not meet."""
    return (
        "python",
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={ranks}",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=localhost:0",
        "--rdzv_id=kernels",
    )


def _notes(config: KernelsConfig, site: Site, env: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if site.vendor == "none":
        notes.append("no GPU: the trace holds CPU ops and no kernels; ops stand in for launches")
        if env:
            notes.append(f"for kernels: {no_gpu_cure(env, config.tp)}")
    if config.weights == "random" or (known(config.model) and not known(config.model).hub_id):  # type: ignore[union-attr]
        notes.append("random weights: kernels and times are those of the architecture, the text is noise")
    if not site.resolved:
        notes.append("these GPUs are not in this machine; their names are placeholders")
    return tuple(notes)
