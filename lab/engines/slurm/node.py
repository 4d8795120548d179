"""What a task knows of its node and its job, from Slurm's environment variables."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import msgspec

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.core.words import plural
from lab.engines.slurm.queue import node_address
from lab.errors import GpuError
from lab.gpus.discover import discover

FIRST_PORT, NUM_PORTS = 20000, 20000


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME", socket.gethostname())


def node_rank(env: Mapping[str, str] = os.environ) -> int:
    return int(env.get("SLURM_NODEID", "0"))


def job_id() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")


def on_this_node(step: Step, env: Mapping[str, str] = os.environ) -> Step:
    """The step with torchrun's static rendezvous filled in.

    A step over several nodes expects no files here: the driver looks for them when all nodes have ended.
    """
    if step.nodes == 1:
        return step
    values = {
        "{node_rank}": str(node_rank(env)),
        "{master_addr}": env.get("LAB_MASTER_ADDR")
        or node_address(env.get("SLURM_JOB_NODELIST", "localhost")),
        "{master_port}": str(FIRST_PORT + int(env.get("SLURM_JOB_ID", "0")) % NUM_PORTS),
    }
    argv = tuple(_filled(word, values) for word in step.argv)
    return msgspec.structs.replace(step, argv=argv, expects=())


def task_gpus(step: Step) -> list[Gpu]:
    """The GPUs that Slurm gave this task. Raises GpuError when the node shows fewer than the step needs."""
    if not step.num_gpus:
        return []
    shown = discover()
    if len(shown) < step.num_gpus:
        raise GpuError(
            f"step {step.name!r} needs {plural(step.num_gpus, 'GPU')} and this node shows {len(shown)}",
            where=node_name(),
            fix="ask Slurm for them with --gpus, or look at the node's driver",
        )
    return shown[: step.num_gpus]


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
