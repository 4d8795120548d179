"""What one Slurm task does: run its step with the engine of its node, and leave the outcome as a file.

That file decides: the driver may be gone, accounting may be off, and a job's state in the queue says nothing
of a step that ran out of GPU memory. A task that is preempted and requeued starts its step over.
"""

from __future__ import annotations

import contextlib
import signal
import socket
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
from lab.engines.slurm.container import WrappedEngine
from lab.engines.slurm.node import job_id, node_name, node_rank, on_this_node, task_gpus
from lab.engines.slurm.records import Ticket, Trace, stop_flag, trace_path
from lab.errors import LabError
from lab.gpus.sampling import sampled
from lab.images.spec import load

FLAG_S = 0.5
GRACE_S = 8.0  # below Slurm's KillWait, which is 30 s by default


def execute_step(ticket_json: str) -> None:
    """What submitit calls in every task, one per node. An error of lab becomes the outcome that it writes."""
    ticket = msgspec.json.decode(ticket_json, type=Ticket)
    root, rank = Path(ticket.run_dir), node_rank()
    run = NodeRun(Run.open(root), rank)
    step = on_this_node(run.step(ticket.step))
    path = trace_path(root, ticket.step, rank)
    trace = Trace(
        attempt=ticket.attempt,
        job=job_id(),
        node=node_name(),
        host=socket.gethostname(),
        started_utc=utc_now(),
    )
    make_folder(path.parent)
    began = time.monotonic()
    gpus: Sequence[Gpu] = ()
    try:
        gpus = task_gpus(step)
        trace = msgspec.structs.replace(trace, gpus=tuple(gpus))
        write_atomic(path, msgspec.json.encode(trace))
        make_folder(run.folder(step))
        with watching_for_stop(stop_flag(root)) as stop:
            with sampled(gpus, run.folder(step), node=rank):
                outcome = engine_of(ticket).run(run, step, gpus, on_line=lambda _: None, stop=stop)
            outcome = blame_slurm(outcome, stop)
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

    def log(self, step: Step) -> Path:
        log = super().log(step)
        return log if self._node_rank == 0 else log.with_suffix(f".node{self._node_rank}.log")

    def step(self, name: str) -> Step:
        return next(record.step for record in self.manifest.steps if record.step.name == name)


def engine_of(ticket: Ticket) -> Engine:
    if ticket.container == "none":
        return LocalEngine(vendor=ticket.vendor, grace_s=GRACE_S)
    image = load(str(ticket.image))
    if ticket.container == "docker":
        from lab.engines.docker.engine import DockerEngine  # the node may have no Docker SDK

        return DockerEngine(image, grace_s=GRACE_S)
    return WrappedEngine(ticket.container, image, grace_s=GRACE_S)


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

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    threading.Thread(target=look, daemon=True, name="lab-flag").start()
    try:
        yield stop
    finally:
        ended.set()
        for number, old in before.items():
            signal.signal(number, old)


def blame_slurm(outcome: Outcome, stop: TaskStop) -> Outcome:
    """Slurm's SIGTERM reaches the step's processes too: however they ended, it is the reason."""
    if outcome.ok or not stop.by_slurm:
        return outcome
    return msgspec.structs.replace(outcome, status=Status.interrupted, reason="Slurm ended the job (SIGTERM)")
