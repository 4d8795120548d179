"""Run a command under the user's nixnan.so, one process, and say whether the tool really watched it.

    python -m lab.rooms.nan.nixnan.runner --config nan.json --out steps/eager -- python -m lab.rooms.nan.workload ...

Before: the tool is an ELF file for x86-64 that loads, nvdisasm is on PATH, the GPU is new enough. Then the command runs in
the step's folder (the tool reads its kernel lists from the working directory), with a log of its own: every process that
loads the tool empties the file that LOGFILE names. After: a log without a GPU context is "loaded but never attached", an
error and no clean run. Leaves `nixnan.log` and `nixnan.json` in --out.

CUDA_INJECTION64_PATH goes first: under current drivers LD_PRELOAD loads the tool but never attaches it.
No torch here: this process must never touch the GPU itself.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.engines.docker.mounts import check_shared_object
from lab.errors import (
    BadDataError,
    ConfigError,
    EngineError,
    GpuError,
    LabError,
    MissingError,
    StepFailed,
    UsageError,
)
from lab.rooms.nan.config import CONFIG, NanConfig, NixnanConfig

LOG, RECORD = "nixnan.log", "nixnan.json"
SAID_CONTEXT = b"Initializing GPU context"
LINE_INFO_CRASH = b"LINE_INFO"
LEAST_CAPABILITY = 8.6
KNOWN_PLACES = (
    "nixnan.so",
    "../nixnan/nixnan.so",
    "~/nixnan/nixnan.so",
    "/opt/lab/nixnan.so",
    "/opt/nixnan/nixnan.so",
    "/usr/local/lib/nixnan.so",
)
STEERING = (
    "SAMPLING",
    "LINE_INFO",
    "MAX_ERRORS",
    "HISTOGRAM",
    "BIN_SPEC_FILE",
    "ENABLE_FUN_DETAIL",
    "LOGFILE",
)
POLL_S = 0.2
CURE = (
    "use CUDA_INJECTION64_PATH (--attach inject, the default): current drivers ignore LD_PRELOAD. The program must also "
    "use the GPU in its own process, and nothing else may hold the injection (nsys, compute-sanitizer, a profiler)"
)


class Attempt(msgspec.Struct, kw_only=True):
    """One start of the command. `ended` says who ended it; `attached` that the log names a GPU context."""

    mode: str  # inject | preload
    line_info: bool
    exit_code: int = 0
    seconds: float = 0.0
    log_bytes: int = 0
    attached: bool = False
    ended: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="lab.rooms.nan.nixnan.runner", description="Run a command under nixnan.so."
    )
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(words[:cut])
    try:
        config = msgspec.json.decode(Path(args.config).read_bytes(), type=NanConfig).nixnan
        return run(config, args.out, words[cut + 1 :], os.environ)
    except msgspec.DecodeError as error:
        problem: LabError = BadDataError(f"the configuration does not fit: {error}", where=args.config)
    except OSError as error:
        problem = MissingError(f"cannot read: {error.strerror}", where=error.filename)
    except LabError as error:
        problem = error
    print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
    return problem.exit_code


def run(config: NixnanConfig, out: Path, command: Sequence[str], env: Mapping[str, str]) -> int:
    """The command's exit code, 0 only if the tool watched it. Raises what `preflight` raises, and EngineError."""
    if not command:
        raise UsageError("no command to run", fix="put it after --")
    tool = preflight(find_tool(env), env)
    make_folder(out)
    write_lists(config, out)
    attempts = []
    for mode in {"auto": ("inject", "preload")}.get(config.attach, (config.attach,)):
        attempts.append(start(config, mode, config.line_info, tool, out, command, env))
        if config.line_info and crashed_by_line_info(attempts[-1], out):
            print("nixnan: the tool crashed over line information: once more without it", file=sys.stderr)
            attempts.append(start(config, mode, False, tool, out, command, env))
        if attempts[-1].attached or attempts[-1].exit_code:
            break
    record(out, tool, config, attempts)
    return judge(attempts, out)


def judge(attempts: Sequence[Attempt], out: Path) -> int:
    """The last attempt's exit code. Raises EngineError for a run that succeeded unwatched."""
    last = attempts[-1]
    if last.ended == "log limit":
        raise StepFailed(
            "the log outgrew its limit and the program was stopped",
            where=out / LOG,
            fix="fewer tokens, --sampling, --only-kernel, or --max-errors",
        )
    if last.exit_code == 0 and not last.attached:
        tried = " and ".join(
            "CUDA_INJECTION64_PATH" if one.mode == "inject" else "LD_PRELOAD" for one in attempts
        )
        raise EngineError(
            f"the tool was loaded but never attached (by {tried}): no GPU context in its log, so nothing "
            "was checked",
            where=out / LOG,
            fix=CURE,
        )
    return last.exit_code if last.exit_code >= 0 else 128 - last.exit_code


# Before the run.


def find_tool(env: Mapping[str, str]) -> Path:
    """NIXNAN_SO, what an image put in place, or a known place. Raises MissingError."""
    for name in ("NIXNAN_SO", "CUDA_INJECTION64_PATH"):
        if env.get(name):
            path = Path(env[name]).expanduser()
            if not path.is_file():
                raise MissingError(
                    f"what {name} names is not there", where=path, fix="name the nixnan.so that you built"
                )
            return path.resolve()
    for place in KNOWN_PLACES:
        if Path(place).expanduser().is_file():
            return Path(place).expanduser().resolve()
    raise MissingError(
        "no nixnan.so: NIXNAN_SO is not set, and none lies in the known places",
        where=", ".join(KNOWN_PLACES),
        fix="build it from parfloat/nixnan and name it in NIXNAN_SO",
    )


def preflight(tool: Path, env: Mapping[str, str]) -> Path:
    """Everything that would otherwise show as an empty log: wrong file, missing nvdisasm, old GPU, a rival injection."""
    check_shared_object(tool)
    if shutil.which("nvdisasm", path=env.get("PATH")) is None:
        raise MissingError(
            "nvdisasm is not on PATH: the tool disassembles kernels with it",
            fix="it comes with the CUDA toolkit: add its bin folder to PATH",
        )
    rival = env.get("CUDA_INJECTION64_PATH", "")
    if rival and Path(rival).resolve() != tool:
        raise UsageError(
            "another tool is already injected into CUDA programs",
            where=rival,
            fix="unset CUDA_INJECTION64_PATH: nsys, a sanitizer and nixnan exclude each other",
        )
    check_loads(tool, env)
    check_gpu(env)
    return tool


def check_loads(tool: Path, env: Mapping[str, str]) -> None:
    """Load it in a process of its own: a missing library or symbol is told by the loader's words."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=1)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tool)],
        env=scrubbed(env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        why = words[-1] if words else f"ended with {done.returncode}"
        raise MissingError(
            f"the tool cannot be loaded: {why}",
            where=tool,
            fix="build it against this machine's CUDA 12 and driver",
        )


def check_gpu(env: Mapping[str, str]) -> None:
    """Raises GpuError for a GPU older than the tool knows. No nvidia-smi: the run itself will tell."""
    smi = shutil.which("nvidia-smi", path=env.get("PATH"))
    if smi is None:
        return
    command = [smi, "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=False)
    for line in done.stdout.splitlines() if not done.returncode else ():
        capability, _, name = line.partition(",")
        with contextlib.suppress(ValueError):
            if float(capability) < LEAST_CAPABILITY:
                raise GpuError(
                    f"{name.strip()} has compute capability {capability}: nixnan needs {LEAST_CAPABILITY} or newer",
                    fix="use an Ampere GPU (RTX 30xx, A10) or newer; `lab run nan` works on every GPU",
                )


def read_bin_spec(path: Path) -> str:
    """The text of a specification of exponent bins. The tool ends with 0 before running anything if it cannot read it."""
    try:
        text = path.read_text(encoding="utf-8")
        found = msgspec.json.decode(text)
    except FileNotFoundError as error:
        raise MissingError("no such bin specification", where=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the bin specification is no JSON: {error}", where=path) from error
    check_bin_spec(found, path)
    return text


def check_bin_spec(found: Any, path: Path) -> None:
    """{"count": n, "f16": [[low, high], ...], ...}: exponents in order. Raises ConfigError."""
    if not isinstance(found, dict) or not isinstance(found.get("count"), int):
        raise ConfigError('a bin specification is {"count": n, "f16": [[low, high], ...]}', where=path)
    for name, bins in found.items():
        if name == "count":
            continue
        if name not in ("f16", "bf16", "f32", "f64") or not isinstance(bins, list):
            raise ConfigError(
                f"{name!r} is no type with a list of bins", where=path, fix="f16, bf16, f32 or f64"
            )
        for one in bins:
            good = isinstance(one, list) and len(one) == 2 and all(isinstance(end, int) for end in one)
            if not good or one[0] > one[1]:
                raise ConfigError(f"{one!r} of {name} is no range [low, high]", where=path)


def write_lists(config: NixnanConfig, out: Path) -> None:
    """What the tool reads from its working directory; the lists of an earlier attempt are put away."""
    for name, kernels in (
        ("kernel_whitelist.txt", config.only_kernels),
        ("kernel_blacklist.txt", config.not_kernels),
    ):
        (out / name).unlink(missing_ok=True)
        if kernels:
            write_atomic(out / name, "\n".join(kernels) + "\n")
    if config.bin_spec:
        write_atomic(out / "bin_spec.json", config.bin_spec)


# The run.


def start(
    config: NixnanConfig,
    mode: str,
    line_info: bool,
    tool: Path,
    out: Path,
    command: Sequence[str],
    env: Mapping[str, str],
) -> Attempt:
    """Run the command once under the tool. An interrupt reaches it, then it has the grace to write its report."""
    log = (out / LOG).absolute()
    keep_old(log)
    began = time.monotonic()
    attempt = Attempt(mode=mode, line_info=line_info)
    words = [
        sys.executable if command[0] == "python" else command[0],
        *command[1:],
        "--root",
        str(Path.cwd()),
    ]
    print(f"nixnan: {tool} by {mode}, log {log}", flush=True)
    with interrupted() as stop:
        try:
            child = subprocess.Popen(words, cwd=out, env=child_env(config, mode, line_info, tool, log, env))
        except OSError as error:
            raise EngineError(f"cannot start the command: {error.strerror}", where=words[0]) from error
        attempt.ended = follow(child, log, config, stop)
    attempt.exit_code, attempt.seconds = child.returncode, round(time.monotonic() - began, 3)
    attempt.log_bytes = log.stat().st_size if log.exists() else 0
    attempt.attached = says(log, SAID_CONTEXT)
    return attempt


def child_env(
    config: NixnanConfig, mode: str, line_info: bool, tool: Path, log: Path, env: Mapping[str, str]
) -> dict[str, str]:
    """The tool by one way in, never both, and all of its flags spelled out."""
    flags = {
        "SAMPLING": config.sampling,
        "LINE_INFO": int(line_info),
        "MAX_ERRORS": config.max_errors,
        "HISTOGRAM": int(config.histogram),
        "ENABLE_FUN_DETAIL": int(config.fun_detail),
    }
    entry = {"CUDA_INJECTION64_PATH": str(tool)} if mode == "inject" else {"LD_PRELOAD": str(tool)}
    spec = {"BIN_SPEC_FILE": str(log.with_name("bin_spec.json"))} if config.bin_spec else {}
    return {
        **scrubbed(env),
        **{name: str(value) for name, value in flags.items()},
        **entry,
        **spec,
        "LOGFILE": str(log),
    }


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """Without the tool and its flags: whatever is set is set on purpose."""
    kept = {name: value for name, value in env.items() if name not in (*STEERING, "CUDA_INJECTION64_PATH")}
    preload = [one for one in kept.pop("LD_PRELOAD", "").split(":") if one and "nixnan" not in one]
    return {**kept, **({"LD_PRELOAD": ":".join(preload)} if preload else {})}


def follow(child: subprocess.Popen[bytes], log: Path, config: NixnanConfig, stop: list[int]) -> str:
    """Until it has ended; -> "" or who ended it: "signal" or "log limit"."""
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
    """Signals that would end this process are noted instead; the command is ended first."""
    found: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, _frame: found.append(number)) for kind in kinds]
    try:
        yield found
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


# After the run.


def crashed_by_line_info(attempt: Attempt, out: Path) -> bool:
    """The tool names LINE_INFO in a note before it dies of a segmentation fault."""
    return attempt.exit_code not in (0, 130) and says(out / LOG, LINE_INFO_CRASH)


def says(log: Path, words: bytes) -> bool:
    """Whether a line of the tool holds `words`; logs are large and these lines come early or never."""
    try:
        with log.open("rb") as file:
            return any(words in line for line in file if line.lstrip(b"\0").startswith(b"#nixnan"))
    except OSError:
        return False


def keep_old(log: Path) -> None:
    """An earlier attempt's log stays, under a name of its own."""
    if log.exists():
        number = 1 + sum(1 for _ in log.parent.glob("nixnan.attempt*.log"))
        log.replace(log.with_name(f"nixnan.attempt{number}.log"))


def record(out: Path, tool: Path, config: NixnanConfig, attempts: Sequence[Attempt]) -> None:
    """What was run under what, beside the log: nixnan echoes its flags to stdout, never to its log."""
    digest = hashlib.sha256(tool.read_bytes()).hexdigest()
    told = {
        "tool": {"path": str(tool), "bytes": tool.stat().st_size, "sha256": digest},
        "flags": config,
        "attempts": attempts,
    }
    write_atomic(out / RECORD, msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
