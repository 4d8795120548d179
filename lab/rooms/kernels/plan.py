"""From a configuration and a site to the step that profiles, replays or measures. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.errors import GpuError
from lab.hub import ModelNeed
from lab.rooms.kernels.config import KernelsConfig, known
from lab.rooms.kernels.cures import no_gpu_cure
from lab.rooms.kernels.energy.choice import ENERGY_CONFIG, ENERGY_RAW, EnergyConfig
from lab.rooms.kernels.preflight import refuse_plan
from lab.rooms.kernels.replay.args import PLAN_FILE, RAW_FILE, ReplayPlan
from lab.rooms.kernels.schema import PROFILE

CONFIG = "kernels.json"


def plan(
    config: KernelsConfig, site: Site, *, image: str | None = None, env: Mapping[str, str] | None = None
) -> Plan:
    """One step: the model generates, each rank writes its files into `profile/`. Raises as
    `refuse_plan`. env: the host's variables about GPUs and Slurm.
    """
    gpus = [(gpu.name, gpu.mem_bytes if site.resolved else None) for gpu in site.gpus]
    refuse_plan(config, vendor=site.vendor, gpus=gpus, image=image)
    text = msgspec.json.format(msgspec.json.encode(config)).decode()
    return Plan(
        steps=(_profile(config, site),),
        inputs={CONFIG: text},
        config=msgspec.to_builtins(config),
        notes=_notes(config, site, env or {}),
        models=_models(config),
    )


def _models(config: KernelsConfig) -> tuple[ModelNeed, ...]:
    """The checkpoint of the Hub that the profile loads if the cache has it. A folder's path is absolute."""
    model = known(config.model)
    hub_id = model.hub_id if model else config.model
    if config.weights == "random" or not hub_id or hub_id.startswith("/"):
        return ()
    needed = config.weights == "checkpoint" or config.eight_bit or not model
    return (ModelNeed(model=hub_id, without="" if needed else "without it the weights are random"),)


def _profile(config: KernelsConfig, site: Site) -> Step:
    launcher = torchrun(config.tp) if config.tp > 1 else ("python",)
    device = "cuda" if site.gpus else "cpu"
    arguments = f"-m lab.rooms.kernels.workload.main --config {CONFIG} --out {PROFILE} --device {device}"
    files = ("trace_rank{}.json*", "recorded_ops_rank{}.jsonl", "generation_rank{}.json")
    return Step(
        name=PROFILE,
        folder=PROFILE,
        num_gpus=config.tp if site.gpus else 0,
        argv=(*launcher, *arguments.split()),
        env={"TOKENIZERS_PARALLELISM": "false"} | ({} if site.gpus else {"OMP_NUM_THREADS": "1"}),
        expects=tuple(f"{PROFILE}/{name.format(rank)}" for rank in range(config.tp) for name in files),
        logs=(f"{PROFILE}/rank*.log",),
        labels={"model": config.model, "tp": config.tp},
    )


def torchrun(ranks: int) -> tuple[str, ...]:
    """The engine's own interpreter starts the ranks; port 0 keeps concurrent runs apart."""
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
        notes.append("no GPU: the trace holds CPU ops but no kernels; ops stand in for launches")
        if env:
            notes.append(f"to record kernels: {no_gpu_cure(env, config.tp)}")
    model = known(config.model)
    if config.weights == "random" or (model and not model.hub_id):
        notes.append("random weights: kernels and times are those of the architecture, but the text is noise")
    if not site.resolved:
        notes.append("these GPUs are not in this machine; their names are placeholders")
    return tuple(notes)


def replay_run(plan: ReplayPlan, mode: str, repeats: int, site: Site) -> Plan:
    """One step that reads nothing but the replay plan in the run folder."""
    flags = f"--plan {PLAN_FILE} --out replay --mode {mode} --repeats {repeats}"
    step = Step(
        name="replay",
        folder="replay",
        num_gpus=1 if site.gpus else 0,
        expects=(RAW_FILE,),
        labels={"mode": mode},
        argv=("python", "-m", "lab.rooms.kernels.workload.replay.main", *flags.split()),
    )
    return Plan(
        steps=(step,),
        config={
            "what": "replay",
            "mode": mode,
            "repeats": repeats,
            "source": plan.origin.run or plan.origin.trace,
        },
        inputs={PLAN_FILE: msgspec.json.encode(plan).decode()},
        notes=plan.notes,
    )


def energy_run(plan: ReplayPlan, config: EnergyConfig, site: Site) -> Plan:
    """One step on one GPU. Raises GpuError without a GPU: energy is never estimated."""
    if not site.gpus:
        raise GpuError(
            "energy is measured on a GPU, and there is none here",
            fix="run on a machine with a GPU; `lab doctor` lists the GPUs of this one",
        )
    flags = f"--plan {PLAN_FILE} --config {ENERGY_CONFIG} --out energy"
    step = Step(
        name="energy",
        folder="energy",
        num_gpus=1,
        expects=(ENERGY_RAW,),
        argv=("python", "-m", "lab.rooms.kernels.workload.energy.main", *flags.split()),
    )
    source = plan.origin.run or plan.origin.trace
    return Plan(
        steps=(step,),
        config={"what": "energy", **msgspec.to_builtins(config), "source": source},
        notes=plan.notes,
        inputs={
            PLAN_FILE: msgspec.json.encode(plan).decode(),
            ENERGY_CONFIG: msgspec.json.encode(config).decode(),
        },
    )
