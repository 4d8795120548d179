"""What nccl-tests and rccl-tests measured: how fast collectives of each size are on this machine, alone.

Sources: NVIDIA/nccl-tests (what it prints; `-J`, JSON version 3), ROCm/rccl-tests (`-Z json` and `-Z csv`).
"""

from lab.recordings.nccl.read import read_evidence
from lab.recordings.nccl.speed import Evidence

__all__ = ["Evidence", "read_evidence"]
