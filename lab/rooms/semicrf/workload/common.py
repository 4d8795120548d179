"""What the room's three workloads share: how they begin, and their log."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from lab.errors import UsageError
from lab.rooms.semicrf.config import DRIFT
from lab.workload.environment import gpu_state, versions
from lab.workload.rank import choose_device
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.semicrf")
T = TypeVar("T")


def begin(
    workload: str, kind: type[T], argv: Sequence[str] | None, *flags: str
) -> tuple[argparse.Namespace, T, torch.device]:
    """The arguments, the config and the device; environment.json says where this runs. The log goes to stdout
    at the level of PYTHONLOGLEVEL, as the guide promises.
    """
    parser = argparse.ArgumentParser(prog=f"lab.rooms.semicrf.workload.{workload}")
    parser.add_argument("--config", required=True, type=Path)
    for flag in flags:
        parser.add_argument(flag, required=True)
    args, context = start(parser, argv)
    level = os.environ.get("PYTHONLOGLEVEL", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise UsageError(
            f"PYTHONLOGLEVEL={level!r} is not a valid level", fix="DEBUG, INFO, WARNING or ERROR"
        )
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stdout, level="WARNING")
    log.setLevel(level)
    device = choose_device(context)
    environment = {"versions": versions(numpy=np.__version__), "device": device.type, "smi": gpu_state()}
    write_json(args.out / "environment.json", {**environment, "world_size": context.world_size})
    return args, read_config(args.config, kind), device


def log_drift(epoch: int, transition_max: float, duration_max: float) -> None:
    """Log the parameters' magnitudes at the end of an epoch, in the guide's words."""
    sizes = f"transition_max={transition_max:.4f}, duration_bias_max={duration_max:.4f}"
    log.debug("Epoch %d CRF params: %s", epoch, sizes)
    if transition_max > DRIFT or duration_max > DRIFT:
        sizes = f"trans_max={transition_max:.2f}, dur_max={duration_max:.2f}"
        advice = "Consider increasing --crf-reg."
        log.warning("Epoch %d: CRF parameters drifting high! %s. %s", epoch, sizes, advice)
