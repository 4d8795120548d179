"""The engine that runs nothing: each step's output, files and outcome are those of a run made before.

A double for tests of the driver, so that they need no process. Register it as `recorded`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from lab.core.plan import Site
from lab.core.run import LOG, Run
from lab.core.step import Outcome, Status
from lab.engines.base import Engine
from lab.errors import EngineError


class RecordedEngine(Engine):
    """Steps are found by name; one that the recording lacks fails."""

    name = "recorded"
    runs_here = False
    source: ClassVar[Path]  # the run that `prepare` plays back

    def __init__(self, recording: Run) -> None:
        self.recording = recording

    @classmethod
    def prepare(cls, options):
        return Site(vendor="none"), cls(Run.open(cls.source))

    @classmethod
    def restore(cls, run, options):
        return Site(vendor="none"), cls(Run.open(Path(run.manifest.container["recording"])))

    def run(self, run, step, gpus, *, on_line, stop) -> Outcome:
        outcomes = {record.step.name: record.outcome for record in self.recording.manifest.steps}
        outcome = outcomes.get(step.name)
        if outcome is None:
            raise EngineError(f"the recording has no finished step {step.name!r}")
        if stop.is_set():
            return Outcome(status=Status.interrupted, reason="stopped by the user")
        for path in self.recording.folder(step).iterdir():
            if path.name != LOG:
                shutil.copyfile(path, run.folder(step) / path.name)
        log = self.recording.log(step).read_text()
        run.log(step).write_text(log)
        for line in log.splitlines():
            on_line(line)
        return outcome

    def preview(self, step, gpus, *, run_dir):
        return {"argv": list(step.argv), "cwd": run_dir, "played back from": str(self.recording.root)}

    def provenance(self, run_dir, gpus):
        return None, {"recording": str(self.recording.root)}

    def lab_used(self, ours):
        return None
