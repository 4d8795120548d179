"""What the room's three workloads share: logging, and a description of where they ran."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import numpy as np
import torch

from lab.errors import UsageError
from lab.workload.environment import gpu_state, versions
from lab.workload.rank import RankContext
from lab.workload.start import write_json

log = logging.getLogger("lab.semicrf")


def set_up_logging() -> None:
    """Log to stdout at the level of PYTHONLOGLEVEL, as the guide promises."""
    level = os.environ.get("PYTHONLOGLEVEL", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise UsageError(
            f"PYTHONLOGLEVEL={level!r} is not a valid level", fix="DEBUG, INFO, WARNING or ERROR"
        )
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stdout, level="WARNING")
    log.setLevel(level)


def write_environment(out: Path, device: torch.device, context: RankContext) -> None:
    write_json(
        out / "environment.json",
        {
            "versions": versions(numpy=np.__version__),
            "device": device.type,
            "world_size": context.world_size,
            "smi": gpu_state(),
        },
    )
