"""The host driver: survey, plan, execute, analyse, report. Decide first, then act."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from lab import images
from lab.console import Console
from lab.core import provenance
from lab.core.files import make_folder
from lab.core.manifest import ImageRecord, Manifest, StepRecord
from lab.core.run import Run, new_root, utc_now
from lab.core.step import Outcome, Status, Step
from lab.engines.base import Engine
from lab.engines.gpus import discover, parse_spec, placeholders, select
from lab.engines.leases import hold
from lab.engines.stop import Stop, on_signals
from lab.errors import BadDataError, GpuError, Interrupted, LabError, StepFailed, UsageError
from lab.execute import Crew
from lab.rooms import Findings, Plan, Site, room
from lab.secrets import redact, redact_env, secret_values

DEFAULT_NPROC = 8  # what a dry run assumes of GPUs that are not in this machine


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `lab run` itself; the room's own are in its config."""

    image: str | None = None
    engine: str | None = None
    gpus: str = "all"
    jobs: int = 1
    dry_run: bool = False
    json: bool = False
    output_dir: Path | None = None
    skip_existing: bool = False
    timeout_s: float | None = None
    stall_timeout_s: float | None = None
    analyse: bool = True
    quiet: bool = False
    wait: bool = True  # for GPUs that another process holds


def drive(room_name: str, make_plan: Callable[[Site, Path], Plan], options: Options) -> None:
    """One run from its plan to its report. Raises StepFailed when a step did not succeed, Interrupted on Ctrl-C."""
    site = survey(options)
    image = images.load(options.image) if options.image else None
    engine = make_engine(options, image, site)
    root = options.output_dir or new_root(room_name, Path("experiments"))
    plan = make_plan(site, root)
    plan = msgspec.structs.replace(plan, steps=tuple(_with_limits(step, options) for step in plan.steps))
    if options.dry_run:
        show_plan(room_name, plan, site, engine, root, options)
        return
    console = Console(quiet=options.quiet)
    for note in plan.notes:
        console.say(f"note: {note}")
    manifest = first_manifest(room_name, plan, site, engine, image, root)
    if options.skip_existing and Run.is_run(root):
        run = Run.open(root)
        with run.locked():
            run.extend(manifest.steps, inputs=plan.inputs)
    else:
        run = Run.create(root, manifest, inputs=plan.inputs)
    console.say(f"run folder: {root}")
    carry_out(run, engine, site, options, console)


def resume(folder: Path, options: Options) -> None:
    """Run what is missing or failed of an earlier run, with its own image, engine and configuration."""
    run = Run.open(folder)
    recorded = run.manifest
    options = msgspec.structs.replace(
        options, image=recorded.image.name if recorded.image else None, engine=recorded.engine
    )
    site = survey(options)
    image = images.load(options.image) if options.image else None
    engine = make_engine(options, image, site)
    if options.dry_run:
        plan = Plan(steps=tuple(run.pending()), config=recorded.config)
        show_plan(recorded.room, plan, site, engine, folder, options)
        return
    console = Console(quiet=options.quiet)
    todo = run.pending()
    console.say(f"resuming {folder}: {len(todo)} of {len(recorded.steps)} steps to do")
    carry_out(run, engine, site, options, console)


def carry_out(run: Run, engine: Engine, site: Site, options: Options, console: Console) -> None:
    """Execute what is pending, then analyse all there is."""
    with run.locked():
        with on_signals(console.say) as stop:
            work(run, engine, site, options, console, stop)
        gather_versions(run)
        if stop.is_set():
            raise Interrupted("interrupted; finished steps are kept", where=run.root,
                              fix=f"continue with: lab run --resume {shlex.quote(str(run.root))}")  # fmt: skip
        findings = analyse(run.root, None, console) if options.analyse else None
    show_findings(run.root, findings, options)
    raise_for_steps(run)
    if findings is not None and findings.status == "fail":
        raise StepFailed(
            "all steps ran, but there is nothing sound to analyse: see the report", where=run.root
        )


def work(run: Run, engine: Engine, site: Site, options: Options, console: Console, stop: Stop) -> None:
    steps = run.pending()
    lease = partial(hold, holder=f"run {run.manifest.id}", wait=options.wait, stop=stop, say=console.say)
    with console.steps(len(steps)) as display:
        watchers = [display, room(run.manifest.room).watcher(run)]
        Crew(run, engine, watchers, stop, lease).execute(steps, site.gpus, jobs=options.jobs)


def analyse(folder: Path, out: Path | None, console: Console) -> Findings:
    """Tables, figures and page of a run, or of a recording that lab did not make."""
    from lab.rooms import room_of

    run = Run.open(folder) if Run.is_run(folder) else None
    house = room(run.manifest.room) if run else room_of(folder)
    target = out or (folder if run else Path("experiments") / f"{folder.resolve().name}_analysis")
    make_folder(target)
    return house.analyse(folder, target, run, console.detail)


def survey(options: Options) -> Site:
    """Which GPUs the steps will get, by flags and by what is here. A GPU asked for and not here is an error."""
    if options.image is None:
        return _survey_here(options)
    image = images.load(options.image)
    if image.vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                f"the image {image.name!r} has no use for GPUs", fix="drop --gpus, or choose another --image"
            )
        return Site(vendor="none")
    present = [gpu for gpu in discover() if gpu.vendor == image.vendor]
    if present:
        return Site(vendor=image.vendor, gpus=tuple(select(present, options.gpus)))
    if options.dry_run:
        return Site(
            vendor=image.vendor,
            gpus=tuple(placeholders(image.vendor, options.gpus, DEFAULT_NPROC)),
            resolved=False,
        )
    if parse_spec(options.gpus) == []:
        return Site(vendor=image.vendor)
    raise GpuError(
        f"the image {image.name!r} wants {image.vendor} GPUs and this machine shows none",
        fix="see `lab doctor`; use --image cpu for a run without GPU, or --dry-run to see the plan",
    )


def _survey_here(options: Options) -> Site:
    present = discover()
    chosen = tuple(select(present, options.gpus))
    return Site(vendor=chosen[0].vendor if chosen else "none", gpus=chosen)


def make_engine(options: Options, image: images.Image | None, site: Site) -> Engine:
    name = options.engine or ("docker" if image else "local")
    if name == "docker":
        from lab.engines.docker import DockerEngine

        if image is None:
            raise UsageError("the docker engine needs an image", fix=f"--image {'|'.join(images.names())}")
        return DockerEngine(image)
    if name != "local":
        raise UsageError(f"there is no engine {name!r}", fix="local or docker")
    if image is not None:
        raise UsageError(
            "the local engine runs in this environment, not in an image", fix="drop --image or --engine local"
        )
    from lab.engines.local import LocalEngine

    return LocalEngine(vendor=site.vendor)


def first_manifest(
    room_name: str, plan: Plan, site: Site, engine: Engine, image: images.Image | None, root: Path
) -> Manifest:
    now, secrets = utc_now(), secret_values()
    context = (image.ref if image else "", *(plan.inputs[name] for name in sorted(plan.inputs)))
    skipped = {
        name: Outcome(status=Status.skipped, reason=why, started_utc=now)
        for name, why in plan.skipped.items()
    }
    return Manifest(
        id=root.resolve().name, room=room_name, created_utc=now, lab=provenance.lab_identity(),
        command=tuple(redact(word, secrets) for word in ["lab", *sys.argv[1:]]), engine=engine.name,
        image=ImageRecord(name=image.name, ref=image.workload_ref or image.ref) if image else None,
        host=provenance.host(), gpus=site.gpus, env=provenance.relevant_env(), config=plan.config,
        steps=[StepRecord(step=step, fingerprint=step.fingerprint(*context), outcome=skipped.get(step.name))
               for step in plan.steps])  # fmt: skip


def gather_versions(run: Run) -> None:
    """Workloads leave environment.json in their folder; its `versions` join the manifest."""
    for record in run.manifest.steps:
        path = run.folder(record.step) / "environment.json"
        if path.exists():
            try:
                found = msgspec.json.decode(path.read_bytes()).get("versions", {})
            except (msgspec.DecodeError, AttributeError) as error:
                raise BadDataError(f"environment.json cannot be read: {error}", where=path) from error
            run.manifest.versions.update(
                {name: str(value) for name, value in found.items() if value is not None}
            )
    run.save()


def raise_for_steps(run: Run) -> None:
    """Exit code 0 only if what was asked for is there."""
    bad = [
        r
        for r in run.manifest.steps
        if r.outcome is None or r.outcome.status not in (Status.ok, Status.skipped)
    ]
    if not bad:
        return
    lines = []
    for record in bad:
        outcome = record.outcome
        lines.append(
            f"  {record.step.name}: {outcome.status.value}: {outcome.reason}"
            if outcome
            else f"  {record.step.name}: did not run"
        )
        lines += [f"      | {line}" for line in (outcome.tail[-12:] if outcome else ())]
    raise StepFailed(
        f"{len(bad)} of {len(run.manifest.steps)} steps did not succeed:\n" + "\n".join(lines),
        where=run.root,
        fix=f"try them again with: lab run --resume {shlex.quote(str(run.root))}",
    )


def raise_for_findings(findings: Findings | None, folder: Path) -> None:
    """An analysis that lacks something has its report, and an exit code that says so."""
    if findings is None:
        return
    if findings.lacking:
        raise StepFailed("the analysis is not complete:\n" + "\n".join(f"  {line}" for line in findings.lacking), where=folder,
                         fix="the report and tables/problems.csv name the files; the rest is analysed")  # fmt: skip
    if findings.status == "fail":
        raise StepFailed("there was nothing sound to analyse: see the report", where=folder)


def show_findings(root: Path, findings: Findings | None, options: Options) -> None:
    if options.json:
        print(
            msgspec.json.encode(
                {
                    "run": str(root),
                    "verdict": findings.verdict if findings else [],
                    "status": findings.status if findings else None,
                    "lacking": findings.lacking if findings else [],
                    "files": [str(path) for path in (findings.files if findings else [])],
                }
            ).decode()
        )
    elif findings:
        print(findings.terminal)


def show_plan(room_name: str, plan: Plan, site: Site, engine: Engine, root: Path, options: Options) -> None:
    """Print exactly what would run."""
    steps = [{**msgspec.to_builtins(step), "env": redact_env(step.env, secret_values()),
              "starts": engine.preview(step, site.gpus[: step.num_gpus], run_dir=str(root.absolute()))}
             for step in plan.steps if step.name not in plan.skipped]  # fmt: skip
    if options.json:
        document = {"room": room_name, "engine": engine.name, "image": options.image, "run_dir": str(root),
                    "gpus": [msgspec.to_builtins(gpu) for gpu in site.gpus], "gpus_resolved": site.resolved,
                    "config": plan.config, "inputs": plan.inputs, "skipped": plan.skipped, "notes": list(plan.notes),
                    "steps": steps}  # fmt: skip
        print(redact(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), secret_values()))
        return
    print(redact("\n".join(_plan_lines(room_name, plan, site, engine, root, steps)), secret_values()))


def _plan_lines(
    room_name: str, plan: Plan, site: Site, engine: Engine, root: Path, steps: list[dict[str, Any]]
) -> list[str]:
    gpus = ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in site.gpus) or "none"
    lines = [f"room {room_name}, engine {engine.name}, {len(steps)} steps into {root}", f"GPUs: {gpus}"]
    lines += [f"note: {note}" for note in plan.notes]
    for step in steps:
        starts = step["starts"]
        command = starts.get("command") or starts.get("argv")
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in step["env"].items())
        lines += [f"\n{step['name']}  ->  {step['folder']}", f"  {env} {shlex.join(command)}".rstrip()]
    lines += [f"\nskipped {name}: {why}" for name, why in plan.skipped.items()]
    return lines


def _with_limits(step: Step, options: Options) -> Step:
    return msgspec.structs.replace(
        step,
        timeout_s=options.timeout_s or step.timeout_s,
        stall_timeout_s=options.stall_timeout_s or step.stall_timeout_s,
    )


def show_error(error: LabError) -> int:
    print(f"lab: {redact(str(error), secret_values())}", file=sys.stderr)
    return error.exit_code


def die_quietly_on_closed_pipe() -> None:
    """`lab runs list | head` is no error."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
