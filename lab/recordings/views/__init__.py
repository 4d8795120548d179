"""Questions to a capture, as pure functions: who launched what, how busy was the GPU, which GEMMs ran.

A capture without GPU rows (gloo on a CPU) answers the same from its CPU ops; `device_of` says which.
"""

from lab.recordings.calls import launch_calls, of_graphs
from lab.recordings.views.collectives import collective_instances
from lab.recordings.views.launches import (
    COMM,
    COMP,
    MEMCOPY,
    classify,
    device_of,
    gemm_flops,
    gemm_instances,
    gpu_timeline,
    kernel_steps,
    link_ops,
    linked_by_id,
    op_parents,
    row_classes,
    steps_at,
)
from lab.recordings.views.roofline import (
    drawing_of,
    op_roofs,
    summary_of,
    work_owners,
)

__all__ = [
    "COMM",
    "COMP",
    "MEMCOPY",
    "classify",
    "collective_instances",
    "device_of",
    "drawing_of",
    "gemm_flops",
    "gemm_instances",
    "gpu_timeline",
    "kernel_steps",
    "launch_calls",
    "link_ops",
    "linked_by_id",
    "of_graphs",
    "op_parents",
    "op_roofs",
    "row_classes",
    "steps_at",
    "summary_of",
    "work_owners",
]
