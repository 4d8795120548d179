"""What one Slurm task does: run its step with the engine that the node offers, and leave the outcome as a file.

The file is the truth: the driver may be gone, accounting may be absent, and a job's state in the queue says nothing
of a step that ran out of GPU memory. A task that is preempted and requeued starts its step over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.core.gpu import Gpu
from lab.core.run import Run, utc_now
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.engines.base import Engine
from lab.engines.local.engine import LocalEngine
from lab.engines.slurm.queue import node_address
from lab.errors import EngineError, GpuError, LabError
from lab.gpus.discover import discover

FOLDER = ".slurm"
FLAG_S = 0.5
GRACE_S = 8.0  # below Slurm's KillWait, 30 s where a site leaves it


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a task needs to know, besides the run folder's manifest."""

    run_dir: str
    step: str
    attempt: int
    vendor: str = "none"
    image: str | None = None
    container: str = "none"  # "none" | "docker" | "pyxis" | "apptainer"


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task leaves behind: at its start without an outcome, at its end with one."""

    attempt: int
    job: str
    node: str
    host: str
    started_utc: str
    gpus: tuple[Gpu, ...] = ()
    outcome: Outcome | None = None


def trace_path(root: Path, step: str, node_rank: int = 0) -> Path:
    return root / FOLDER / (f"{step}.json" if node_rank == 0 else f"{step}.node{node_rank}.json")


def flag_path(root: Path) -> Path:
    """What a driver leaves to end the running steps of its run."""
    return root / FOLDER / "stop"


def read_trace(path: Path) -> Trace | None:
    """None while there is none; a file is never half written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trace)
    except FileNotFoundError:
        return None


def work(ticket_json: str) -> None:
    """The function that submitit calls in every task (one a node). Never raises: its outcome is in the file."""
    ticket = msgspec.json.decode(ticket_json, type=Ticket)
    root, rank = Path(ticket.run_dir), node_rank()
    run = NodeRun(Run.open(root), rank)
    step = on_this_node(run.record_of(ticket.step), os.environ)
    path = trace_path(root, ticket.step, rank)
    start = Trace(
        attempt=ticket.attempt,
        job=job_name(),
        node=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        host=socket.gethostname(),
        started_utc=utc_now(),
    )
    make_folder(path.parent)
    began = time.monotonic()
    gpus: Sequence[Gpu] = ()
    try:
        gpus = my_gpus(step)
        start = msgspec.structs.replace(start, gpus=tuple(gpus))
        write_atomic(path, msgspec.json.encode(start))
        with watching_for_stop(flag_path(root)) as stop:
            outcome = engine_of(ticket).run(run, step, gpus, on_line=lambda _: None, stop=stop)
            outcome = told_by_slurm(outcome, stop)
    except LabError as error:
        outcome = Outcome(
            status=Status.failed,
            reason=str(error),
            started_utc=start.started_utc,
            seconds=round(time.monotonic() - began, 3),
        )
    write_atomic(path, msgspec.json.encode(msgspec.structs.replace(start, outcome=outcome)))


class NodeRun(Run):
    """A run as one node of a step sees it: its own log, and no word in the manifest, which is the driver's."""

    def __init__(self, run: Run, node_rank: int) -> None:
        super().__init__(run.root, run.manifest)
        self._node_rank = node_rank

    def log(self, step: Step) -> Path:
        log = super().log(step)
        return log if self._node_rank == 0 else log.with_suffix(f".node{self._node_rank}.log")

    def record_of(self, name: str) -> Step:
        return next(record.step for record in self.manifest.steps if record.step.name == name)


def on_this_node(step: Step, env: os._Environ[str] | dict[str, str]) -> Step:
    """The step with torchrun's static rendezvous filled in.

    A step over several nodes is judged complete by the driver, when all of them have ended.
    """
    if step.nodes == 1:
        return step
    first = env.get("LAB_MASTER_ADDR") or first_node(env)
    filled = {
        "{node_rank}": str(node_rank(env)),
        "{master_addr}": first,
        "{master_port}": str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 20000),
    }
    argv = tuple(_filled(word, filled) for word in step.argv)
    return msgspec.structs.replace(step, argv=argv, expects=())


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def first_node(env: os._Environ[str] | dict[str, str]) -> str:
    """The first host of the job, as `scontrol show hostnames` would say; the address that Slurm knows it by."""
    return node_address(env.get("SLURM_JOB_NODELIST", "localhost"))


def node_rank(env: os._Environ[str] | dict[str, str] | None = None) -> int:
    return int((os.environ if env is None else env).get("SLURM_NODEID", "0"))


def job_name() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")


def my_gpus(step: Step) -> list[Gpu]:
    """The GPUs that Slurm gave this task. Raises GpuError when the node shows fewer than the step needs."""
    if not step.num_gpus:
        return []
    here = discover()
    if len(here) < step.num_gpus:
        raise GpuError(
            f"step {step.name!r} needs {step.num_gpus} GPUs and this node shows {len(here)}",
            where=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
            fix="ask Slurm for them with --gpus, or look at the node's driver",
        )
    return here[: step.num_gpus]


def engine_of(ticket: Ticket) -> Engine:
    if ticket.container == "docker":
        from lab.engines.docker.engine import DockerEngine
        from lab.images.spec import load

        return DockerEngine(load(str(ticket.image)), grace_s=GRACE_S)
    if ticket.container == "none":
        return LocalEngine(vendor=ticket.vendor, grace_s=GRACE_S)
    from lab.images.spec import load

    return WrappedEngine(ticket.container, load(str(ticket.image)).ref, vendor=ticket.vendor)


class WrappedEngine(LocalEngine):
    """A step inside the container runtime of the site: its command line with apptainer's or pyxis' before it.

    The run folder is /out inside, as with the Docker engine. Built from the tools' manuals; not run against them.
    """

    def __init__(self, runtime: str, ref: str, *, vendor: str) -> None:
        super().__init__(vendor=vendor, grace_s=GRACE_S)
        self.name, self._runtime, self._ref = runtime, runtime, ref

    def _process(self, run: Run, step: Step, gpus: Sequence[Gpu]):  # type: ignore[no-untyped-def]
        argv = wrapped(self._runtime, self._ref, self.vendor, str(run.root.absolute()), step.argv)
        return super()._process(run, msgspec.structs.replace(step, argv=argv), gpus)


def wrapped(runtime: str, ref: str, vendor: str, run_dir: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line of a step in the site's container runtime."""
    if runtime == "apptainer":
        gpu = {"nvidia": ("--nv",), "amd": ("--rocm",)}.get(vendor, ())
        return (
            "apptainer",
            "exec",
            *gpu,
            "--no-home",
            "--bind",
            f"{run_dir}:/out",
            "--pwd",
            "/out",
            ref if "://" in ref or ref.endswith(".sif") else f"docker-daemon://{ref}",
            *argv,
        )
    if runtime == "pyxis":
        return (
            "srun",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={socket.gethostname()}",
            f"--container-image={ref}",
            f"--container-mounts={run_dir}:/out",
            "--container-workdir=/out",
            "--no-container-mount-home",
            *argv,
        )
    raise EngineError(f"there is no container runtime {runtime!r}", fix="none, docker, pyxis or apptainer")


class TaskStop(Stop):
    """A Stop that remembers whether Slurm asked for it."""

    by_slurm = False


@contextlib.contextmanager
def watching_for_stop(flag: Path) -> Iterator[TaskStop]:
    """End the step gracefully when the driver leaves `flag`, or when Slurm sends SIGTERM (its limit, preemption).

    The driver leaves a file because scancel's signal goes to every process of the step, whose cleaning up it would cut
    short. submitit's own handler ignores SIGTERM, so that a cancelled job would be killed without a word.
    """
    stop = TaskStop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.now = stop.is_set()
        stop.by_slurm = True
        stop.set()

    def look() -> None:
        while not stop.wait(FLAG_S):
            if flag.exists():
                stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    threading.Thread(target=look, daemon=True, name="lab-flag").start()
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def told_by_slurm(outcome: Outcome, stop: TaskStop) -> Outcome:
    """Slurm's SIGTERM reaches the step's processes too: however they ended, it is why."""
    if outcome.ok or not stop.by_slurm:
        return outcome
    return msgspec.structs.replace(outcome, status=Status.interrupted, reason="Slurm ended the job (SIGTERM)")


def run_lab(words: Sequence[str]) -> None:
    """A command of lab in this job; its exit code is the job's."""
    code = subprocess.run([sys.executable, "-m", "lab", *words], check=False).returncode
    if code:
        raise SystemExit(code)
