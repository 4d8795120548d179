"""The engine that runs nothing: each step's output, files and outcome are those of a recorded run.

A manifest made this way says `replayed`. What was recorded is checked by its hashes before it is believed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from lab.core.files import make_folder, sha256_of
from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, Kind, Lab, StepRecord
from lab.core.options import Options
from lab.core.plan import Site
from lab.core.run import LOG, Run
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.engines.base import Engine
from lab.errors import BadDataError, EngineError, MissingError, UsageError, writing


class RecordedEngine(Engine):
    """Steps are found by name; a step that the recording lacks, or that asks for something else, fails."""

    name = "recorded"
    kind = Kind.replayed
    holds_gpus = False
    runs_here = False

    def __init__(self, recording: Run) -> None:
        self.recording = recording

    @classmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        if options.recording is None:
            raise UsageError("the recorded engine needs a run to play back", fix="--recording RUN")
        if options.image is not None:
            raise UsageError("the recorded engine runs nothing, also no image", fix="drop --image")
        if options.gpus != "all":
            raise UsageError(
                "the recorded engine uses no GPU: a run has those of its recording", fix="drop --gpus"
            )
        return cls._of(options.recording)

    @classmethod
    def restore(cls, run: Run, options: Options) -> tuple[Site, Engine]:
        source = (run.manifest.container or {}).get("recording")
        if source is None:
            raise BadDataError("the manifest names no recording", where=run.root)
        site, engine = cls._of(options.recording or Path(source))
        if engine.origin() != {**(run.manifest.container or {}), "recording": engine.origin()["recording"]}:
            raise UsageError(
                "this is not the recording that the run was played back from",
                where=engine.recording.root,
                fix=f"start a new run; the other recording was {source}",
            )
        run.manifest.container = engine.origin()  # it may have been moved
        return site, engine

    @classmethod
    def _of(cls, folder: Path) -> tuple[Site, RecordedEngine]:
        if not Run.is_run(folder):
            raise MissingError(
                "not the folder of a run",
                where=folder,
                fix="see `lab runs list`; if the recording was moved: --engine recorded --recording RUN",
            )
        recording = Run.open(folder)
        gpus = recording.manifest.gpus
        vendor = gpus[0].vendor if gpus else "none"
        return Site(vendor=vendor, gpus=gpus), cls(recording)

    def run(
        self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: Callable[[str], None], stop: Stop
    ) -> Outcome:
        record = self._record(run, step)
        if stop.is_set():
            return Outcome(status=Status.interrupted, reason="stopped by the user")
        _copy(self.recording, record, run, step)
        log = self.recording.log(record.step)
        if log.exists():
            shutil.copyfile(log, run.log(step))
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                on_line(line)
        assert record.outcome is not None  # _record saw to it
        if record.outcome.ok and (missing := run.missing(step)):
            raise EngineError(f"the recording left no {', '.join(missing)}", where=self.recording.root)
        return record.outcome

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        return {"argv": list(step.argv), "cwd": run_dir, "played back from": str(self.recording.root)}

    def provenance(
        self, run_dir: str, gpus: Sequence[Gpu]
    ) -> tuple[ImageRecord | None, dict[str, Any] | None]:
        return self.recording.manifest.image, self.origin()

    def lab_used(self, ours: Lab) -> None:
        return None

    def origin(self) -> dict[str, Any]:
        """Which run is played back: where it lies, and what tells it from others."""
        recorded = self.recording.manifest
        return {
            "recording": str(self.recording.root.resolve()),
            "created_utc": recorded.created_utc,
            "host": recorded.host,
            "lab": msgspec.to_builtins(recorded.lab),
        }

    def _record(self, run: Run, step: Step) -> StepRecord:
        """The recorded step of this name, if it measured the same. Raises EngineError otherwise."""
        where = self.recording.root
        records = {record.step.name: record for record in self.recording.manifest.steps}
        record = records.get(step.name)
        if record is None or record.outcome is None:
            known = ", ".join(name for name, one in records.items() if one.outcome) or "none"
            raise EngineError(
                f"the recording has no finished step {step.name!r}", where=where, fix=f"it has: {known}"
            )
        planned = run.record(step).fingerprint  # with the image and the input files that the step reads
        if record.step.fingerprint() != step.fingerprint() or record.fingerprint != planned:
            raise EngineError(
                f"the recorded step {step.name!r} ran another command, environment, image or configuration",
                where=where,
                fix="ask for the configuration that was recorded: `lab runs show` prints its command",
            )
        return record


def _copy(recording: Run, record: StepRecord, run: Run, step: Step) -> None:
    """Copy the step's files. Raises EngineError for one that is not what was hashed when it was recorded."""
    for name, known in record.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.is_relative_to(step.folder):
            raise EngineError(
                f"{name} of step {step.name!r} is not in the step's folder", where=recording.root
            )
        source, target = recording.root / name, run.root / name
        if not source.is_file() or sha256_of(source) != known.sha256:
            raise EngineError(
                f"{name} of step {step.name!r} is missing or not what was recorded", where=recording.root
            )
        if source.parent == recording.folder(step) and source.name.startswith(LOG.partition(".")[0]):
            continue  # logs go through on_line, and an earlier attempt's are not this run's
        make_folder(target.parent)
        with writing(target):
            shutil.copyfile(source, target)
