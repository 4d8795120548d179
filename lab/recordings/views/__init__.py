"""Questions to a trace, as pure functions: who launched what, how busy was the GPU, which GEMMs ran.

A trace without GPU rows (gloo on a CPU) answers the same questions from its CPU ops; `device_of` says which.
"""

from lab.recordings.views.collectives import collective_instances
from lab.recordings.views.gemms import gemm_instances
from lab.recordings.views.launches import (
    STEP_PREFIX,
    device_of,
    kernel_steps,
    launch_calls,
    launches_graph,
    link_ops,
    linked_by_id,
    of_graphs,
    steps_at,
)
from lab.recordings.views.timeline import COMM, COMP, MEMCOPY, classify, gpu_timeline

__all__ = [
    "COMM",
    "COMP",
    "MEMCOPY",
    "STEP_PREFIX",
    "classify",
    "collective_instances",
    "device_of",
    "gemm_instances",
    "gpu_timeline",
    "kernel_steps",
    "launch_calls",
    "launches_graph",
    "link_ops",
    "linked_by_id",
    "of_graphs",
    "steps_at",
]
