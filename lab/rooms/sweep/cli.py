"""`lab run sweep`; `lab gemm` is in gemm/cli.py, `lab ranks` in ranks/cli.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from lab.rooms.sweep.gemm.cli import gemm
from lab.rooms.sweep.knobs import ALGORITHMS, PROTOCOLS
from lab.rooms.sweep.ranks.cli import ranks
from lab.terminal.options import ONE_OR_MORE, Finite, IntList, WordList, choice, option, options_of, seed

if TYPE_CHECKING:
    from lab.core.plan import Experiment

__all__ = ["gemm", "ranks", "run_sweep"]


@click.command("sweep")
@option(
    "-c",
    "--channels",
    type=IntList(minimum=0),
    default="28,42,56,70",
    help="NCCL/RCCL channel counts; 0: its own choice.",
)
@option(
    "-t",
    "--threads",
    type=IntList(minimum=0),
    default="256,512",
    help="Threads per block of collectives; 0: its own choice.",
)
@option(
    "--algorithms",
    type=WordList(("auto", *ALGORITHMS)),
    default="auto",
    help="Algorithms of collectives (NCCL_ALGO); auto: its own choice.",
)
@option(
    "--protocols",
    type=WordList(("auto", *PROTOCOLS)),
    default="auto",
    help="Protocols of collectives (NCCL_PROTO); auto: its own choice.",
)
@option(
    "-p",
    "--ranks",
    "--nproc",
    type=ONE_OR_MORE,
    help="Ranks on each node. [default: one per GPU; 2 without GPU]",
)
@option("--nodes", type=ONE_OR_MORE, default=1, help="Hosts (with --engine slurm).")
@option(
    "-f",
    "--config",
    help="Training config: a YAML file or a preset. [default: llm_wide on GPUs of 70 GB, llm on others, "
    "tiny without]",
)
@option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key of the training config; repeatable.",
)
@option("--repeats", type=ONE_OR_MORE, default=1, help="Runs of every setting: error bars need 3 or more.")
@choice("--order", "random given", "Order of the settings within a repeat.")
@seed(2025, "Seed of the random order.")
@choice("--channels-as", "pin max", "Set MIN and MAX channels, or only MAX.")
@click.option(
    "--tuner",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Run under this tuner file (lab ranks tuner): -c 0 -t 0 unless given.",
)
@click.option("--tuner-plugin", metavar="PATH", help="NCCL's tuner plugin, as the step sees its path.")
@option(
    "--pause",
    "pause_s",
    type=Finite(min=0),
    default=5.0,
    help="Seconds of rest before each run on GPUs.",
)
@click.option(
    "-s", "--skip-existing", is_flag=True, help="Skip settings with complete traces in --output-dir."
)
@click.pass_context
def run_sweep(
    ctx: click.Context,
    /,
    channels: list[int],
    threads: list[int],
    algorithms: list[str],
    protocols: list[str],
    skip_existing: bool,
    tuner: Path | None,
    overrides: tuple[str, ...],
    **knobs: object,
) -> Experiment:
    """Sweep settings of collectives over a training run, and report what they do to its GEMMs.

    Every combination of channels, threads, algorithms and protocols is run; those that NCCL refuses are
    named before anything runs. Exit code 1: a run failed, or an algorithm or protocol is not proven to have
    been used.
    """
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.errors import UsageError
    from lab.rooms.sweep.config.train import SweepConfig
    from lab.rooms.sweep.plan import inherited_notes, plan, without_few_gpus

    if tuner:  # its rows say the channels
        sources = {name: ctx.get_parameter_source(name) for name in ("channels", "threads")}
        channels = [0] if sources["channels"] == ParameterSource.DEFAULT else channels
        threads = [0] if sources["threads"] == ParameterSource.DEFAULT else threads
    config = msgspec.convert(
        {
            "channels": channels,
            "threads": threads,
            "algorithms": ["" if word == "auto" else word for word in algorithms],
            "protocols": ["" if word == "auto" else word for word in protocols],
            "overrides": list(overrides),
            "tuner": str(tuner) if tuner else None,
            **knobs,
        },
        SweepConfig,
    )

    if config.nodes > 1 and options_of(ctx).engine != "slurm":
        raise UsageError("--nodes above 1 needs a scheduler", fix="lab run --engine slurm sweep --nodes ...")

    def make_plan(site: Site, root: Path) -> Plan:
        sweep_plan = plan(config, site, root, skip_existing=skip_existing)
        inherited = inherited_notes(os.environ) if site.vendor != "none" else ()
        return msgspec.structs.replace(sweep_plan, notes=(*sweep_plan.notes, *inherited))

    options = msgspec.structs.replace(options_of(ctx), skip_existing=skip_existing)
    return Experiment(
        "sweep", make_plan, options, settle=lambda site: without_few_gpus(config, options, site)
    )
