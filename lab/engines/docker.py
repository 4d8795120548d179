"""Steps in containers. This version decides what a container gets; starting one comes with the driver's issue."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.engines.gpus import Gpu
from lab.engines.stop import Stop
from lab.errors import EngineError
from lab.images import Image, Place, container_spec
from lab.secrets import redact_env, secret_values


class DockerEngine:
    name = "docker"

    def __init__(self, image: Image) -> None:
        self.image = image

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        spec = container_spec(self.image, step, gpus, place(run_dir, gpus))
        return {**msgspec.to_builtins(spec), "env": redact_env(spec.env, secret_values())}

    def run(
        self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: Callable[[str], None], stop: Stop
    ) -> Outcome:
        raise EngineError(
            "this version of lab cannot start containers yet",
            fix="drop --image to run here, or add --dry-run",
        )


def place(run_dir: str, gpus: Sequence[Gpu]) -> Place:
    """What of this host a container may see. Looks at the host's files, at nothing else."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lab"
    return Place(run_dir=run_dir, hf_cache=os.environ.get("HF_HOME", str(Path.home() / ".cache/huggingface")),
                 cache=str(cache), uid=os.getuid(), gid=os.getgid(), device_gids=device_gids(gpus),
                 host_env=dict(os.environ), infiniband=Path("/dev/infiniband").exists())  # fmt: skip


def device_gids(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The numeric groups that may open these GPUs' nodes; names would be resolved inside the image, and fail."""
    nodes = [Path(gpu.render_node) for gpu in gpus if gpu.render_node]
    if not nodes:
        return ()
    kfd = nodes[0].parent.parent / "kfd"
    present = [node for node in [kfd, *nodes] if node.exists()]
    return tuple(sorted({str(node.stat().st_gid) for node in present})) or ("<gid of /dev/kfd>",)
