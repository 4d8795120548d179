"""What containers get of this host: its GPUs, their groups, its caches. Reads files only."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from lab.core.files import cache_folder
from lab.core.gpu import Gpu
from lab.core.options import Options
from lab.core.plan import Site
from lab.engines.docker.client import Nature, ask
from lab.errors import GpuError, UsageError
from lab.gpus.amd import device_gids
from lab.gpus.cdi import read_cdi, with_cdi_names
from lab.gpus.discover import look
from lab.gpus.neighbours import notes_on
from lab.gpus.selection import parse_spec, placeholders, select
from lab.hub import hub_cache
from lab.images import spec as images
from lab.images.container import HostContext
from lab.images.docker_cli import ANSWER_S, endpoint_of
from lab.images.preflight import refuse_unsuited
from lab.images.smoke import Box
from lab.images.spec import Image

DEFAULT_NUM_GPUS = 8  # assumed by a dry run on a machine without GPUs


def site_for(image: Image, options: Options) -> Site:
    """Raises GpuError for GPUs that are absent or not served, UsageError for any with a CPU-only image."""
    if image.vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                f"the image {image.name!r} is CPU-only", fix="drop --gpus, or choose another --image"
            )
        return Site(vendor="none")
    if parse_spec(options.gpus) == []:
        return Site(vendor=image.vendor)
    discovered = look()
    present = [gpu for gpu in discovered.gpus if gpu.vendor == image.vendor]
    notes = discovered.notes if image.vendor == "nvidia" else ()
    if present:
        chosen = select(with_cdi_names(present, read_cdi()), options.gpus, notes)
        refuse_unsuited(image, chosen, [images.load(name) for name in images.names()])
        return Site(vendor=image.vendor, gpus=tuple(chosen), notes=(*notes, *notes_on(chosen)))
    if options.dry_run:
        assumed = placeholders(image.vendor, options.gpus, DEFAULT_NUM_GPUS)
        return Site(vendor=image.vendor, gpus=tuple(assumed), resolved=False)
    raise GpuError(
        f"the image {image.name!r} needs {image.vendor} GPUs and none was found on this machine",
        fix="see `lab doctor`; use --image cpu to run without a GPU, or --dry-run to see the plan",
    )


def host_context(run_dir: str, gpus: Sequence[Gpu], engine: Nature | None = None) -> HostContext:
    """What a container of this engine gets of this host."""
    return HostContext(
        run_dir=run_dir,
        name=node_name(),
        hf_cache=str(hub_cache()),
        cache=str(cache_folder()),
        uid=os.getuid(),
        gid=os.getgid(),
        user_mapping=engine.user_mapping if engine else "same",
        cdi=bool(engine and engine.cdi),
        device_gids=device_gids(gpus),
        host_env=dict(os.environ),
        selinux=bool(engine and engine.selinux),
        infiniband=Path("/dev/infiniband").exists(),
    )


def node_name() -> str:
    """This machine, by Slurm's name for it in a job."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def smoke_box(gpus: Sequence[Gpu] = ()) -> Box:
    """These GPUs and the users of the engine here, to try images with."""
    nature = ask(endpoint_of(os.environ), ANSWER_S) or Nature()
    return Box(nature.user_mapping, nature.cdi, tuple(gpus), device_gids(gpus))
