"""What a container may see of this host. Only the host's files are looked at."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from lab.core.files import cache_folder
from lab.core.gpu import Gpu
from lab.core.hub import hub_cache
from lab.engines.docker.nature import HasNature
from lab.images.container import HostContext


def host_context(run_dir: str, gpus: Sequence[Gpu], engine: HasNature | None = None) -> HostContext:
    """What a container of this engine gets of this host."""
    return HostContext(
        run_dir=run_dir,
        name=os.environ.get("SLURMD_NODENAME") or platform.node(),
        hf_cache=str(hub_cache()),
        cache=str(cache_folder()),
        uid=os.getuid(),
        gid=os.getgid(),
        user_mapping=engine.user_mapping if engine else "same",
        cdi=bool(engine and engine.cdi),
        device_gids=device_gids(gpus),
        host_env=dict(os.environ),
        infiniband=Path("/dev/infiniband").exists(),
    )


def device_gids(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The numeric groups that may open these GPUs' nodes. Names would be looked up in the image, and fail."""
    nodes = [Path(gpu.render_node) for gpu in gpus if gpu.render_node]
    if not nodes:
        return ()
    kfd = nodes[0].parent.parent / "kfd"
    present = [node for node in [kfd, *nodes] if node.exists()]
    return tuple(sorted({str(node.stat().st_gid) for node in present})) or ("<gid of /dev/kfd>",)
