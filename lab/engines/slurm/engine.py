"""Steps as Slurm jobs: one array per run, one task per step (or per node of it), submitted through submitit.

The node runs the step with the engine it has (this environment, Docker, apptainer or pyxis) and leaves its
outcome in the shared run folder (`task`). The driver only watches: it may be killed, and `--resume` follows
its jobs again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, Lab, Used
from lab.core.options import Options, SlurmOptions
from lab.core.plan import Site
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.core.stop import Stop
from lab.core.words import plural
from lab.engines.base import Engine, OnLine, Provenance
from lab.engines.slurm import queue
from lab.engines.slurm.follow import cancel_run, follow, living_jobs, lost_outcome
from lab.engines.slurm.records import Ticket, read_jobs, read_trace, stop_flag, trace_path, write_jobs
from lab.engines.slurm.runtimes import COMMANDS, WrappedEngine
from lab.engines.slurm.submission import (
    MOST_NAME_CHARACTERS,
    alike,
    step_parameters,
    submit_after,
    submitit_executor,
)
from lab.engines.slurm.task import GRACE_S, execute_step
from lab.errors import EngineError, UsageError
from lab.gpus.selection import parse_spec, placeholders
from lab.images.foreign import image_of, is_reference, mount_text
from lab.images.spec import Image

ANALYSIS_LIMIT_MIN = 120


class SlurmEngine(Engine):
    """Submits steps as arrays and follows them. See lab.engines.base.QueueEngine."""

    name = "slurm"
    runs_here = False

    def __init__(
        self,
        options: SlurmOptions,
        *,
        image: Image | None = None,
        further: Sequence[Image] = (),
        vendor: str = "none",
    ) -> None:
        """`image`: of steps that name none; `further`: those that steps name."""
        image_names = [i.name for i in (image, *further) if i]
        if not image_names and options.container != "none":
            raise UsageError(f"--container {options.container} runs an image", fix="add --image NAME")
        if image_names and options.container == "none":
            raise UsageError(
                "on Slurm an image needs the site's container runtime",
                fix=f"--image {image_names[0]} --container docker|pyxis|apptainer, or neither",
            )
        if options.container in COMMANDS and not options.experimental:
            problem = f"--container {options.container} was built from its manual and never run"
            raise UsageError(problem, fix="add --experimental, and look at --dry-run first")
        self.options, self.image, self.vendor = options, image, vendor
        self.further = {i.name: i for i in further}

    @classmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        image = _image(options.image, options) if options.image else None
        further = [_image(name, options) for name in options.images]
        sites = [_site(options, i) for i in (image, *further) if i] or [_site(options, None)]
        site = next((s for s in sites if s.gpus), sites[0])
        if options.vendor is None and any(s.vendor != site.vendor for s in sites):
            raise UsageError("steps in these images would not have the same GPUs", fix="--vendor none")
        slurm = options.slurm or SlurmOptions()
        return site, cls(slurm, image=image, further=further, vendor=site.vendor)

    @classmethod
    def restore(cls, run: Run, options: Options) -> tuple[Site, Engine]:
        """The engine as it was when the run began: its manifest holds what was asked of Slurm."""
        recorded = (run.manifest.container or {}).get("slurm", {})
        vendor = run.manifest.gpus[0].vendor if run.manifest.gpus else "none"
        mounts = tuple((run.manifest.container or {}).get("user_mounts", ()))
        flags = msgspec.structs.replace(options, vendor=vendor, mounts=mounts)
        image = _image(run.manifest.image.name, flags) if run.manifest.image else None
        further = [_image(record.name, flags) for record in run.manifest.images]
        engine = cls(msgspec.convert(recorded, SlurmOptions), image=image, further=further, vendor=vendor)
        return Site(vendor=vendor, gpus=run.manifest.gpus, resolved=False), engine

    @classmethod
    def end_leftovers(cls, run: Run) -> list[str]:
        return [f"cancelled job {job}" for job in cancel_run(run.root)]

    @classmethod
    def has_jobs(cls, run: Run) -> bool:
        with contextlib.suppress(EngineError):  # a machine without Slurm, to which the run was copied
            return bool(living_jobs(run.root))
        return False

    # Steps

    def run(self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: OnLine, stop: Stop) -> Outcome:
        """One step as a job of its own; `run_all` is for many."""
        return next(self.run_all(run, [step], jobs=1, on_line=lambda _: on_line, stop=stop))[1]

    def run_all(
        self, run: Run, steps: Sequence[Step], *, jobs: int, on_line: Callable[[Step], OnLine], stop: Stop
    ) -> Iterator[tuple[Step, Outcome]]:
        """Submit all steps, at most `jobs` of them running at a time; yield each as it ends."""
        submitted = self.submit(run, steps, jobs=jobs)
        yield from follow(run, {step.name: step for step in steps}, submitted, on_line, stop, self.say)

    def attach(self, run: Run, step: Step, *, on_line: OnLine, stop: Stop) -> Outcome | None:
        job = read_jobs(run.root).of_step.get(step.name)
        if job is None:
            return None
        trace = read_trace(trace_path(run.root, step.name))
        if (trace is None or trace.outcome is None) and not queue.living([job]):
            return None
        return next(follow(run, {step.name: step}, {step.name: job}, lambda _: on_line, stop, self.say))[1]

    def lost(self, run: Run, step: Step) -> Outcome:
        return lost_outcome(read_jobs(run.root).of_step.get(step.name, ""), cancelled=False)

    def gpus_seen(self, run: Run) -> tuple[Gpu, ...]:
        """The GPUs of the first step that has run: what the plan's placeholders stood for."""
        for record in run.manifest.steps:
            trace = read_trace(trace_path(run.root, record.step.name))
            if trace and trace.gpus:
                return trace.gpus
        return run.manifest.gpus

    def provenance(self, run_dir: str, gpus: Sequence[Gpu]) -> Provenance:
        mounts = [mount_text(mount) for mount in self.image.user_mounts] if self.image else []
        slurm = {"slurm": msgspec.to_builtins(self.options)}
        return _record(self.image), {**slurm, **({"user_mounts": mounts} if mounts else {})}

    def further_images(self, run_dir: str, gpus: Sequence[Gpu]) -> tuple[ImageRecord, ...]:
        return tuple(filter(None, map(_record, self.further.values())))

    def version(self) -> str | None:
        return queue.version()

    def lab_used(self, lab: Lab) -> Used:
        """The copy in the run folder, which every node sees, whatever lab is installed there."""
        return "mounted" if self.image or self.further else "copy"

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        sbatch = {"sbatch": step_parameters(self.options, [step], jobs=1)}
        image = self._image_of(step)
        if image and self.options.container in COMMANDS:
            wrapped = WrappedEngine(self.options.container, image, grace_s=GRACE_S)
            return sbatch | wrapped.preview(step, gpus, run_dir=run_dir)
        return {**sbatch, "argv": list(step.argv), "env": step.env, "cwd": run_dir}

    # Submission

    def submit(self, run: Run, steps: Sequence[Step], *, jobs: int) -> dict[str, str]:
        """Step name -> job. Steps that ask for the same share an array; each array is recorded at once."""
        jobs_of_run = read_jobs(run.root)
        stop_flag(run.root).unlink(missing_ok=True)
        for group in alike(steps):
            tickets = [self._ticket(run, step) for step in group]
            for step in group:
                for rank in range(step.nodes):  # an earlier attempt's would be taken for this one's
                    trace_path(run.root, step.name, rank).unlink(missing_ok=True)
            with submitit_executor(run.root, step_parameters(self.options, group, jobs=jobs)) as executor:
                encoded = [msgspec.json.encode(ticket).decode() for ticket in tickets]
                submitted = executor.map_array(execute_step, encoded)
            for ticket, job in zip(tickets, submitted, strict=True):
                jobs_of_run.of_step[ticket.step] = str(job.job_id)
                jobs_of_run.attempt[ticket.step] = ticket.attempt
            write_jobs(run.root, jobs_of_run)
        return {step.name: jobs_of_run.of_step[step.name] for step in steps}

    def leave(self, run: Run, steps: Sequence[Step], *, jobs: int, finish: Callable[[], None]) -> str:
        for step in steps:
            run.begin(step)
        self.submit(run, steps, jobs=jobs)
        jobs_of_run = read_jobs(run.root)
        arrays = sorted({queue.array_of(job) for job in jobs_of_run.of_step.values()})
        parameters = {
            "slurm_time": self.options.time_min or ANALYSIS_LIMIT_MIN,
            "slurm_job_name": f"lab-{run.manifest.id}-analysis"[:MOST_NAME_CHARACTERS],
        }
        jobs_of_run.analysis = submit_after(run.root, self.options, arrays, parameters, finish)
        write_jobs(run.root, jobs_of_run)
        analysis = f"and their analysis as {jobs_of_run.analysis}"
        return f"submitted {plural(len(steps), 'step')} as {', '.join(arrays)} {analysis}"

    def _image_of(self, step: Step) -> Image | None:
        return self.further[step.image] if step.image else self.image

    def _ticket(self, run: Run, step: Step) -> Ticket:
        image = self._image_of(step)
        records = [record for record in (run.manifest.image, *run.manifest.images) if record]
        return Ticket(
            run_dir=str(run.root.absolute()),
            step=step.name,
            attempt=run.record(step).attempts,
            vendor=self.vendor,
            image=image.name if image else None,
            container=self.options.container if image else "none",
            image_id=next((r.id for r in records if image and r.name == image.name), None),
            mounts=tuple(mount_text(mount) for mount in image.user_mounts) if image else (),
        )

    def image_seen(self, run: Run) -> ImageRecord | None:
        """By the first step that ran in it, as the engine of its node knows it."""
        recorded = run.manifest.image
        for record in run.manifest.steps:
            trace = read_trace(trace_path(run.root, record.step.name))
            image = trace.image if trace else None
            if recorded and image and recorded.id is None and image.name == recorded.name:
                return image
        return recorded


def _site(options: Options, image: Image | None) -> Site:
    """What each node is asked for. No GPU is looked for, because a login node has none."""
    vendor = options.vendor or (image.vendor if image else "none")
    wanted = parse_spec(options.gpus)
    if vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                "--gpus needs --vendor here", fix="--vendor nvidia or amd, or an --image that implies it"
            )
        return Site(vendor="none", resolved=False)
    if not isinstance(wanted, int):
        raise UsageError(
            "on Slurm --gpus takes a number: how many GPUs on each node",
            location=f"--gpus {options.gpus}",
            fix="for example --gpus 8",
        )
    return Site(vendor=vendor, gpus=tuple(placeholders(vendor, options.gpus, wanted)), resolved=False)


def _image(name: str, options: Options) -> Image:
    """The image of the flags; what one of the user's own holds is looked at on the node."""
    vendor = options.vendor if is_reference(name) else None
    return image_of(name, vendor=vendor, mounts=options.mounts, looks=False)


def _record(image: Image | None) -> ImageRecord | None:
    """The image by its name: only a node knows its content."""
    return ImageRecord(name=image.name, ref=image.workload_ref or image.ref) if image else None
