"""One run of the program under the recorder.

    python -m lab.rooms.trials.workload.replay.main --config replay.json --out steps/run-0

The program's exit code is this process's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError, MissingError
from lab.rooms.trials.failure import shell_code
from lab.rooms.trials.replay import SETTINGS, START, read_replay
from lab.rooms.trials.workload.main import callers_environment
from lab.workload.hook import hooked
from lab.workload.recorder.format import files_of


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab.rooms.trials.workload.replay.main")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--cwd", help="where the command runs [default: here]")
    args = parser.parse_args(argv)
    try:
        return run(args.config, args.out.resolve(), args.cwd)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code


def run(path: Path, out: Path, cwd: str | None) -> int:
    """The command in its own folder, recorded in every Python process that imports torch."""
    config = read_replay(path)
    for leftover in files_of(out):  # of an attempt that was ended
        leftover.unlink()
    leave = "0" if config.to_the_end else "1"
    words = (str(out), str(config.steps), str(config.repeats), config.level, leave)
    env = hooked({**callers_environment(), SETTINGS: "|".join(words)}, START)
    python = sys.executable if config.command[0] == "python" else config.command[0]
    try:
        code = subprocess.run([python, *config.command[1:]], env=env, cwd=cwd, check=False).returncode
    except OSError as error:
        raise MissingError(
            f"the command cannot be started: {error}",
            location=cwd,
            fix="check the program and the folder",
        ) from error
    if not files_of(out):
        print("no record: no process of the command trained a model in a Python that loads torch", flush=True)
    return shell_code(code)


if __name__ == "__main__":
    raise SystemExit(main())
