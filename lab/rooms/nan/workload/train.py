"""A training job under the guard: the user's command with the hook on its PYTHONPATH.

    python -m lab.rooms.nan.workload.train --config nan.json --out steps/train

Leaves a mark of every process and a record of every model in --out. The command's exit code is this
process's exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.errors import MissingError, UsageError
from lab.rooms.nan.config import NanConfig, TrainConfig
from lab.workload.hook import hooked
from lab.workload.start import read_config, start

log = logging.getLogger("lab.workload")
GUARD = "lab.rooms.nan.watch.guard.process:start_from_env"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="lab.rooms.nan.workload.train", description="A training job, guarded."
    )
    parser.add_argument("--config", required=True, type=Path, help="nan.json of the run")
    args, _ = start(parser, argv)
    logging.basicConfig(
        level="INFO", format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S", stream=sys.stdout
    )
    config = read_config(args.config, NanConfig)
    if config.train is None:
        raise UsageError("this configuration has no training job", location=args.config)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    sys.exit(run_command(config.train, out))


def run_command(train: TrainConfig, out: Path) -> int:
    """The command in its own folder, with the guard in every Python process that imports torch."""
    env = hooked({**os.environ, "LAB_NAN_GUARD": str(out), "LAB_NAN_ON_BAD": train.on_bad}, GUARD)
    command = [sys.executable if train.command[0] == "python" else train.command[0], *train.command[1:]]
    try:
        code = subprocess.run(command, env=env, cwd=train.cwd or None, check=False).returncode
    except FileNotFoundError as error:
        raise MissingError(
            f"the command cannot be started: {error}",
            location=train.cwd,
            fix="check the program and the folder",
        ) from error
    if not [*out.glob("process_*.json")]:
        log.info("no record: no process of the command imported torch where lab's hook is loaded")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
