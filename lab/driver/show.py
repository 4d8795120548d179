"""What a person or a machine reads: the plan before a run, and the steps that did not succeed after it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from lab.core.manifest import Lab
from lab.core.options import Options
from lab.core.plan import Plan, Site
from lab.core.provenance import lab_with_content
from lab.core.run import Run
from lab.core.step import Status
from lab.core.words import plural, printable
from lab.driver.which_lab import described
from lab.engines.base import Engine
from lab.errors import LabError, StepFailed
from lab.secrets import redact, redact_env, secret_values


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
        f"{len(bad)} of {plural(len(run.manifest.steps), 'step')} did not succeed:\n" + "\n".join(lines),
        location=run.root,
        fix=f"try them again with: lab run --resume {shlex.quote(str(run.root))}",
    )


def show_plan(room_name: str, plan: Plan, site: Site, engine: Engine, root: Path, options: Options) -> None:
    """Print exactly what would run."""
    identity = lab_with_content()
    steps = [
        {
            **msgspec.to_builtins(step),
            "env": redact_env(step.env, secret_values()),
            "starts": engine.preview(step, site.gpus[: step.num_gpus], run_dir=str(root.absolute())),
        }
        for step in plan.steps
        if step.name not in plan.skipped
    ]
    if options.json:
        document = {
            "room": room_name,
            "engine": engine.name,
            "image": options.image,
            "lab": msgspec.to_builtins(identity),
            "run_dir": str(root),
            "gpus": [msgspec.to_builtins(gpu) for gpu in site.gpus],
            "gpus_resolved": site.resolved,
            "config": plan.config,
            "inputs": plan.inputs,
            "skipped": plan.skipped,
            "notes": list(plan.notes),
            "steps": steps,
        }
        print(redact(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), secret_values()))
        return
    lines = _plan_lines(room_name, plan, site, engine, root, steps, identity)
    print(redact("\n".join(lines), secret_values()))


def _plan_lines(
    room_name: str,
    plan: Plan,
    site: Site,
    engine: Engine,
    root: Path,
    steps: list[dict[str, Any]],
    identity: Lab,
) -> list[str]:
    gpus = ", ".join(f"{gpu.number} {gpu.uuid}" for gpu in site.gpus) or "none"
    gpus += (
        ""
        if site.resolved or not site.gpus
        else " (not on this machine: architecture and driver are not checked)"
    )
    count = plural(len(steps), "step")
    lines = [f"room {room_name}, engine {engine.name}, {count} into {root}", f"GPUs: {gpus}"]
    lines += [f"lab: {described(identity)}; every step imports this one", *(f"note: {n}" for n in plan.notes)]
    for step in steps:
        starts = step["starts"]
        command = starts.get("command") or starts.get("argv")
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in step["env"].items())
        image = f"  in the image {step['image']}" if step["image"] else ""
        lines += [f"\n{step['name']}  ->  {step['folder']}{image}", f"  {env} {shlex.join(command)}".rstrip()]
    lines += [f"\nskipped {name}: {why}" for name, why in plan.skipped.items()]
    return lines


def show_error(error: LabError) -> int:
    print(printable(f"lab: {redact(str(error), secret_values())}"), file=sys.stderr)
    return error.exit_code
