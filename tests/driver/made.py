"""A run made in advance, for the recorded engine to play back."""

from __future__ import annotations

from pathlib import Path

from lab.core.options import Options
from lab.core.plan import Experiment, Plan, Site
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from tests.core.test_manifest import a_manifest
from tests.engines.recorded_engine import RecordedEngine

OK = Outcome(status=Status.ok, exit_code=0, seconds=1.5, started_utc="2026-01-01T00:00:00+00:00")
KILLED = Outcome(
    status=Status.oom, reason="out of GPU memory", exit_code=1, seconds=2.0, tail=("CUDA out of memory",)
)


def a_step(name: str, **more) -> Step:
    return Step(name=name, argv=("python", "-m", "work", name), folder=f"steps/{name}", **more)


def recording(folder: Path, outcomes: dict[str, Outcome], **inputs: str) -> Run:
    """A finished run with one file and three lines of output per step, and what its steps read."""
    manifest = a_manifest(*(a_step(name) for name in outcomes))
    manifest.room = "semicrf"
    for record in manifest.steps:
        record.fingerprint = record.step.fingerprint("", *inputs.values())
    run = Run.create(folder, manifest)
    for name, outcome in outcomes.items():
        step = a_step(name)
        run.begin(step)
        (run.folder(step) / "result.json").write_text(f'{{"name": "{name}"}}')
        run.log(step).write_text(f"one\ntwo\n{name} done\n")
        run.finish(step, outcome)
    return run


def experiment(source: Run, out: Path, *names: str, after=None, inputs=None, **flags) -> Experiment:
    """The steps `names`, all of them played back from `source`; not analysed unless asked."""
    steps = tuple(a_step(name) for name in names)

    def make_plan(site: Site, root: Path) -> Plan:
        return Plan(steps=steps, notes=("a note",), inputs=inputs or {})

    RecordedEngine.source = source.root
    options = Options(engine="recorded", output_dir=out, **{"analysis": "none", **flags})
    return Experiment("semicrf", make_plan, options, after)
