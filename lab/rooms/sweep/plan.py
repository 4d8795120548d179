"""From a SweepConfig and a site to the steps of the sweep. Pure, except for a look at existing results."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from lab.core.options import Options
from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.core.words import plural, printable
from lab.errors import GpuError, UsageError
from lab.rooms.sweep.config.load import dump_train_config, ignored_keys, load_train_config, planned_steps
from lab.rooms.sweep.config.train import SweepConfig, TrainConfig
from lab.rooms.sweep.knobs import Key, Knobs, folder_of, refusal, variables
from lab.rooms.sweep.tuner.file import read_rows
from lab.stats.means import student_t

TRAIN_CONFIG, TUNER = "train.yaml", "tuner.conf"
CPU_RANKS = 2
# Variables that request what a sweep varies.
INHERITED = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "RCCL_THREADS_PER_BLOCK"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE"),
)
# From so much memory on a GPU holds the wide model on one rank, and is fast enough to need it.
LARGE_BYTES = 70e9
LEVEL = 0.05  # of the comparison that a sweep is planned for
# Simulated with 8 settings: 3 blocks find a difference of 3 sd in 72 % of sweeps, 4 blocks in 90 %.
ADVISED_REPEATS = 4


def plan(config: SweepConfig, site: Site, root: Path, *, skip_existing: bool = False) -> Plan:
    """One step per repeat and setting; every repeat is a pass of its own in random order.

    Settings that NCCL refuses are left out of every pass, and named. Raises UsageError if none is left.
    """
    ranks = ranks_per_node(config, site)
    config = msgspec.structs.replace(config, ranks=ranks, config=config.config or default_preset(site))
    train = load_train_config(str(config.config), config.overrides)
    planned_steps(train, ranks * config.nodes)
    settings, refused = _settings(config, train, site)
    steps = tuple(_step(config, train, site, key) for key in _order(config, settings))
    recorded = {
        step.name: "its traces exist already" for step in steps if skip_existing and complete(root, step)
    }
    return Plan(
        steps=steps,
        inputs={TRAIN_CONFIG: dump_train_config(train), **_tuner_input(config)},
        config=msgspec.to_builtins(config),
        skipped=recorded,
        notes=_notes(config, train, site, len(settings), refused),
    )


def default_preset(site: Site) -> str:
    """The training that keeps these GPUs busy: without GPUs the dry run, on large ones the wide model."""
    if not site.gpus:
        return "tiny"
    return "llm_wide" if all((gpu.mem_bytes or 0) >= LARGE_BYTES for gpu in site.gpus) else "llm"


def _tuner_input(config: SweepConfig) -> dict[str, str]:
    """The tuner's file as an input of the run, once it has been checked: NCCL's example does not check."""
    if config.tuner is None:
        return {}
    path = Path(config.tuner)
    # NCCL's example reads an unknown word as allreduce, ring or simple: a typo would tune another collective.
    read_rows(path)
    return {TUNER: path.read_text(encoding="utf-8", errors="replace")}


def ranks_per_node(config: SweepConfig, site: Site) -> int:
    """Ranks as requested, or one per GPU. More ranks than GPUs is an error: they would measure each other."""
    ranks = config.ranks or len(site.gpus) or CPU_RANKS
    if site.gpus and ranks > len(site.gpus):
        raise GpuError(
            f"{plural(ranks, 'rank')} requested on {plural(len(site.gpus), 'GPU')}",
            fix="lower --ranks or widen --gpus; --gpus none runs any number of ranks on the CPU",
        )
    return ranks


def without_few_gpus(config: SweepConfig, options: Options, site: Site) -> Site:
    """The site as it is; without its GPUs where they were not chosen and are fewer than the ranks.

    So one command works on a machine with any number of GPUs: more ranks than GPUs measure each other.
    """
    ranks = config.ranks or 0
    if options.gpus != "all" or options.image or not 0 < len(site.gpus) < ranks:
        return site
    note = (
        f"{plural(ranks, 'rank')} are more than {plural(len(site.gpus), 'GPU')} here: they run on the CPU "
        f"(--ranks {len(site.gpus)} runs on the GPU{'s' * (len(site.gpus) > 1)})"
    )
    return msgspec.structs.replace(site, vendor="none", gpus=(), notes=(*site.notes, note))


def complete(root: Path, step: Step) -> bool:
    return all(any(path.stat().st_size for path in root.glob(pattern)) for pattern in step.expects)


def _settings(config: SweepConfig, train: TrainConfig, site: Site) -> tuple[list[Knobs], list[str]]:
    """Every setting to run, threads outside and channels inside as users know it; and what is refused."""
    lists = (config.threads, config.channels, config.algorithms, config.protocols)
    combinations = [Knobs(*values) for values in itertools.product(*lists)]
    # The collectives that move the training's data.
    kinds = ("all_reduce",) if train.distributed.mode == "ddp" else ("all_gather", "reduce_scatter")
    refuse = partial(refusal, kinds=kinds, vendor=site.vendor, nodes=config.nodes, ranks=config.ranks or 1)
    reasons = {knobs: refuse(knobs) for knobs in combinations}
    texts = [
        f"{' '.join(filter(None, knobs[2:]))} is left out: {reason}"
        for knobs, reason in reasons.items()
        if reason
    ]
    refused = list(dict.fromkeys(texts))
    accepted = [knobs for knobs in combinations if reasons[knobs] is None]
    if not accepted:
        raise UsageError(
            "no setting is left to run:\n" + "\n".join(f"  {text}" for text in refused),
            fix="change --algorithms or --protocols; tree needs a training that all-reduces (-f encoder20)",
        )
    return accepted, refused


def _order(config: SweepConfig, settings: Sequence[Knobs]) -> list[Key]:
    """Every setting once per repeat, shuffled in each."""
    generator = random.Random(config.seed)
    cells: list[Key] = []
    for repeat in range(1, config.repeats + 1):
        one_pass = [Key(*knobs, repeat) for knobs in settings]
        if config.order == "random":
            generator.shuffle(one_pass)
        cells += one_pass
    return cells


def _step(config: SweepConfig, train: TrainConfig, site: Site, key: Key) -> Step:
    knobs, repeat = key.knobs, key.repeat
    folder = folder_of(knobs) + (f"/repeat{repeat}" if repeat > 1 else "")
    requested = {name: word for name in ("algorithm", "protocol") if (word := getattr(knobs, name))}
    parts = [
        f"{knobs.threads}t_{knobs.channel}ch",
        *requested.values(),
        f"repeat{repeat}" if repeat > 1 else "",
    ]
    name = "_".join(filter(None, parts))
    ranks = config.ranks or 1
    world_size = ranks * config.nodes
    # One rank needs no torchrun.
    launcher = torchrun(ranks, name, config.nodes) if world_size > 1 else ("python",)
    traces = [f"{folder}/torch_profiler/rank{rank}/*.json*" for rank in range(world_size)]
    metrics = [f"{folder}/rank_{rank:02d}_metrics.jsonl" for rank in range(world_size)]
    return Step(
        name=name,
        folder=folder,
        num_gpus=ranks if site.gpus else 0,
        nodes=config.nodes,
        argv=(*launcher, "-m", "lab.rooms.sweep.workload", "--config", TRAIN_CONFIG, "--out", folder),
        env={**collective_env(site.vendor, knobs, folder, config.channels_as), **_tuner_env(config, site)},
        timeout_s=config.step_timeout_s,
        settle_s=config.pause_s if site.gpus else 0.0,
        expects=tuple(traces if train.profiling.enabled else metrics),
        logs=(f"{folder}/rank*.log",),
        labels={"threads": key.threads, "channels": key.channel, **requested, "repeat": repeat},
    )


def torchrun(ranks: int, name: str, nodes: int = 1) -> tuple[str, ...]:
    """How torch starts the ranks of a step.

    On one node with port 0, so that the rendezvous takes a free port and sweeps side by side do not meet.
    Over nodes with the static rendezvous, whose address the engine fills in on each node.
    """
    command = ("python", "-m", "torch.distributed.run", f"--nproc_per_node={ranks}")
    if nodes == 1:
        return (*command, "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", f"--rdzv_id={name}")
    return (
        *command,
        f"--nnodes={nodes}",
        "--node_rank={node_rank}",
        "--rdzv_backend=static",
        "--master_addr={master_addr}",
        "--master_port={master_port}",
    )


def collective_env(vendor: str, knobs: Knobs, folder: str, channels_as: str) -> dict[str, str]:
    """The variables that request this setting, by vendor; gloo (vendor "none") has no such setting.

    0 and "" request nothing. TUNING logs one line per call, on rank 0: algorithm and protocol.
    """
    if vendor == "none":
        return {"OMP_NUM_THREADS": "1"}  # what torchrun sets too, without its warning
    threads, channels = knobs.threads, knobs.channel
    channel_env = {"NCCL_MAX_NCHANNELS": str(channels)} if channels else {}
    if channels and channels_as == "pin":
        channel_env["NCCL_MIN_NCHANNELS"] = str(channels)
    logs = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log",
    }
    threads_name = "RCCL_THREADS_PER_BLOCK" if vendor == "amd" else "NCCL_NTHREADS"
    asked = {threads_name: str(threads)} if threads else {}
    # Without SDMA, copies are kernels that compete for the same units as the GEMMs: the case under study.
    copies = {"HSA_ENABLE_SDMA": "0"} if vendor == "amd" else {}
    return {**asked, **channel_env, **variables(knobs), **copies, **logs}


def _tuner_env(config: SweepConfig, site: Site) -> dict[str, str]:
    if config.tuner is None or site.vendor == "none":
        return {}
    plugin = {"NCCL_TUNER_PLUGIN": config.tuner_plugin} if config.tuner_plugin else {}
    return {"NCCL_TUNER_CONFIG_FILE": TUNER, **plugin}


def inherited_notes(env: Mapping[str, str]) -> tuple[str, ...]:
    """What the caller's own environment requests of NCCL, where a setting leaves it to the library."""
    inherited = [f"{name}={printable(env[name])[:60]}" for name in INHERITED if name in env]
    note = (
        f"your environment has {', '.join(inherited)}: without a container a step inherits it, also where "
        "its setting says auto or 0"
    )
    return (note,) if inherited else ()


def _notes(
    config: SweepConfig, train: TrainConfig, site: Site, num_settings: int, refused: Sequence[str]
) -> tuple[str, ...]:
    notes = list(refused)
    if config.config == "llm" and site.gpus and default_preset(site) == "llm_wide":
        notes.append("on these GPUs the hosts set the pace of `llm`: -f llm_wide compares NCCL's settings")
    if site.gpus and (note := design_note(num_settings, config.repeats)):
        notes.append(note)
    if keys := ignored_keys(train):
        notes.append(f"these keys of the training config have no effect here: {', '.join(keys)}")
    if site.vendor == "none":
        notes.append("no GPU: the ranks communicate through gloo, which has no channels or threads per block")
        if any([*config.algorithms, *config.protocols]):
            notes.append(
                "gloo has no algorithms or protocols to choose either: what is requested has no effect"
            )
    if "ll128" in config.protocols and site.vendor != "none":
        notes.append(
            "NCCL warns that ll128 may corrupt data on links for which it does not choose it itself: compare "
            "the losses of its runs with the others'"
        )
    if not site.resolved:
        notes.append("these GPUs are not in this machine; their names are placeholders")
    return tuple(notes)


def detectable_sd(num_settings: int, repeats: int) -> float:
    """The smallest difference between a setting and the one it is compared to, in sd of a run.

    The unit is one launch of the job. Every repeat is a pass over all settings in random order, so it is a
    block: log(time) = setting + block + error, and settings are compared by t with the pooled error (Dunnett
    1955; the limit here is Bonferroni's, which is a little wider). Infinite for one repeat or one setting,
    which leave no error to compare with.
    """
    free = (num_settings - 1) * (repeats - 1)
    if free < 1:
        return math.inf
    return student_t(LEVEL / (num_settings - 1), free) * math.sqrt(2 / repeats)


def design_note(num_settings: int, repeats: int) -> str | None:
    """What this design can show, and which would show more; None for one setting."""
    if num_settings < 2:
        return None
    limit = detectable_sd(num_settings, repeats)
    if math.isinf(limit):
        better = detectable_sd(num_settings, ADVISED_REPEATS)
        return (
            "one run of each setting cannot tell a difference from chance; "
            f"--repeats {ADVISED_REPEATS} shows differences above {better:.1f} sd of a run"
        )
    # With a residual of 1 %, which is usual for GPU-bound steps, so many repeats show 2 %.
    needed = next((n for n in range(2, 100) if detectable_sd(num_settings, n) <= 2), 100)
    advice = f"; {needed} repeats show 2 % where runs scatter by 1 %" if needed > repeats else ""
    return (
        f"{repeats} repeats of {num_settings} settings in blocks show differences above {limit:.1f} sd of a "
        f"run against one setting named beforehand{advice}"
    )
