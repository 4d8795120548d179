"""Replay the ops of a recording on this machine.

    python -m lab.rooms.kernels.workload.replay.main --plan replay_plan.json --out DIR --mode hot

Every signature is called by itself first, as proof: what it launches is later compared with the original. hot
repeats it over the same buffers, cold after the L2 cache was overwritten, in-order runs the whole recording
again. Durations are the profiler's kernel durations, as the original's are; no host clock is used on a GPU.
Writes `replay_raw.json` and `environment.json` into DIR, each whole or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from lab.errors import GpuError
from lab.rooms.kernels.workload.replay.run import run
from lab.workload.start import start

MODES = ("hot", "cold", "in-order")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.rooms.kernels.workload.replay", description="Replay recorded ops."
    )
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--mode", choices=MODES, default="in-order")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args, _ = start(parser, argv)
    device = pick(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # as recorded; threads on a shared machine make equal calls differ
    run(args.plan, args.out, mode=args.mode, repeats=args.repeats, device=device)


def pick(name: str) -> torch.device:
    """The requested device; auto is the GPU if there is one. Raises GpuError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise GpuError(
            f"torch {torch.__version__} sees no GPU", fix="run in an image with GPU access, or --device cpu"
        )
    return torch.device("cuda", 0) if name != "cpu" and torch.cuda.is_available() else torch.device("cpu")


if __name__ == "__main__":
    main()
