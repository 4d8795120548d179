"""What NCCL's own tools say about collectives, beside a trace: nccl-tests, NCCL Inspector, RAS.

The kind of a file is told from its content. Sources: NVIDIA/nccl-tests (`-J`, JSON version 3), NVIDIA/nccl
`ext-profiler/inspector` (format v4.0) and `ncclras -f json` (2.28.7 on).
"""

from lab.recordings.nccl.read import Evidence, read_evidence

__all__ = ["Evidence", "read_evidence"]
