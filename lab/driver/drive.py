"""The host driver: plan, execute, analyse, report. Decide first, then act."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.core import provenance
from lab.core.files import read_json
from lab.core.manifest import Manifest, StepRecord
from lab.core.options import Options
from lab.core.plan import Experiment, Plan, Site
from lab.core.run import Run
from lab.core.run_folder import check_place, new_root
from lab.core.snapshot import take_snapshot
from lab.core.step import STALL_LIMIT, Outcome, Status, Step, utc_now
from lab.core.stop import Stop, on_signals
from lab.driver.analysis import analyse_run
from lab.driver.comparable import (
    content_of,
    described,
    look_up,
    refuse_missing,
    same_cpu,
    same_images,
    same_lab,
    same_models,
    with_models,
)
from lab.driver.detached import detach
from lab.driver.execute import StepRunner, check_gpus
from lab.driver.report import seen_env
from lab.driver.show import show_error, show_plan, show_result
from lab.engines import engine_class, engine_for
from lab.engines.base import Engine, refuse_other_gpus
from lab.errors import Interrupted, LabError, UsageError
from lab.rooms import room
from lab.secrets import redact, redact_env, secret_values
from lab.terminal.console import Console, StepDisplay


def drive(experiment: Experiment) -> None:
    """One run from its plan to its report.

    Raises StepFailed when a step did not succeed, Interrupted on Ctrl-C.
    """
    options, name = experiment.options, experiment.room
    site, engine = engine_for(options).prepare(options)
    site = experiment.settle(site) if experiment.settle else site
    root = options.output_dir or new_root(name, Path("experiments"))
    plan = experiment.make_plan(site, root)
    if site.resolved:
        check_gpus(plan.steps, site.gpus)
    steps = tuple(_with_limits(step, options) for step in plan.steps)
    notes = (*plan.notes, *site.notes, *engine.notes(site.gpus if site.resolved else ()))
    plan = msgspec.structs.replace(plan, steps=steps, notes=notes)
    models = look_up(plan.models, engine, options.image)
    plan = with_models(plan, models, engine)
    if options.dry_run:
        if not (options.skip_existing and Run.is_run(root)):
            check_place(root)
        show_plan(name, plan, site, engine, root, options)
        return
    refuse_missing(models, engine, options.image)
    console = Console(quiet=options.quiet)
    for note in plan.notes:
        console.say(f"note: {note}")
    manifest = first_manifest(name, plan, site, engine, root, options.env)
    if manifest.lab.used == "mounted" and manifest.image:
        mounted = f"({described(manifest.lab)}), mounted read-only into {manifest.image.ref}"
        console.say(f"note: steps import this host's lab {mounted}")
    run = open_or_create(root, manifest, plan, options)
    console.say(f"run folder: {root}")
    if options.detach:
        leave(run, engine, options, console)
        return
    carry_out(run, engine, site, options, console)
    if experiment.on_success:
        experiment.on_success(root)


def resume(folder: Path, options: Options) -> None:
    """Run what is missing or failed of an earlier run, with its own image, engine and configuration.

    Containers that outlived the earlier driver are followed to their end first.
    """
    run = Run.open(folder)
    recorded = run.manifest
    site, engine = engine_class(recorded.engine).restore(run, options)
    if options.dry_run:
        plan = Plan(steps=tuple(run.pending()), config=recorded.config)
        show_plan(recorded.room, plan, site, engine, folder, options)
        return
    console = Console(quiet=options.quiet)
    root = str(folder.absolute())
    image, _ = engine.provenance(root, recorded.gpus)
    same_images(run, image, engine.further_images(root, recorded.gpus))
    same_models(run, engine)
    if engine.runs_here and run.pending():
        same_cpu(run)
    console.say(f"resuming {folder}: {len(run.pending())} of {len(recorded.steps)} steps to do")
    carry_out(run, engine, site, options, console)


def leave(run: Run, engine: Engine, options: Options, console: Console) -> None:
    """Return while the run goes on: as jobs of a scheduler, else driven by a process of its own."""
    if engine.runs_here:
        console.say(detach(run.root, options))
    else:
        finish = partial(finish_run, str(run.root.absolute()), options.analysis)
        with run.locked():
            prepare_lab(run, engine)
            console.say(engine.leave(run, run.pending(), jobs=options.jobs, finish=finish))
    folder = shlex.quote(str(run.root))
    console.say(f"look: lab runs show {folder}, lab runs logs -f {folder}; end: lab runs stop {folder}")


def carry_out(run: Run, engine: Engine, site: Site, options: Options, console: Console) -> None:
    """Execute what is pending, then analyse all there is."""
    with run.locked():
        with on_signals(console.say) as stop:
            execute(run, engine, site, options, console, stop)
        gather(run, engine)
        if stop.is_set():
            fix = f"continue with: lab run --resume {shlex.quote(str(run.root))}"
            raise Interrupted("interrupted; finished steps are kept", location=run.root, fix=fix)
        findings = analyse_run(run, engine, options, console)
    show_result(run, findings, options)


def execute(run: Run, engine: Engine, site: Site, options: Options, console: Console, stop: Stop) -> None:
    """Follow what an earlier driver left to its end, then run every pending step."""
    with StepDisplay(console, len(run.pending())) as display:
        house = room(run.manifest.room)
        watchers = [display, house.watcher(run)]
        engine.say = console.say
        spare = house.spare(run) if hasattr(house, "spare") else None
        rotate = getattr(house, "ROTATES_GPUS", False)
        runner = StepRunner(run, engine, watchers, stop, options.wait, spare, rotate)
        runner.take_up()
        if run.pending() and not stop.is_set():
            prepare_lab(run, engine)
        runner.execute(run.pending(), site.gpus, jobs=options.jobs)


def prepare_lab(run: Run, engine: Engine) -> None:
    """Put the lab that pending steps import into the run folder. Raises UsageError if it is another one."""
    identity = provenance.lab_with_content()
    same_lab(run, identity)
    if run.manifest.lab.used is None:
        used = engine.lab_used(identity)
        run.manifest.lab = msgspec.structs.replace(run.manifest.lab, used=used)
        run.save()
    take_snapshot(run.root, run.manifest.lab)


def stop_run(folder: Path, console: Console) -> None:
    """End a run from outside: its driver as Ctrl-C would, then everything it left running."""
    run = Run.open(folder)
    driver = run.interrupt_driver()
    console.say(f"driver {driver} ended" if driver else "no process drives this run: nothing to interrupt")
    for sentence in engine_class(run.manifest.engine).end_leftovers(run):
        console.say(sentence)
    time = utc_now()
    for step in run.open_steps():
        run.finish(
            step, Outcome(status=Status.interrupted, reason="stopped by lab runs stop", started_utc=time)
        )


def open_or_create(root: Path, manifest: Manifest, plan: Plan, options: Options) -> Run:
    if not (options.skip_existing and Run.is_run(root)):
        return Run.create(root, manifest, inputs=plan.inputs)
    run = Run.open(root)
    same_images(run, manifest.image, manifest.images)
    if engine_class(run.manifest.engine).runs_here:
        refuse_other_gpus(run.manifest.gpus, manifest.gpus)
        same_cpu(run)
    names = {record.step.name for record in run.manifest.steps}
    if manifest.lab.used and any(record.step.name not in names for record in manifest.steps):
        same_lab(run, manifest.lab)
    with run.locked():
        run.extend(manifest.steps, inputs=plan.inputs)
    return run


def first_manifest(
    name: str, plan: Plan, site: Site, engine: Engine, root: Path, env: Sequence[tuple[str, str]] = ()
) -> Manifest:
    """What is known before the first step: all steps planned, none run."""
    created, secrets = utc_now(), secret_values()
    identity = provenance.lab_with_content()
    used = engine.lab_used(identity)
    image, container = engine.provenance(str(root.absolute()), site.gpus)
    further = engine.further_images(str(root.absolute()), site.gpus)
    inputs = [plan.inputs[name] for name in sorted(plan.inputs)]
    skipped = {
        name: Outcome(status=Status.skipped, reason=reason, started_utc=created)
        for name, reason in plan.skipped.items()
    }
    return Manifest(
        id=root.resolve().name,
        room=name,
        created_utc=created,
        lab=msgspec.structs.replace(identity, used=used),
        engine=engine.name,
        engine_version=engine.version(),
        command=tuple(redact(word, secrets) for word in ["lab", *sys.argv[1:]]),
        image=image,
        images=further,
        container=container,
        host=provenance.host(),
        gpus=site.gpus,
        env={**engine.env_given(os.environ), **redact_env(dict(env), secrets)},
        config=plan.config,
        steps=[
            StepRecord(
                step=step,
                fingerprint=step.fingerprint(content_of(step, image, further), *inputs),
                outcome=skipped.get(step.name),
            )
            for step in plan.steps
        ],
    )


def _with_limits(step: Step, options: Options) -> Step:
    stall_s = options.stall_timeout_s or step.stall_timeout_s
    # Ranks that know the limit say who is waited for before the engine ends them.
    env = {**step.env, STALL_LIMIT: f"{stall_s:g}"} if stall_s else step.env
    for name, value in options.env:
        if env.get(name, value) != value:
            raise UsageError(
                f"step {step.name!r} sets {name}={env[name]} itself",
                fix=f"drop --env {name}: its options vary it",
            )
    env = {**env, **dict(options.env)}
    return msgspec.structs.replace(
        step, timeout_s=options.timeout_s or step.timeout_s, stall_timeout_s=stall_s, env=env
    )


# What steps left: versions for the manifest and, after a detached run, outcomes and analysis.


def finish_run(folder: str, analysis: Literal["auto", "host", "none"]) -> None:
    """Record the outcomes of a run whose jobs have ended, then analyse it; with lab's exit codes."""
    options, console = Options(quiet=True, analysis=analysis), Console(quiet=True)
    try:
        run = Run.open(Path(folder))
        _, engine = engine_class(run.manifest.engine).restore(run, options)
        with run.locked():
            runner = StepRunner(run, engine, [room(run.manifest.room).watcher(run)], Stop())
            runner.take_up()
            for step in run.open_steps():
                runner.finish(step, engine.lost(run, step))
            gather(run, engine)
            findings = analyse_run(run, engine, options, console)
        show_result(run, findings, options)
    except LabError as error:
        raise SystemExit(show_error(error)) from error


def gather(run: Run, engine: Engine) -> None:
    """Add to the manifest the versions and GPUs that the steps saw."""
    for record in run.manifest.steps:
        path = run.folder(record.step) / "environment.json"
        versions = read_json(path, _Environment, path.name).versions if path.exists() else {}
        run.manifest.versions |= {name: str(text) for name, text in versions.items() if text is not None}
    run.manifest.gpus = engine.gpus_seen(run)
    run.manifest.env = seen_env(run.manifest)
    run.manifest.image = engine.image_seen(run)
    run.save()


class _Environment(msgspec.Struct):
    """What a workload left in its folder about its software."""

    versions: dict[str, Any] = {}
