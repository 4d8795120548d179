"""The workload's dealings with the machine: ranks, devices, logs, failures, signals, and what ran on what."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import msgspec
import torch
import torch.distributed as dist

from lab.errors import ConfigError, GpuError, LabError, writing
from lab.rooms.sweep.config import TrainConfig, ignored_keys
from lab.secrets import redact_env

log = logging.getLogger("lab.sweep.workload")

ENV_PREFIXES = ("NCCL_", "RCCL_", "HSA_", "HIP_", "ROCR_", "CUDA_", "TORCH_", "PYTORCH_")
NVIDIA_FIELDS = (
    "index,name,uuid,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,power.limit"
)


class Place(msgspec.Struct, frozen=True):
    """Where this process stands among its peers."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_env(cls) -> Place:
        """Read torchrun's RANK, LOCAL_RANK and WORLD_SIZE; alone without them."""
        try:
            return cls(
                rank=int(os.environ.get("RANK", "0")),
                local_rank=int(os.environ.get("LOCAL_RANK", "0")),
                world_size=int(os.environ.get("WORLD_SIZE", "1")),
            )
        except ValueError as error:
            raise ConfigError(f"not an integer in RANK, LOCAL_RANK or WORLD_SIZE: {error}") from error


def choose_device(config: TrainConfig, place: Place) -> torch.device:
    """This rank's GPU, or the CPU. Raises GpuError when GPUs are asked for that are not here."""
    backend, gpus = config.distributed.backend, torch.cuda.device_count()
    if backend == "gloo" or (backend == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus == 0:
        raise GpuError(
            f"distributed.backend is nccl, but torch {torch.__version__} sees no GPU",
            fix="run in an image with GPU access, or set distributed.backend=auto",
        )
    if place.local_rank >= gpus:
        raise GpuError(
            f"rank {place.rank} has no GPU: {gpus} are visible, its local rank is {place.local_rank}",
            fix=f"start at most {gpus} processes on this host",
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


@contextlib.contextmanager
def process_group(place: Place, device: torch.device) -> Iterator[None]:
    """Join the other ranks, and leave together; after an error there is no leaving, peers may be stuck."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size)
    yield
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()


def describe_environment(config: TrainConfig, place: Place, device: torch.device) -> dict[str, Any]:
    """What runs, on what, steered by which variables; `smi_after` is filled at the end of the run."""
    on_gpu = device.type == "cuda"
    steering = {key: value for key, value in sorted(os.environ.items()) if key.startswith(ENV_PREFIXES)}
    return {
        "versions": {
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            # RCCL answers under NCCL's name.
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,  # type: ignore[no-untyped-call]
        },
        "backend": "nccl" if on_gpu else "gloo",
        "device": device.type,
        "device_names": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if on_gpu
        else [],
        "host": platform.node(),
        "world_size": place.world_size,
        "ignored_keys": ignored_keys(config),
        "env": redact_env(steering),
        "smi_before": gpu_state(),
        "smi_after": None,
    }


def gpu_state() -> dict[str, Any]:
    """Driver, clocks (MHz), temperature (C) and power (W) of the host's GPUs now, in the vendor tool's words.

    {"tool": name or None, "gpus": rows or the tool's own JSON, "reason": why there are none, or None}.
    """
    tools: dict[str, tuple[list[str], Callable[[str], Any]]] = {
        "nvidia-smi": (["--query-gpu=" + NVIDIA_FIELDS, "--format=csv,noheader,nounits"], parse_nvidia_smi),
        "amd-smi": (["metric", "--clock", "--temperature", "--power", "--json"], json.loads),
        "rocm-smi": (
            ["--showclocks", "--showtemp", "--showpower", "--showdriverversion", "--json"],
            json.loads,
        ),
    }
    for tool, (arguments, parse) in tools.items():
        if not shutil.which(tool):
            continue
        try:
            answer = subprocess.run(
                [tool, *arguments], capture_output=True, text=True, timeout=20, check=True
            )
            return {"tool": tool, "gpus": parse(answer.stdout), "reason": None}
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return {"tool": tool, "gpus": None, "reason": f"{tool} failed: {error}"}
    return {"tool": None, "gpus": None, "reason": f"none of {', '.join(tools)} is here"}


def parse_nvidia_smi(text: str) -> list[dict[str, str]]:
    """Rows of `nvidia-smi --query-gpu` as dicts, values as the tool wrote them ("[N/A]" included)."""
    names = NVIDIA_FIELDS.split(",")
    return [
        dict(zip(names, row, strict=False)) for row in csv.reader(text.splitlines(), skipinitialspace=True)
    ]


def redirect_output(path: Path, place: Place) -> None:
    """Make descriptors 1 and 2 the rank's log from here on; messages and failures also reach the person."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    person = {}
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        person[fd] = os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace")
        os.dup2(log_fd, fd)
    os.close(log_fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if place.rank == 0:
        handlers.append(logging.StreamHandler(person[1]))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
    log.propagate = False
    log.setLevel("INFO")
    report_failures(place, own_log=sys.stderr, person=person[2])


def report_failures(place: Place, *, own_log: TextIO, person: TextIO) -> None:
    """Let `die` handle every uncaught exception.

    The streams are bound now: torch.distributed wraps the hook and swaps sys.stderr for a buffer while it runs.
    """
    sys.excepthook = functools.partial(die, own_log=own_log, person=person, rank=place.rank)


def die(
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    *,
    own_log: TextIO,
    person: TextIO,
    rank: int,
) -> None:
    """The last word of a failed rank: traceback to its log and to the person, then the reason in one line.

    An error that lab raises on purpose reaches the person without its traceback. Leaves at once: the usual
    teardown can wait forever for peers that still sit in a collective.
    """
    what = error.what if isinstance(error, LabError) else str(error).strip()
    reason = f"rank {rank} failed: {kind.__name__}: {what.splitlines()[0] if what else 'no message'}\n"
    text = "".join(traceback.format_exception(kind, error, trace))
    own_log.write(text + reason)
    person.write((f"{error}\n" if isinstance(error, LabError) else text) + reason)
    leave(error.exit_code if isinstance(error, LabError) else 1, own_log, person)


def exit_on_signals(trace_dir: Path) -> None:
    """Leave with 128 + signal number on SIGINT and SIGTERM, even while the main thread waits in a collective.

    A Python handler would run only after that wait. The C-level handler writes the signal's number into the
    wakeup descriptor at once, and a thread acts on it. Half-written traces in `trace_dir` are removed.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    stops = (signal.SIGINT, signal.SIGTERM)
    for stop in stops:
        signal.signal(stop, lambda *_: None)

    def watch(_keep_open: socket.socket) -> None:
        while (number := reader.recv(1)[0]) not in stops:
            pass
        log.warning("stopped by %s", signal.Signals(number).name)
        for draft in trace_dir.glob(".draft_*"):
            draft.unlink(missing_ok=True)
        leave(128 + number)

    threading.Thread(target=watch, args=(writer,), daemon=True, name="signals").start()


def leave(exit_code: int, *streams: TextIO) -> None:
    """End the process now, with what was printed and what `streams` still hold."""
    for stream in (sys.stdout, sys.stderr, *streams):
        stream.flush()
    os._exit(exit_code)
