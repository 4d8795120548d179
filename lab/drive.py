"""The host driver: survey, plan, execute, analyse, report. Decide first, then act."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from lab.analysis import analyse_run
from lab.console import Console
from lab.core import provenance
from lab.core.manifest import Manifest, StepRecord
from lab.core.run import Run, new_root, utc_now
from lab.core.step import Outcome, Status, Step
from lab.engines.base import Engine
from lab.engines.leases import hold
from lab.engines.stop import Stop, on_signals
from lab.errors import BadDataError, Interrupted, MissingError, UsageError
from lab.execute import Crew
from lab.rooms import Plan, Site, room
from lab.secrets import redact, secret_values
from lab.show import raise_for_findings, raise_for_steps, show_findings, show_plan
from lab.survey import Options, make_engine, survey


def drive(room_name: str, make_plan: Callable[[Site, Path], Plan], options: Options) -> None:
    """One run from its plan to its report. Raises StepFailed when a step did not succeed, Interrupted on Ctrl-C."""
    site = survey(options)
    engine = make_engine(options, site)
    root = options.output_dir or new_root(room_name, Path("experiments"))
    plan = make_plan(site, root)
    plan = msgspec.structs.replace(plan, steps=tuple(_with_limits(step, options) for step in plan.steps))
    if options.dry_run:
        show_plan(room_name, plan, site, engine, root, options)
        return
    console = Console(quiet=options.quiet)
    for note in plan.notes:
        console.say(f"note: {note}")
    run = open_or_create(root, first_manifest(room_name, plan, site, engine, root), plan, options)
    console.say(f"run folder: {root}")
    if options.detach:
        leave_to_slurm(run, engine, options, console)
        return
    carry_out(run, engine, site, options, console)


def resume(folder: Path, options: Options, *, attach: bool = False) -> None:
    """Run what is missing or failed of an earlier run, with its own image, engine and configuration.

    Containers that outlived the earlier driver are taken up first; `attach` demands that there is one.
    """
    run = Run.open(folder)
    recorded = run.manifest
    image = recorded.image.name if recorded.image else None
    options = msgspec.structs.replace(options, image=image, engine=recorded.engine)
    site, engine = _as_before(run, options)
    if options.dry_run:
        plan = Plan(steps=tuple(run.pending()), config=recorded.config)
        show_plan(recorded.room, plan, site, engine, folder, options)
        return
    console = Console(quiet=options.quiet)
    same_image(run, engine)
    console.say(f"resuming {folder}: {len(run.pending())} of {len(recorded.steps)} steps to do")
    carry_out(run, engine, site, options, console, attach=attach)


def leave_to_slurm(run: Run, engine: Engine, options: Options, console: Console) -> None:
    """Submit all steps and the job that collects and analyses them, and return."""
    from lab.engines.slurm import SlurmEngine

    if not isinstance(engine, SlurmEngine):
        raise UsageError("only the slurm engine can be left alone", fix="--engine slurm --detach")
    with run.locked():
        steps = run.pending()
        for step in steps:
            run.begin(step)
        jobs = engine.submit(run, steps, jobs=options.jobs)
        last = engine.submit_finish(run, options.analysis)
    arrays = sorted({job.split("_")[0] for job in jobs.values()})
    console.say(f"submitted {len(steps)} steps as {', '.join(arrays)} and their analysis as {last}")
    console.say(
        f"look: lab runs show {shlex.quote(str(run.root))}; end: lab runs stop {shlex.quote(str(run.root))}"
    )


def collect(folder: Path, analysis: Literal["auto", "host", "none"]) -> None:
    """After all jobs of a run have ended: their outcomes into the manifest, then the analysis. Runs no step."""
    from lab.engines.slurm import engine_of_record

    run = Run.open(folder)
    engine = engine_of_record(run)
    options, console = Options(engine="slurm", quiet=True, analysis=analysis), Console(quiet=True)
    with run.locked():
        crew = Crew(
            run,
            engine,
            [room(run.manifest.room).watcher(run)],
            Stop(),
            lambda _: contextlib.nullcontext(True),
        )
        crew.take_up()
        for step in run.open_steps():
            crew.finish(step, engine.lost(run, step))
        gather_versions(run)
        gather_gpus(run)
        findings = analyse_run(run, engine, options, console)
    show_findings(run.root, findings, options)
    raise_for_steps(run)
    raise_for_findings(findings, run.root)


def carry_out(
    run: Run, engine: Engine, site: Site, options: Options, console: Console, *, attach: bool = False
) -> None:
    """Execute what is pending, then analyse all there is."""
    with run.locked():
        with on_signals(console.say) as stop:
            work(run, engine, site, options, console, stop, attach)
        gather_versions(run)
        gather_gpus(run)
        if stop.is_set():
            raise interrupted(run)
        findings = analyse_run(run, engine, options, console)
    show_findings(run.root, findings, options)
    raise_for_steps(run)
    raise_for_findings(findings, run.root)


def work(
    run: Run, engine: Engine, site: Site, options: Options, console: Console, stop: Stop, attach: bool
) -> None:
    lease = partial(hold, holder=f"run {run.manifest.id}", wait=options.wait, stop=stop, say=console.say,
                    in_containers=engine.gpus_in_use)  # fmt: skip
    with console.steps(len(run.pending())) as display:
        crew = Crew(run, engine, [display, room(run.manifest.room).watcher(run)], stop, lease)
        taken_up = crew.take_up()
        if attach and not taken_up:
            raise MissingError("no container of this run is left to attach to", where=run.root,
                               fix=f"lab run --resume {shlex.quote(str(run.root))}")  # fmt: skip
        crew.execute(run.pending(), site.gpus, jobs=options.jobs)


def _as_before(run: Run, options: Options) -> tuple[Site, Engine]:
    """Where an earlier run goes on: the GPUs of this machine, or what was asked of Slurm then."""
    if run.manifest.engine == "slurm":
        from lab.engines.slurm import engine_of_record

        engine = engine_of_record(run)
        return Site(vendor=engine.vendor, gpus=run.manifest.gpus, resolved=False), engine
    site = survey(options)
    return site, make_engine(options, site)


def stop_run(folder: Path, console: Console) -> None:
    """End a run from outside: its driver as Ctrl-C would, then every container it left."""
    run = Run.open(folder)
    driver = run.interrupt_driver()
    console.say(f"driver {driver} ended" if driver else "no driver works on this run")
    if run.manifest.engine == "docker":
        from lab.engines.docker_leftovers import stop_run as stop_containers

        for one in stop_containers(run.manifest.id, run_dir=run.root):
            console.say(f"stopped {one.name} (step {one.step})")
    if run.manifest.engine == "slurm":
        from lab.engines.slurm import cancel_run

        for job in cancel_run(run.root):
            console.say(f"cancelled job {job}")
    now = utc_now()
    for step in run.open_steps():
        run.finish(
            step, Outcome(status=Status.interrupted, reason="stopped by lab runs stop", started_utc=now)
        )


def open_or_create(root: Path, manifest: Manifest, plan: Plan, options: Options) -> Run:
    if not (options.skip_existing and Run.is_run(root)):
        return Run.create(root, manifest, inputs=plan.inputs)
    run = Run.open(root)
    with run.locked():
        run.extend(manifest.steps, inputs=plan.inputs)
    return run


def first_manifest(room_name: str, plan: Plan, site: Site, engine: Engine, root: Path) -> Manifest:
    """What is known before the first step: all steps planned, none run."""
    now, secrets = utc_now(), secret_values()
    image, container = engine.provenance(str(root.absolute()), site.gpus)
    context = (image.id or image.ref if image else "", *(plan.inputs[name] for name in sorted(plan.inputs)))
    skipped = {
        name: Outcome(status=Status.skipped, reason=why, started_utc=now)
        for name, why in plan.skipped.items()
    }
    return Manifest(
        id=root.resolve().name, room=room_name, created_utc=now, lab=provenance.lab_identity(), engine=engine.name,
        command=tuple(redact(word, secrets) for word in ["lab", *sys.argv[1:]]), image=image, container=container,
        host=provenance.host(), gpus=site.gpus, env=provenance.relevant_env(), config=plan.config,
        steps=[StepRecord(step=step, fingerprint=step.fingerprint(*context), outcome=skipped.get(step.name))
               for step in plan.steps])  # fmt: skip


def same_image(run: Run, engine: Engine) -> None:
    """Refuse to go on with another image: the new results would not be comparable with those that are there."""
    recorded = run.manifest.image
    image, _ = engine.provenance(str(run.root.absolute()), run.manifest.gpus)
    if recorded and recorded.id and image and image.id != recorded.id:
        raise UsageError(f"{image.ref} is another image now than when this run began", where=f"{recorded.id} then, {image.id} now",
                         fix=f"start a new run, or give the old image its name back: docker tag {recorded.id} {image.ref}")  # fmt: skip


def gather_versions(run: Run) -> None:
    """Workloads leave environment.json in their folder; its `versions` join the manifest."""
    for record in run.manifest.steps:
        path = run.folder(record.step) / "environment.json"
        if path.exists():
            try:
                found = msgspec.json.decode(path.read_bytes()).get("versions", {})
            except (msgspec.DecodeError, AttributeError) as error:
                raise BadDataError(f"environment.json cannot be read: {error}", where=path) from error
            said = {name: str(value) for name, value in found.items() if value is not None}
            run.manifest.versions.update(said)
    run.save()


def gather_gpus(run: Run) -> None:
    """After steps on other machines: the GPUs that they saw in the place of the plan's placeholders."""
    if run.manifest.engine == "slurm":
        from lab.engines.slurm import gpus_seen

        run.manifest.gpus = gpus_seen(run) or run.manifest.gpus
        run.save()


def interrupted(run: Run) -> Interrupted:
    return Interrupted("interrupted; finished steps are kept", where=run.root,
                       fix=f"continue with: lab run --resume {shlex.quote(str(run.root))}")  # fmt: skip


def _with_limits(step: Step, options: Options) -> Step:
    return msgspec.structs.replace(
        step,
        timeout_s=options.timeout_s or step.timeout_s,
        stall_timeout_s=options.stall_timeout_s or step.stall_timeout_s,
    )
