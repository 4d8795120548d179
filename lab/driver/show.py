"""What a person or a machine reads: the plan before a run, and the steps that did not succeed after it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lab.core.options import Options
from lab.core.plan import Findings, Plan, Site
from lab.core.provenance import lab_with_content
from lab.core.run import DONE, Run
from lab.core.words import plural, printable
from lab.driver.comparable import described
from lab.engines.base import Engine
from lab.errors import LabError, StepFailed
from lab.secrets import redact, redact_env, secret_values
from lab.terminal.findings import raise_for_findings, show_findings


def show_result(run: Run, findings: Findings | None, options: Options) -> None:
    """Show the findings. Raises an error unless all that was asked for is there."""
    show_findings(run.root, findings, options)
    raise_for_steps(run)
    raise_for_findings(findings, run.root)


def raise_for_steps(run: Run) -> None:
    """Raises StepFailed, with the end of each log, if a step did not succeed."""
    bad = [r for r in run.manifest.steps if not r.outcome or r.outcome.status not in DONE]
    if not bad:
        return
    lines = []
    for record in bad:
        outcome = record.outcome
        state = f"{outcome.status.value}: {outcome.reason}" if outcome else "did not run"
        lines.append(f"  {record.step.name}: {state}")
        lines += [f"      | {line}" for line in (outcome.tail[-12:] if outcome else ())]
    raise StepFailed(
        f"{len(bad)} of {plural(len(run.manifest.steps), 'step')} did not succeed:\n" + "\n".join(lines),
        location=run.root,
        fix=f"try them again with: lab run --resume {shlex.quote(str(run.root))}",
    )


def show_plan(
    name: str,
    plan: Plan,
    site: Site,
    engine: Engine,
    root: Path,
    options: Options,
    preview: Callable[..., dict[str, Any]] | None = None,
) -> None:
    """Print exactly what would run, without secrets.

    preview: what the engine would start for a step, in place of its `preview`.
    """
    title = name if preview else f"room {name}"
    preview, identity = preview or engine.preview, lab_with_content()
    steps = [
        {
            **msgspec.to_builtins(step),
            "env": redact_env(step.env, secret_values()),
            "starts": preview(step, site.gpus[: step.num_gpus], run_dir=str(root.absolute())),
        }
        for step in plan.steps
        if step.name not in plan.skipped
    ]
    document = {
        "room": name,
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
    gpus = ", ".join(f"{gpu.number} {gpu.uuid}" for gpu in site.gpus) or "none"
    if site.gpus and not site.resolved:
        gpus += " (not on this machine: architecture and driver are not checked)"
    lines = [
        f"{title}, engine {engine.name}, {plural(len(steps), 'step')} into {root}",
        f"GPUs: {gpus}",
        f"lab: {described(identity)}; every step imports this one",
        *(f"note: {note}" for note in plan.notes),
    ]
    for step in steps:
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in step["env"].items())
        image = f"  in the image {step['image']}" if step["image"] else ""
        lines += [f"\n{step['name']}  ->  {step['folder']}{image}"]
        argv = step["starts"].get("command") or step["starts"]["argv"]
        lines += [f"  {env} {shlex.join(argv)}".rstrip()]
    lines += [f"\nskipped {name}: {reason}" for name, reason in plan.skipped.items()]
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    print(redact(text if options.json else "\n".join(lines), secret_values()))


def show_error(error: LabError) -> int:
    """Print an error, without secrets and terminal commands; -> its exit code."""
    print(printable(f"lab: {redact(str(error), secret_values())}"), file=sys.stderr, flush=True)
    return error.exit_code
