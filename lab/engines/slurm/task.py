"""One Slurm task: it runs its step with the engine of its node, and leaves the outcome as a file.

That file decides: the driver may be gone, accounting may be off, and a job's state in the queue says nothing
of a step that ran out of GPU memory. A task that is preempted and requeued starts its step over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, refuse_change
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step, utc_now
from lab.core.stop import Stop
from lab.core.words import plural
from lab.engines.base import Engine
from lab.engines.docker.host import node_name
from lab.engines.local.engine import LocalEngine
from lab.engines.slurm.queue import node_address
from lab.engines.slurm.records import Ticket, Trace, stop_flag, trace_path
from lab.engines.slurm.runtimes import WrappedEngine
from lab.errors import GpuError, LabError
from lab.gpus.discover import discover
from lab.images.foreign import image_of, is_reference
from lab.power.sampling import sampled

FLAG_S = 0.5
FIRST_PORT, NUM_PORTS = 20000, 20000
GRACE_S = 8.0  # below Slurm's KillWait, which is 30 s by default


def execute_step(ticket_json: str) -> None:
    """Run one task, as submitit calls it on every node. An error of lab becomes the outcome."""
    ticket = msgspec.json.decode(ticket_json, type=Ticket)
    root, rank = Path(ticket.run_dir), node_rank()
    run = NodeRun(Run.open(root), rank)
    step = on_this_node(run.step(ticket.step))
    path = trace_path(root, ticket.step, rank)
    node, host, began = node_name(), socket.gethostname(), time.monotonic()
    trace = Trace(attempt=ticket.attempt, job=job_id(), node=node, host=host, started_utc=utc_now())
    make_folder(path.parent)
    gpus: Sequence[Gpu] = ()
    try:
        gpus, engine = task_gpus(step), engine_of(ticket)
        image = node_image(engine, ticket)
        trace = msgspec.structs.replace(trace, gpus=tuple(gpus), image=image)
        make_folder(run.folder(step))
        run.keep_old_log(step, run.attempt(step) - 1 if run.restarts else 0)
        write_atomic(path, msgspec.json.encode(trace))
        with watching_for_stop(stop_flag(root)) as stop:
            with sampled(gpus, run.folder(step), step=f"{run.manifest.id}/{step.name}", node=rank):
                outcome = engine.run(run, step, gpus, on_line=lambda _: None, stop=stop)
            if stop.by_slurm and not outcome.ok:  # its SIGTERM reaches the step's processes, too
                reason = "Slurm ended the job (SIGTERM)"
                outcome = msgspec.structs.replace(outcome, status=Status.interrupted, reason=reason)
    except LabError as error:
        outcome = Outcome(
            status=Status.failed,
            reason=str(error),
            started_utc=trace.started_utc,
            seconds=round(time.monotonic() - began, 3),
        )
    write_atomic(path, msgspec.json.encode(msgspec.structs.replace(trace, outcome=outcome)))


class NodeRun(Run):
    """A run as one node of a step sees it: with a log of its own. Only the driver writes the manifest."""

    def __init__(self, run: Run, node_rank: int) -> None:
        super().__init__(run.root, run.manifest)
        self._node_rank = node_rank
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    def log(self, step: Step) -> Path:
        log = super().log(step)
        return log if self._node_rank == 0 else log.with_suffix(f".node{self._node_rank}.log")

    def attempt(self, step: Step) -> int:
        """A requeue is an attempt of its own, in the same job."""
        return super().attempt(step) + self.restarts

    def step(self, name: str) -> Step:
        return next(record.step for record in self.manifest.steps if record.step.name == name)


def engine_of(ticket: Ticket) -> Engine:
    if ticket.container == "none":
        return LocalEngine(vendor=ticket.vendor, grace_s=GRACE_S)
    image = image_of(
        str(ticket.image),
        vendor=ticket.vendor if is_reference(str(ticket.image)) else None,
        mounts=ticket.mounts,
    )
    if ticket.container == "docker":
        from lab.engines.docker.engine import DockerEngine  # the node may have no Docker SDK

        return DockerEngine(image, grace_s=GRACE_S)
    return WrappedEngine(ticket.container, image, grace_s=GRACE_S)


def node_image(engine: Engine, ticket: Ticket) -> ImageRecord | None:
    """The image on this node. Raises UsageError for another one than the run's earlier steps had."""
    record = engine.image_record() if ticket.container == "docker" else None  # type: ignore[attr-defined]
    if record and ticket.image_id:
        refuse_change("another image", ticket.image_id, str(record.id))
    return record


class TaskStop(Stop):
    """A Stop that remembers whether Slurm asked for it."""

    by_slurm = False


@contextlib.contextmanager
def watching_for_stop(flag: Path) -> Iterator[TaskStop]:
    """End the step gracefully when the driver leaves `flag`, or when Slurm sends SIGTERM (limit, preemption).

    The driver leaves a file because scancel's signal goes to every process of the step and would cut its
    clean-up short. submitit's own handler ignores SIGTERM: a cancelled job would end without an outcome.
    """
    stop, ended = TaskStop(), threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.at_once = stop.is_set()
        stop.by_slurm = True
        stop.set()

    def look() -> None:
        while not (stop.is_set() or ended.wait(FLAG_S)):
            if flag.exists():
                stop.set()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    threading.Thread(target=look, daemon=True, name="lab-flag").start()
    try:
        yield stop
    finally:
        ended.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def node_rank(env: Mapping[str, str] = os.environ) -> int:
    return int(env.get("SLURM_NODEID", "0"))


def job_id() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")


def on_this_node(step: Step, env: Mapping[str, str] = os.environ) -> Step:
    """The step with torchrun's static rendezvous filled in.

    A step over several nodes expects no files here: the driver looks for them when all nodes have ended.
    """
    if step.nodes == 1:
        return step
    values = {
        "{node_rank}": str(node_rank(env)),
        "{master_addr}": env.get("LAB_MASTER_ADDR")
        or node_address(env.get("SLURM_JOB_NODELIST", "localhost")),
        "{master_port}": str(FIRST_PORT + int(env.get("SLURM_JOB_ID", "0")) % NUM_PORTS),
    }
    argv = step.argv
    for name, value in values.items():
        argv = tuple(word.replace(name, value) for word in argv)
    return msgspec.structs.replace(step, argv=argv, expects=())


def task_gpus(step: Step) -> list[Gpu]:
    """The GPUs that Slurm gave this task. Raises GpuError if the node shows fewer than the step needs."""
    if not step.num_gpus:
        return []
    gpus = discover()
    if len(gpus) < step.num_gpus:
        raise GpuError(
            f"step {step.name!r} needs {plural(step.num_gpus, 'GPU')} and this node shows {len(gpus)}",
            location=node_name(),
            fix="ask Slurm for them with --gpus, or look at the node's driver",
        )
    return gpus[: step.num_gpus]
