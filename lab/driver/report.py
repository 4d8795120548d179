"""What a step reported of itself, held against the plan: each difference is a sentence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from lab.core.files import read_or_none
from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, Manifest, Neighbours, StepReport
from lab.core.run import REPORT, Run
from lab.core.step import Step
from lab.core.words import first_few, plural
from lab.gpus.environment import belongs
from lab.gpus.neighbours import sentence
from lab.power.sampling import SUMMARY
from lab.secrets import is_secret, redact, redact_env, secret_values


def read_report(run: Run, step: Step, gpus: Sequence[Gpu]) -> StepReport | None:
    """The step's own report with its neighbours and differences; None if it left none."""
    folder = run.folder(step)
    report = read_or_none(folder / REPORT, StepReport)
    if report is None:
        return None
    with contextlib.suppress(OSError):  # it may hold what only this process can redact
        (folder / REPORT).unlink()
    # The environment of a Slurm job is the node's.
    callers = [] if run.manifest.engine == "slurm" else sorted(filter(belongs, os.environ))
    report = msgspec.structs.replace(
        report,
        env=redact_env(report.env, secret_values()),
        neighbours=(read_or_none(folder / SUMMARY, _Summary) or _Summary()).neighbours,
        not_passed=tuple(name for name in callers if name not in report.env),
    )
    return msgspec.structs.replace(report, differences=tuple(_differences(run.manifest, step, gpus, report)))


class _Summary(msgspec.Struct):
    """What the sampling beside a step says of other processes."""

    neighbours: Neighbours | None = None


def _differences(manifest: Manifest, step: Step, gpus: Sequence[Gpu], report: StepReport) -> list[str]:
    image = image_of(manifest, step)
    texts = []
    if image and image.id and report.image_id and image.id != report.image_id:
        texts.append(f"ran in the image {report.image_id[:19]}, the run names {image.id[:19]}")
    if step.node and step.node != report.node:
        texts.append(f"ran on {report.node}, the plan names {step.node}")
    texts += _other_gpus(gpus, report.gpus)
    # The run's copy of lab stands before a PYTHONPATH of the caller's.
    of_lab = ("LAB_", "PYTHONPATH")
    planned = {n: value for n, value in step.env.items() if not (is_secret(n) or n.startswith(of_lab))}
    for name, value in planned.items():
        if (value_seen := report.env.get(name)) != redact(value, secret_values()):
            texts.append(
                f"had {name}={value_seen if value_seen is not None else '(not set)'}, the plan sets {value}"
            )
    lost = [name for name in manifest.env if belongs(name) and name not in report.env]
    if lost:
        texts.append(f"{plural(len(lost), 'planned variable')} did not reach it: {first_few(lost)}")
    return texts


def _other_gpus(planned: Sequence[Gpu], visible: Sequence[Gpu] | None) -> list[str]:
    if not planned or any(gpu.uuid.startswith("<") for gpu in planned):
        return []
    if visible is None:
        return ["could not say which GPUs it had"]
    texts = []
    for gpu in planned:
        match = next((s for s in visible if s.uuid and gpu.uuid.startswith(s.uuid)), None)
        if match is None:
            texts.append(f"did not see GPU {gpu.number} ({gpu.uuid}), which it was given")
        elif match.driver and gpu.driver and match.driver != gpu.driver:
            texts.append(f"saw driver {match.driver} on GPU {gpu.number}, the plan names {gpu.driver}")
    return texts


def image_of(manifest: Manifest, step: Step) -> ImageRecord | None:
    """The image that the run names for this step; its content by the first step that ran in it."""
    images = [manifest.image] if step.image is None else list(manifest.images)
    record = next((r for r in images if r and step.image in (None, r.name)), None)
    if record is None or record.id:
        return record
    siblings = (r for r in manifest.steps if r.step.image == step.image and r.step.name != step.name)
    first_id = next((r.report.image_id for r in siblings if r.report and r.report.image_id), None)
    return msgspec.structs.replace(record, id=first_id)


def seen_env(manifest: Manifest) -> dict[str, str]:
    """The variables that all steps had alike, without their room's own; before any ran, the plan's."""
    reports = [record.report for record in manifest.steps if record.report]
    of_rooms = {name for record in manifest.steps for name in record.step.env} - set(manifest.env)
    if not reports:
        return manifest.env
    return {
        name: value
        for name, value in reports[0].env.items()
        if name not in of_rooms and all(report.env.get(name) == value for report in reports)
    }


def busy_sentences(manifest: Manifest) -> list[str]:
    """For a verdict: whose timings were taken beside other processes on the same GPU."""
    crowded = {
        record.step.name: [*around.at_start, *around.during, *around.at_end]
        for record in manifest.steps
        if record.report and (around := record.report.neighbours) and record.outcome
    }
    crowded = {name: processes for name, processes in crowded.items() if processes}
    if not crowded:
        return []
    name, processes = next(iter(crowded.items()))
    worst = max(processes, key=lambda process: process.mem_bytes or 0)
    number = f"{len(crowded)} of {plural(len(manifest.steps), 'step')}"
    verb = "shares" if len(crowded) == 1 else "share"
    return [
        f"{number} {verb} a GPU with other processes, so timings are not of a free GPU: "
        f"{sentence(worst, manifest.gpus)} (step {name})"
    ]
