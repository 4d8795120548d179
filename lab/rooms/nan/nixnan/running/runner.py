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
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.core.files import make_folder, sha256_of, write_atomic
from lab.errors import (
    BadDataError,
    EngineError,
    LabError,
    MissingError,
    StepFailed,
    UsageError,
)
from lab.rooms.nan.config import CONFIG, NanConfig, NixnanConfig
from lab.rooms.nan.nixnan.grammar import LOGGED, RUNNING, category, tidy
from lab.rooms.nan.nixnan.running.preflight import find_tool, preflight, scrubbed

# Instrumented code is a thousand times slower. A pass with LOG_KERNELS only lists kernels; `--only-kernel`
# then takes the few of a family in which a NaN is suspected.
LISTED = "kernels.log"  # what LOG_KERNELS names
SUSPECTS = ("attention", "softmax", "norm")  # where NaN are usually born in a Transformer
LOG, RECORD = "nixnan.log", "nixnan.json"
CONTEXT_LINE = b"Initializing GPU context"
LINE_INFO_CRASH = b"LINE_INFO"
POLL_S = 0.2
FIX = (
    "use CUDA_INJECTION64_PATH (--attach inject, the default): current drivers ignore LD_PRELOAD. The "
    "program must also use the GPU in its own process, without another injected tool (nsys, "
    "compute-sanitizer, a profiler)"
)


def launched(files: Iterable[Path]) -> Counter[str]:
    """Short name -> lines that name it, as nixnan's lists want it: cut at the first `<` or `(`."""
    launches: Counter[str] = Counter()
    for path in files:
        if not path.is_file():
            continue
        with path.open("rb") as file:
            for raw in file:
                line = tidy(raw.rstrip(b"\n")).decode(errors="replace")
                match = LOGGED.fullmatch(line) or RUNNING.fullmatch(line)
                if match:
                    launches[short_name(match[1])] += 1
    return launches


def short_name(full: str) -> str:
    """`void f<int>(float*)` -> `void f`; blanks at the end stay away."""
    cut = min((index for index in (full.find("<"), full.find("(")) if index > 0), default=len(full))
    return full[:cut].rstrip()


def advice(kernels: Counter[str]) -> list[str]:
    """What was launched by family, and the options that watch only one."""
    if not kernels:
        return ["nixnan listed no kernel: nothing can be said of what the program launches."]
    families: dict[str, list[str]] = {}
    for name in sorted(kernels):
        families.setdefault(category(name), []).append(name)
    lines = [f"{len(kernels)} kernels by nixnan's short names, in {len(families)} families:"]
    for word in sorted(families, key=lambda word: (word not in SUSPECTS, word)):
        options = " ".join(f"--only-kernel {quoted(name)}" for name in families[word])
        lines.append(f"  {word} ({len(families[word])}): {options}")
    return [*lines, "Launches that nixnan does not intercept (cuLaunchKernelEx, graphs) are not among them."]


def quoted(name: str) -> str:
    return "'" + name.replace("'", "'\\''") + "'"


@dataclass(frozen=True)
class Job:
    """What is run under the tool, and where."""

    config: NixnanConfig
    tool: Path
    out: Path
    command: Sequence[str]
    env: Mapping[str, str]


class Attempt(msgspec.Struct, kw_only=True):
    """One start of the command. `ended` says who ended it, `attached` that the log names a GPU context."""

    mode: str  # inject | preload
    line_info: bool
    exit_code: int = 0
    seconds: float = 0.0
    log_bytes: int = 0
    attached: bool = False
    ended: str = ""


def write_lists(config: NixnanConfig, out: Path) -> None:
    """Write what the tool reads from its working directory; lists of an earlier attempt are removed."""
    for name, kernels in (
        ("kernel_whitelist.txt", config.only_kernels),
        ("kernel_blacklist.txt", config.not_kernels),
    ):
        (out / name).unlink(missing_ok=True)
        if kernels:
            write_atomic(out / name, "\n".join(kernels) + "\n")
    if config.bin_spec:
        write_atomic(out / "bin_spec.json", config.bin_spec)


def start(job: Job, mode: str, line_info: bool) -> Attempt:
    """Run the command once under the tool. On an interrupt it has a grace period to write its report."""
    log, command = (job.out / LOG).absolute(), job.command
    keep_old(log)
    began = time.monotonic()
    attempt = Attempt(mode=mode, line_info=line_info)
    program = sys.executable if command[0] == "python" else command[0]
    words = [program, *command[1:], "--root", str(Path.cwd())]
    print(f"nixnan: {job.tool} by {mode}, log {log}", flush=True)
    with interrupted() as stop:
        try:
            child = subprocess.Popen(words, cwd=job.out, env=child_env(job, mode, line_info, log))
        except OSError as error:
            raise EngineError(f"cannot start the command: {error.strerror}", location=words[0]) from error
        attempt.ended = follow(child, log, job.config, stop)
    attempt.exit_code, attempt.seconds = child.returncode, round(time.monotonic() - began, 3)
    attempt.log_bytes = log.stat().st_size if log.exists() else 0
    attempt.attached = log_holds(log, CONTEXT_LINE)
    return attempt


def child_env(job: Job, mode: str, line_info: bool, log: Path) -> dict[str, str]:
    """The environment with one way of attaching the tool, never both, and all of its flags."""
    config = job.config
    flags = {
        "SAMPLING": config.sampling,
        "LINE_INFO": int(line_info),
        "MAX_ERRORS": config.max_errors,
        "HISTOGRAM": int(config.histogram),
        "ENABLE_FUN_DETAIL": int(config.fun_detail),
    }
    attach = "CUDA_INJECTION64_PATH" if mode == "inject" else "LD_PRELOAD"
    spec = {"BIN_SPEC_FILE": str(log.with_name("bin_spec.json"))} if config.bin_spec else {}
    if config.inventory:
        spec["LOG_KERNELS"] = str(log.with_name(LISTED))
    return {
        **scrubbed(job.env),
        **{name: str(value) for name, value in flags.items()},
        attach: str(job.tool),
        **spec,
        "LOGFILE": str(log),
    }


def follow(child: subprocess.Popen[bytes], log: Path, config: NixnanConfig, stop: list[int]) -> str:
    """Wait for the child; returns who ended it: "" (itself), "signal" or "log limit"."""
    ended, deadline = "", float("inf")
    while child.poll() is None:
        if not ended and stop:
            ended = "signal"
        elif not ended and log.exists() and log.stat().st_size > config.log_limit_bytes:
            ended = "log limit"
        if ended and deadline == float("inf"):
            child.send_signal(signal.SIGINT)  # at which the tool writes its report
            deadline = time.monotonic() + config.grace_s
        if time.monotonic() > deadline or len(stop) > 1:
            child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_S)
    return ended


@contextlib.contextmanager
def interrupted() -> Iterator[list[int]]:
    """Note signals that would end this process instead of dying: the command is ended first."""
    signals: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(kind, lambda number, _frame: signals.append(number)) for kind in kinds]
    try:
        yield signals
    finally:
        for kind, handler in zip(kinds, handlers, strict=True):
            signal.signal(kind, handler)


def crashed_by_line_info(attempt: Attempt, out: Path) -> bool:
    """Whether the tool's last note names LINE_INFO, as it does before a segmentation fault."""
    return attempt.exit_code not in (0, 130) and log_holds(out / LOG, LINE_INFO_CRASH)


def log_holds(log: Path, words: bytes) -> bool:
    """Whether a line of the tool holds `words`. Logs are large, but these lines come early or never."""
    try:
        with log.open("rb") as file:
            return any(words in line for line in file if line.lstrip(b"\0").startswith(b"#nixnan"))
    except OSError:
        return False


def keep_old(log: Path) -> None:
    """Keep an earlier attempt's log under a name of its own."""
    if log.exists():
        number = 1 + sum(1 for _ in log.parent.glob("nixnan.attempt*.log"))
        log.replace(log.with_name(f"nixnan.attempt{number}.log"))


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
    content = {
        "tool": {"path": str(tool), "bytes": tool.stat().st_size, "sha256": sha256_of(tool)},
        "flags": config,
        "attempts": attempts,
    }
    write_atomic(out / RECORD, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
