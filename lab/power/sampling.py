"""Clocks, power and temperature of a step's GPUs, sampled beside it in a process of its own.

    python -m lab.power.sampling SPEC.json      # until its standard input ends

It writes gpu_clocks.csv (one row per GPU and sample; times are unix ns, as in Kineto's traces) and
gpu_clocks.json: the interval, what the sampling cost in CPU time, and why a GPU has no rows. The drivers
renew their counters every 100 ms or so: samples describe a run, not one step of milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from select import select
from typing import Any

import msgspec

from lab.core.files import write_atomic
from lab.core.gpu import Gpu, GpuProcess
from lab.core.manifest import Neighbours
from lab.errors import GpuError, LabError
from lab.gpus.amd import AmdSmi, State, amd_state
from lab.gpus.neighbours import others, processes_on
from lab.power.meters import STATE, NvmlMeter

INTERVAL_S = 0.25
LOOK_S = 2.0  # between two looks at the processes on the GPUs
SAMPLES, SUMMARY = "gpu_clocks.csv", "gpu_clocks.json"
COLUMNS = ("unix_ns", "place", "uuid", *STATE)
MOST_SHARE = 0.05
_END_S = 30.0  # longer than a vendor's tool takes, and than Python takes to start on a loaded machine


@contextlib.contextmanager
def sampled(
    gpus: Sequence[Gpu], folder: Path, *, step: str = "", interval_s: float = INTERVAL_S, node: int = 0
) -> Iterator[None]:
    """Sample these GPUs into `folder` while the block runs; if that fails, the summary says why.

    place, the column, is the rank of the step's process on a GPU: its position in `gpus`, after those of the
    nodes before (`node`: this one's rank, with as many GPUs on each), which write files of their own.
    step: what its processes have in LAB_STEP; those without it are its neighbours.
    """
    if not gpus:
        yield
        return
    spec = {
        "folder": str(folder.absolute()),
        "interval_s": interval_s,
        "node": node,
        "gpus": msgspec.to_builtins(list(gpus)),
        "step": step,
    }

    def not_sampled(reason: str) -> None:
        _say(folder, {"interval_s": interval_s, "samples": 0, "reason": reason}, node)

    try:
        process = _start(spec)
    except OSError as error:
        not_sampled(f"not sampled: {error.strerror}")
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not (folder / of_node(SUMMARY, node)).exists():
            not_sampled("the sampling process failed")


def of_node(name: str, node: int) -> str:
    """`gpu_clocks.csv` of the first node, `gpu_clocks.node1.csv` of the next."""
    path = Path(name)
    return name if node == 0 else f"{path.stem}.node{node}{path.suffix}"


def _start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-m", "lab.power.sampling", json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the driver, which ends this by closing its input
    )


def _say(folder: Path, summary: dict[str, Any], node: int = 0) -> None:
    with contextlib.suppress(OSError, LabError):  # a full disk fails the step itself, and says so there
        write_atomic(folder / of_node(SUMMARY, node), json.dumps(summary))


def sample(
    folder: Path,
    gpus: Sequence[Gpu],
    interval_s: float,
    input_fd: int,
    node: int = 0,
    beside: Beside | None = None,
) -> dict[str, Any]:
    """Sample until the input ends; the summary, which is written at the beginning too.

    A vendor's tool takes long: the next sample then waits until no more than MOST_SHARE of the time goes
    into sampling.
    """
    began, samples = time.monotonic(), 0
    if beside:
        beside.look()
    readers, reasons, slow = _readers(gpus)
    summary: dict[str, Any] = {"interval_s": interval_s, "gpus": len(gpus), "reasons": reasons}
    _say(folder, {**summary, "samples": 0, "reason": "still sampling, or killed"}, node)
    with (folder / of_node(SAMPLES, node)).open("w", encoding="ascii") as file:
        file.write(",".join(COLUMNS) + "\n")
        while True:
            sample_start = time.monotonic()
            for place, uuid, read in readers:
                state = read()
                values = ("" if state[name] is None else f"{state[name]:g}" for name in STATE)
                file.write(f"{time.time_ns()},{place + node * len(gpus)},{uuid},{','.join(values)}\n")
            file.flush()
            samples += bool(readers)
            if beside and time.monotonic() - beside.looked_s > LOOK_S:
                beside.look()
            took_s = time.monotonic() - sample_start
            rest_s = max(0.0, interval_s - took_s, took_s * (1 / MOST_SHARE - 1) if slow else 0.0)
            if select([input_fd], [], [], rest_s)[0] and not os.read(input_fd, 64):
                break
    used = os.times()
    cpu_s = used.user + used.system + used.children_user + used.children_system
    cost = {"cpu_s": round(cpu_s, 3), "wall_s": round(time.monotonic() - began, 3)}
    summary_at_end = {**summary, "samples": samples, **cost}
    if beside:
        beside.look()
        summary_at_end["neighbours"] = msgspec.to_builtins(beside.seen())
    _say(folder, summary_at_end, node)
    return summary_at_end


def _readers(gpus: Sequence[Gpu]) -> tuple[list[tuple[int, str, Any]], dict[str, str], bool]:
    """(place, uuid, function) of each GPU with sensors; the reasons of the others by UUID; by a tool?"""
    readers: list[tuple[int, str, Any]] = []
    reasons: dict[str, str] = {}
    asked: list[AmdSmi] = []
    for place, gpu in enumerate(gpus):
        uuid = gpu.parent or gpu.uuid
        try:
            read = NvmlMeter(uuid).state if gpu.vendor == "nvidia" else _amd(gpu.render_node, asked)
            readers.append((place, uuid, read))
        except GpuError as error:
            reasons[uuid] = error.problem
    return readers, reasons, bool(asked)


def _amd(render_node: str | None, asked: list[AmdSmi]) -> Callable[[], State]:
    """Read an AMD GPU by the kernel's files, which are free; by amd-smi where they lack its clock.

    asked holds amd-smi once it was asked. Raises GpuError with the reasons of both.
    """
    try:
        read = amd_state(render_node, os.environ)
        reason = "hwmon has no clock"
        if read()["sm_clock_mhz"] is not None:
            return read
    except GpuError as error:
        reason = error.problem
    try:
        if not asked:
            asked.append(AmdSmi(os.environ))
        return asked[0].reader(render_node)
    except GpuError as error:
        raise GpuError(f"{reason}; {error.problem}") from error


class Beside:
    """The processes on a step's GPUs that are not the step's, looked for now and then."""

    def __init__(self, gpus: Sequence[Gpu], step: str) -> None:
        self._gpus, self._step = gpus, step
        self._looks: list[list[GpuProcess]] = []
        self.looked_s = 0.0

    def look(self) -> None:
        self._looks.append(others(processes_on(self._gpus), self._step))
        self.looked_s = time.monotonic()

    def seen(self) -> Neighbours:
        """Before, during (each process with the most memory that it held) and after the step."""
        largest: dict[tuple[str, int], GpuProcess] = {}
        for process in (process for look in self._looks[1:-1] for process in look):
            key = process.gpu, process.pid
            if key not in largest or (process.mem_bytes or 0) > (largest[key].mem_bytes or 0):
                largest[key] = process
        first_look, last_look = tuple(self._looks[0]), tuple(self._looks[-1])
        return Neighbours(at_start=first_look, during=tuple(largest.values()), at_end=last_look)


def main() -> None:
    spec = json.loads(sys.argv[1])
    gpus = msgspec.convert(spec["gpus"], list[Gpu])
    beside = Beside(gpus, spec["step"]) if spec["step"] else None
    folder, interval_s = Path(spec["folder"]), float(spec["interval_s"])
    sample(folder, gpus, interval_s, sys.stdin.fileno(), int(spec["node"]), beside)


if __name__ == "__main__":
    main()
