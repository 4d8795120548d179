"""What the room's three workloads share: how they begin, and their log."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import numpy as np
import torch

from lab.errors import UsageError
from lab.workload.environment import gpu_state, versions
from lab.workload.rank import choose_device
from lab.workload.start import start, write_json

log = logging.getLogger("lab.semicrf")


def begin(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, torch.device]:
    """The arguments and the device; environment.json says where this runs."""
    args, context = start(parser, argv)
    set_up_logging()
    device = choose_device(context)
    environment = {"versions": versions(numpy=np.__version__), "device": device.type, "smi": gpu_state()}
    write_json(args.out / "environment.json", {**environment, "world_size": context.world_size})
    return args, device


def set_up_logging() -> None:
    """Log to stdout at the level of PYTHONLOGLEVEL, as the guide promises."""
    level = os.environ.get("PYTHONLOGLEVEL", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise UsageError(
            f"PYTHONLOGLEVEL={level!r} is not a valid level", fix="DEBUG, INFO, WARNING or ERROR"
        )
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stdout, level="WARNING")
    log.setLevel(level)
