"""Where steps will run: which GPUs, which image, which engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from lab import images
from lab.engines.base import Engine
from lab.engines.gpus import discover, parse_spec, placeholders, select
from lab.engines.slurm_ask import Ask
from lab.errors import GpuError, UsageError
from lab.rooms import Site

DEFAULT_NPROC = 8  # what a dry run assumes of GPUs that are not in this machine


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `lab run` itself; the room's own are in its config."""

    image: str | None = None
    engine: str | None = None
    gpus: str = "all"
    jobs: int = 1
    dry_run: bool = False
    json: bool = False
    output_dir: Path | None = None
    skip_existing: bool = False
    timeout_s: float | None = None
    stall_timeout_s: float | None = None
    analysis: Literal["auto", "host", "none"] = "auto"  # auto: in the cpu image where steps ran in containers
    quiet: bool = False
    wait: bool = True  # for GPUs that another process holds
    slurm: Ask | None = None  # with --engine slurm
    vendor: str | None = None  # of the GPUs of the Slurm nodes, where no image says it
    detach: bool = False  # leave the waiting and the analysis to a job


def survey(options: Options) -> Site:
    """Which GPUs the steps will get, by flags and by what is here. A GPU asked for and not here is an error."""
    if options.engine == "slurm":
        return _survey_slurm(options)
    if options.image is None:
        return _survey_here(options)
    image = images.load(options.image)
    if image.vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                f"the image {image.name!r} has no use for GPUs", fix="drop --gpus, or choose another --image"
            )
        return Site(vendor="none")
    present = [gpu for gpu in discover() if gpu.vendor == image.vendor]
    if present:
        return Site(vendor=image.vendor, gpus=tuple(select(present, options.gpus)))
    if options.dry_run:
        return Site(
            vendor=image.vendor,
            gpus=tuple(placeholders(image.vendor, options.gpus, DEFAULT_NPROC)),
            resolved=False,
        )
    if parse_spec(options.gpus) == []:
        return Site(vendor=image.vendor)
    raise GpuError(
        f"the image {image.name!r} wants {image.vendor} GPUs and this machine shows none",
        fix="see `lab doctor`; use --image cpu for a run without GPU, or --dry-run to see the plan",
    )


def _survey_slurm(options: Options) -> Site:
    """What each node is asked for. Nothing is looked at here: this is a login node, and shows no GPU."""
    vendor = options.vendor or (images.load(options.image).vendor if options.image else "none")
    wanted = parse_spec(options.gpus)
    if vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                "GPUs of which vendor?", fix="--vendor nvidia or amd, or an --image that says it"
            )
        return Site(vendor="none")
    if not isinstance(wanted, int):
        raise UsageError(
            "on Slurm --gpus is how many GPUs each node gives, not which",
            where=f"--gpus {options.gpus}",
            fix="for example --gpus 8",
        )
    return Site(vendor=vendor, gpus=tuple(placeholders(vendor, options.gpus, wanted)), resolved=False)


def _survey_here(options: Options) -> Site:
    present = discover()
    chosen = tuple(select(present, options.gpus))
    return Site(vendor=chosen[0].vendor if chosen else "none", gpus=chosen)


def make_engine(options: Options, site: Site) -> Engine:
    image = images.load(options.image) if options.image else None
    name = options.engine or ("docker" if image else "local")
    if name == "docker":
        from lab.engines.docker import DockerEngine

        if image is None:
            raise UsageError("the docker engine needs an image", fix=f"--image {'|'.join(images.names())}")
        return DockerEngine(image)
    if name == "slurm":
        from lab.engines.slurm import SlurmEngine

        return SlurmEngine(options.slurm or Ask(), image=image, vendor=site.vendor)
    if name != "local":
        raise UsageError(f"there is no engine {name!r}", fix="local, docker or slurm")
    if image is not None:
        raise UsageError(
            "the local engine runs in this environment, not in an image", fix="drop --image or --engine local"
        )
    from lab.engines.local import LocalEngine

    return LocalEngine(vendor=site.vendor)
