"""Steps as Slurm jobs: one array a run, one task a step (or one a node of it), submitted through submitit.

The node runs the step with the engine it has (this environment, Docker, apptainer or pyxis) and leaves its outcome in
the shared run folder (slurm_task). The driver only watches: it may be killed, and `--attach` takes its jobs up again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord
from lab.core.options import Options, SlurmOptions
from lab.core.plan import Site
from lab.core.run import Run, utc_now
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.core.words import plural
from lab.engines.base import Engine
from lab.engines.lines import LineSplitter
from lab.engines.slurm import queue as queue
from lab.engines.slurm.task import FOLDER, Ticket, Trace, flag_path, read_trace, run_lab, trace_path, work
from lab.errors import EngineError, UsageError
from lab.gpus.discover import parse_spec, placeholders
from lab.images import spec as images
from lab.images.spec import Image

POLL_S = 0.3
ASK_QUEUE_S = 3.0  # squeue is the controller's time: one call for all jobs, no oftener
SETTLE_S = 15.0  # what a shared file system may take to show what a task wrote before it ended
LIMIT_MARGIN_MIN, UNLIMITED_MIN = 10, 240  # submitit would ask for five minutes


class Jobs(msgspec.Struct, kw_only=True):
    """Which job runs which step of a run: `.slurm/jobs.json`."""

    of_step: dict[str, str] = {}
    attempt: dict[str, int] = {}


class SlurmEngine(Engine):
    """Submits steps as arrays and follows them. See lab.engines.base.QueueEngine."""

    name = "slurm"

    def __init__(self, options: SlurmOptions, *, image: Image | None = None, vendor: str = "none") -> None:
        if (image is None) != (options.container == "none"):
            raise UsageError(
                "an image on Slurm needs the container runtime of the site, and the other way round",
                fix="--image NAME --container docker|pyxis|apptainer, or neither",
            )
        self.options, self.image, self.vendor = options, image, vendor

    @classmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        image = images.load(options.image) if options.image else None
        site = _site(options, image)
        return site, cls(options.slurm or SlurmOptions(), image=image, vendor=site.vendor)

    @classmethod
    def restore(cls, run: Run, options: Options) -> tuple[Site, Engine]:
        """As it was when the run began: its manifest holds what was asked of Slurm."""
        said = run.manifest.container or {}
        image = images.load(run.manifest.image.name) if run.manifest.image else None
        vendor = run.manifest.gpus[0].vendor if run.manifest.gpus else "none"
        engine = cls(msgspec.convert(said.get("slurm", {}), SlurmOptions), image=image, vendor=vendor)
        return Site(vendor=vendor, gpus=run.manifest.gpus, resolved=False), engine

    @classmethod
    def end_leftovers(cls, run: Run) -> list[str]:
        return [f"cancelled job {job}" for job in cancel_run(run.root)]

    # What every engine offers.

    def run(
        self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: Callable[[str], None], stop: Stop
    ) -> Outcome:
        """One step as a job of its own; `run_all` is for many."""
        return next(self.run_all(run, [step], jobs=1, on_line=lambda _: on_line, stop=stop))[1]

    def attach(self, run: Run, step: Step, *, on_line: Callable[[str], None], stop: Stop) -> Outcome | None:
        job = read_jobs(run.root).of_step.get(step.name)
        if job is None:
            return None
        left = read_trace(trace_path(run.root, step.name))
        if (left is None or left.outcome is None) and queue.states([job]).get(job) not in queue.LIVE:
            return None
        return next(self._follow(run, {step.name: step}, {step.name: job}, lambda _: on_line, stop))[1]

    def lost(self, run: Run, step: Step) -> Outcome:
        """What to say of a begun step of which nothing is left."""
        job = read_jobs(run.root).of_step.get(step.name, "")
        return lost_outcome(job, cancelled=False)

    def gpus_seen(self, run: Run) -> tuple[Gpu, ...]:
        """The GPUs of the first step that has run: what the plan's placeholders stood for."""
        for record in run.manifest.steps:
            trace = read_trace(trace_path(run.root, record.step.name))
            if trace and trace.gpus:
                return trace.gpus
        return run.manifest.gpus

    def provenance(
        self, run_dir: str, gpus: Sequence[Gpu]
    ) -> tuple[ImageRecord | None, dict[str, Any] | None]:
        wants = msgspec.to_builtins(self.options)
        if self.image is None:
            return None, {"slurm": wants}
        return ImageRecord(name=self.image.name, ref=self.image.ref), {"slurm": wants}

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        return {
            "sbatch": self._parameters([step], jobs=1),
            "argv": list(step.argv),
            "env": step.env,
            "cwd": run_dir,
        }

    # Many at once.

    def run_all(
        self,
        run: Run,
        steps: Sequence[Step],
        *,
        jobs: int,
        on_line: Callable[[Step], Callable[[str], None]],
        stop: Stop,
    ) -> Iterator[tuple[Step, Outcome]]:
        """Submit all steps, at most `jobs` of them running at a time; yield each as it ends."""
        submitted = self.submit(run, steps, jobs=jobs)
        yield from self._follow(run, {step.name: step for step in steps}, submitted, on_line, stop)

    def submit(self, run: Run, steps: Sequence[Step], *, jobs: int) -> dict[str, str]:
        """Step name -> job. One array for steps that ask for the same; what was submitted is on disk at once."""
        known = read_jobs(run.root)
        flag_path(run.root).unlink(missing_ok=True)
        for alike in _alike(steps):
            tickets = [self._ticket(run, step) for step in alike]
            for step in alike:
                _forget(run.root, step)
            with _submitit(run.root, self._parameters(alike, jobs=jobs)) as executor:
                sent = executor.map_array(work, [msgspec.json.encode(ticket).decode() for ticket in tickets])
            for step, ticket, job in zip(alike, tickets, sent, strict=True):
                known.of_step[step.name] = str(job.job_id)
                known.attempt[step.name] = ticket.attempt
            write_atomic(run.root / FOLDER / "jobs.json", msgspec.json.encode(known))
        return {step.name: known.of_step[step.name] for step in steps}

    def leave(self, run: Run, steps: Sequence[Step], *, jobs: int, finish: Callable[[], None]) -> str:
        for step in steps:
            run.begin(step)
        submitted = self.submit(run, steps, jobs=jobs)
        last = self.submit_last(run, finish)
        arrays = sorted({job.split("_")[0] for job in submitted.values()})
        return f"submitted {plural(len(steps), 'step')} as {', '.join(arrays)} and their analysis as {last}"

    def submit_last(self, run: Run, finish: Callable[[], None]) -> str:
        """One more job, after all others of the run however they end. -> its id."""
        after = sorted({job.split("_")[0] for job in read_jobs(run.root).of_step.values()})
        asked = self._common() | {
            "slurm_time": self.options.time_min or 120,
            "slurm_job_name": f"lab-{run.manifest.id}-analysis"[:60],
            "slurm_additional_parameters": {
                "dependency": "afterany:" + ":".join(after),
                **_pairs(self.options.extra),
            },
        }
        with _submitit(run.root, asked) as executor:
            job = executor.submit(finish)
        return str(job.job_id)

    def _ticket(self, run: Run, step: Step) -> Ticket:
        return Ticket(
            run_dir=str(run.root.absolute()),
            step=step.name,
            attempt=run.record(step).attempts,
            vendor=self.vendor,
            image=self.image.name if self.image else None,
            container=self.options.container,
        )

    def _parameters(self, steps: Sequence[Step], *, jobs: int) -> dict[str, Any]:
        one = steps[0]
        limits = [step.timeout_s for step in steps]
        asked = self._common() | {
            "slurm_nodes": one.nodes,
            "slurm_array_parallelism": jobs,
            "slurm_job_name": f"lab-{one.name}"[:60],
        }
        if self.options.time_min is None:
            longest_s = max(limit or 0 for limit in limits) if all(limits) else 60 * UNLIMITED_MIN
            asked["slurm_time"] = int(longest_s / 60) + LIMIT_MARGIN_MIN
        gres = self.options.gres or (f"gpu:{one.num_gpus}" if one.num_gpus else None)
        more = _pairs(self.options.extra) | ({"gres": gres} if gres else {})
        return asked | ({"slurm_additional_parameters": more} if more else {})

    def _common(self) -> dict[str, Any]:
        options = self.options
        wants = {
            "slurm_partition": options.partition,
            "slurm_account": options.account,
            "slurm_qos": options.qos,
            "slurm_constraint": options.constraint,
            "slurm_time": options.time_min,
            "slurm_mem": options.mem,
            "slurm_cpus_per_task": options.cpus_per_task,
        }
        return {
            "slurm_ntasks_per_node": 1,
            **{name: value for name, value in wants.items() if value is not None},
        }

    def _follow(
        self,
        run: Run,
        steps: Mapping[str, Step],
        jobs: Mapping[str, str],
        on_line: Callable[[Step], Callable[[str], None]],
        stop: Stop,
    ) -> Iterator[tuple[Step, Outcome]]:
        attempt = read_jobs(run.root).attempt
        waiting = {
            name: _Followed(run, step, jobs[name], attempt.get(name, 0), on_line(step))
            for name, step in steps.items()
        }
        asked_at, asked_to_end, killed = time.monotonic(), False, False
        while waiting:
            begun = {path.name for path in (run.root / FOLDER).glob("*.json")}
            for name, one in list(waiting.items()):
                outcome = one.look(begun)
                if outcome is not None:
                    del waiting[name]
                    yield one.step, outcome
            living = [one.job for one in waiting.values()]
            if stop.is_set() and not asked_to_end:
                asked_to_end = True
                end_gently(run.root, living)
            if stop.now and not killed:
                killed = True
                queue.cancel(living)
            if waiting and time.monotonic() - asked_at > ASK_QUEUE_S:
                asked_at = time.monotonic()
                found = queue.states(living)
                for one in waiting.values():
                    one.queue_says(found.get(one.job), cancelled=asked_to_end)
            if waiting:
                time.sleep(POLL_S)


def _site(options: Options, image: Image | None) -> Site:
    """What each node is asked for. Nothing is looked at here: this is a login node, and shows no GPU."""
    vendor = options.vendor or (image.vendor if image else "none")
    wanted = parse_spec(options.gpus)
    if vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                "--gpus needs --vendor here", fix="--vendor nvidia or amd, or an --image that implies it"
            )
        return Site(vendor="none")
    if not isinstance(wanted, int):
        raise UsageError(
            "on Slurm --gpus is how many GPUs each node gives, not which",
            where=f"--gpus {options.gpus}",
            fix="for example --gpus 8",
        )
    return Site(vendor=vendor, gpus=tuple(placeholders(vendor, options.gpus, wanted)), resolved=False)


class _Followed:
    """One step's job: its log as it grows, its outcome when it is there, and whether the queue still knows it."""

    def __init__(self, run: Run, step: Step, job: str, attempt: int, tell: Callable[[str], None]) -> None:
        self.run, self.step, self.job = run, step, job
        self._tell, self._split, self._offset = tell, LineSplitter(), 0
        self._attempt = attempt
        self._gone_since: float | None = None
        self._cancelled = False

    def look(self, begun: Set[str]) -> Outcome | None:
        """The outcome, if the step has ended for good: a task that was preempted says `interrupted` and comes again.

        begun: names of the traces that are there; a step that waits in the queue costs no look at its files.
        """
        if trace_path(self.run.root, self.step.name).name in begun:
            self._read_log()
        elif not self._lost():
            return None
        traces = [
            read_trace(trace_path(self.run.root, self.step.name, rank)) for rank in range(self.step.nodes)
        ]
        ended = [trace for trace in traces if trace and trace.attempt == self._attempt and trace.outcome]
        if len(ended) == self.step.nodes or (ended and self._lost()):
            outcome = _together(self.run, self.step, ended)
            if outcome.status is Status.interrupted and not (self._cancelled or self._lost()):
                return None
            self._read_log(last=True)
            return outcome
        return lost_outcome(self.job, cancelled=self._cancelled) if self._lost() else None

    def queue_says(self, state: str | None, *, cancelled: bool) -> None:
        self._cancelled = cancelled
        if state in queue.LIVE:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()

    def _lost(self) -> bool:
        patience_s = 1.0 if self._cancelled else SETTLE_S
        return self._gone_since is not None and time.monotonic() - self._gone_since > patience_s

    def _read_log(self, *, last: bool = False) -> None:
        try:
            with self.run.log(self.step).open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        self._offset += len(chunk)
        for line in self._split.feed(chunk):
            self._tell(line)
        if last:
            for line in self._split.flush():
                self._tell(line)


def lost_outcome(job: str, *, cancelled: bool) -> Outcome:
    """The job is out of the queue and left no outcome: it was cancelled before it began, or its node died."""
    now = utc_now()
    if cancelled:
        return Outcome(
            status=Status.interrupted, reason=f"job {job} was cancelled by the user", started_utc=now
        )
    told = queue.story(job) or "Slurm does not remember it"
    status = Status.interrupted if "PREEMPTED" in told or "CANCELLED" in told else Status.failed
    status = Status.timeout if "TIMEOUT" in told else status
    words = f"job {job} ended without an outcome: {told}"
    return Outcome(status=status, reason=f"{words}; its own output is in {FOLDER}/", started_utc=now)


def _together(run: Run, step: Step, traces: Sequence[Trace]) -> Outcome:
    """One outcome of a step's nodes: the first that is not ok, else the first node's, if its files are there."""
    outcomes = [(trace, trace.outcome) for trace in traces if trace.outcome is not None]
    bad = next(((trace, outcome) for trace, outcome in outcomes if not outcome.ok), None)
    if bad:
        trace, outcome = bad
        return msgspec.structs.replace(
            outcome, reason=f"{outcome.reason} (node {trace.node}, job {trace.job})"
        )
    outcome = outcomes[0][1]
    missing = run.missing(step)
    if missing and outcome.ok:
        return msgspec.structs.replace(
            outcome, status=Status.failed, reason=f"exited with 0 but left no {', '.join(missing)}"
        )
    return outcome


def submit_parts(
    folder: Path, options: SlurmOptions, parts: Sequence[Sequence[str]], last: Sequence[str], *, jobs: int
) -> tuple[str, str]:
    """lab's own commands as one array, and one more after all of them have ended well or not.

    `folder` gets the jobs' output. -> the array's job and the last one's.
    """
    asked = SlurmEngine(options)._common()
    more = _pairs(options.extra)
    with _submitit(
        folder, asked | {"slurm_array_parallelism": jobs, "slurm_additional_parameters": more}
    ) as executor:
        array = executor.map_array(run_lab, [list(part) for part in parts])[0].job_id.split("_")[0]
    after = {"slurm_additional_parameters": {**more, "dependency": f"afterany:{array}"}}
    with _submitit(folder, asked | after) as executor:
        end = executor.submit(run_lab, list(last)).job_id
    return str(array), str(end)


def read_jobs(root: Path) -> Jobs:
    try:
        return msgspec.json.decode((root / FOLDER / "jobs.json").read_bytes(), type=Jobs)
    except FileNotFoundError:
        return Jobs()


def end_gently(root: Path, jobs: Sequence[str]) -> None:
    """Jobs that wait never begin; steps that run are asked to end, and may clean up."""
    write_atomic(flag_path(root), b"")
    queue.cancel(jobs, waiting_only=True)


def cancel_run(root: Path) -> list[str]:
    """End every job of a run that still lives; -> the jobs."""
    jobs = list(read_jobs(root).of_step.values())
    living = [job for job, state in queue.states(jobs).items() if state in queue.LIVE]
    if living:
        end_gently(root, living)
    return living


def _alike(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Steps that can share an array: same nodes, GPUs and limit, in their order."""
    groups: dict[tuple[int, int, float | None], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.nodes, step.num_gpus, step.timeout_s), []).append(step)
    yield from groups.values()


def _forget(root: Path, step: Step) -> None:
    for rank in range(step.nodes):
        trace_path(root, step.name, rank).unlink(missing_ok=True)


def _pairs(extra: Sequence[str]) -> dict[str, str | bool]:
    """`KEY=VALUE`, or `KEY` alone for a flag."""
    words = [text.removeprefix("--").partition("=") for text in extra]
    if not all(name for name, _, _ in words):
        raise UsageError("--sbatch takes KEY=VALUE or KEY, as in --sbatch exclusive=user")
    return {name: value if equals else True for name, equals, value in words}


@contextlib.contextmanager
def _submitit(root: Path, parameters: Mapping[str, Any]) -> Iterator[Any]:
    """submitit's executor, with its errors made ours."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise EngineError("the slurm engine needs submitit", fix="pip install 'lab[slurm]'") from error
    folder = root.absolute() / FOLDER / "submitit"
    make_folder(folder)
    try:
        executor = submitit.AutoExecutor(
            folder=str(folder / "%j"), cluster="slurm", slurm_python=sys.executable
        )
        executor.update_parameters(**parameters)
        yield executor
    except submitit.core.utils.FailedJobError as error:
        raise EngineError(f"Slurm refuses the job: {error}", fix="see sinfo and the site's limits") from error
    except RuntimeError as error:
        raise EngineError(f"cannot submit: {error}", fix="run where sbatch works") from error
