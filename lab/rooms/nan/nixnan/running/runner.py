"""Run a command under the user's nixnan.so, one process, and say whether the tool really watched it.

    python -m lab.rooms.nan.nixnan.running.runner --config nan.json --out steps/eager -- COMMAND ...

Before: the tool is an ELF file for x86-64 that loads, nvdisasm is on PATH, the GPU is new enough. Then the
command runs in the step's folder (the tool reads its kernel lists from the working directory), with a log of
its own: every process that loads the tool empties the file that LOGFILE names. After: a log without a GPU
context is "loaded but never attached", an error and no clean run. Leaves `nixnan.log` and `nixnan.json` in
--out.

CUDA_INJECTION64_PATH goes first: under current drivers LD_PRELOAD loads the tool but never attaches it. No
torch here: this process must never touch the GPU itself.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.errors import (
    BadDataError,
    EngineError,
    LabError,
    MissingError,
    StepFailed,
    UsageError,
)
from lab.rooms.nan.config import CONFIG, NanConfig, NixnanConfig
from lab.rooms.nan.nixnan.running.attempt import (
    LOG,
    RECORD,
    Attempt,
    Job,
    crashed_by_line_info,
    start,
    write_lists,
)
from lab.rooms.nan.nixnan.running.inventory import LISTED, advice, launched
from lab.rooms.nan.nixnan.running.preflight import find_tool, preflight

FIX = (
    "use CUDA_INJECTION64_PATH (--attach inject, the default): current drivers ignore LD_PRELOAD. The "
    "program must also use the GPU in its own process, without another injected tool (nsys, "
    "compute-sanitizer, a profiler)"
)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="lab.rooms.nan.nixnan.running.runner", description="Run a command under nixnan.so."
    )
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(words[:cut])
    try:
        config = msgspec.json.decode(Path(args.config).read_bytes(), type=NanConfig).nixnan
        return run(config, args.out, words[cut + 1 :], os.environ)
    except msgspec.DecodeError as error:
        problem: LabError = BadDataError(f"invalid configuration: {error}", location=args.config)
    except OSError as error:
        problem = MissingError(f"cannot read: {error.strerror}", location=error.filename)
    except LabError as error:
        problem = error
    print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
    return problem.exit_code


def run(config: NixnanConfig, out: Path, command: Sequence[str], env: Mapping[str, str]) -> int:
    """The command's exit code, 0 only if the tool watched it. Raises EngineError, and as `preflight`."""
    if not command:
        raise UsageError("no command to run", fix="put it after --")
    tool = preflight(find_tool(env), env)
    make_folder(out)
    write_lists(config, out)
    job = Job(config, tool, out, command, env)
    attempts = []
    for mode in {"auto": ("inject", "preload")}.get(config.attach, (config.attach,)):
        attempts.append(start(job, mode, config.line_info))
        if config.line_info and crashed_by_line_info(attempts[-1], out):
            print("nixnan: the tool crashed on line information: running again without it", file=sys.stderr)
            attempts.append(start(job, mode, False))
        if attempts[-1].attached or attempts[-1].exit_code:
            break
    record(out, tool, config, attempts)
    if config.inventory:
        print("\n".join(advice(launched([out / LISTED, out / LOG]))), flush=True)
    return judge(attempts, out)


def judge(attempts: Sequence[Attempt], out: Path) -> int:
    """The last attempt's exit code. Raises EngineError for a run that succeeded unwatched."""
    last_attempt = attempts[-1]
    if last_attempt.ended == "log limit":
        raise StepFailed(
            "the log outgrew its limit and the program was stopped",
            location=out / LOG,
            fix="use fewer tokens, --sampling, --only-kernel or --max-errors",
        )
    if last_attempt.exit_code == 0 and not last_attempt.attached:
        ways = {"inject": "CUDA_INJECTION64_PATH", "preload": "LD_PRELOAD"}
        tried = " and ".join(ways[attempt.mode] for attempt in attempts)
        problem = f"the tool was loaded but never attached (by {tried})"
        raise EngineError(
            f"{problem}: no GPU context in its log, nothing was checked", location=out / LOG, fix=FIX
        )
    return last_attempt.exit_code if last_attempt.exit_code >= 0 else 128 - last_attempt.exit_code


def record(out: Path, tool: Path, config: NixnanConfig, attempts: Sequence[Attempt]) -> None:
    """Write what was run under what, beside the log: nixnan prints its flags to stdout, never to its log."""
    digest = hashlib.sha256(tool.read_bytes()).hexdigest()
    content = {
        "tool": {"path": str(tool), "bytes": tool.stat().st_size, "sha256": digest},
        "flags": config,
        "attempts": attempts,
    }
    write_atomic(out / RECORD, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
