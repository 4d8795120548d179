"""A Run is a folder that anyone can copy, analyse again on a laptop and trust."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

from lab.core import manifest as manifests
from lab.core import run_folder
from lab.core.files import exclusive, holder_pid, make_folder, sha256_of, write_atomic
from lab.core.manifest import MANIFEST as MANIFEST
from lab.core.manifest import FileRecord, Manifest, StepRecord, StepReport
from lab.core.run_folder import home_of as home_of
from lab.core.step import Outcome, Status, Step, check_steps
from lab.errors import BadDataError, BusyError, ConfigError, storage_error

DONE = (Status.ok, Status.skipped)
LOG = "run_output.log"
SETTLED_S = 2.0  # after a step's end, in which its files may still get their last time of change
LOCK = ".lock"
LAB = ".lab"  # the lab that the steps import (lab.core.snapshot)
REPORT = ".lab_report.json"  # in a step's folder: what the step saw (lab.workload.launch)
IMPORTED = ".lab_imported"  # in a step's folder: the hash of the lab that the step imported


class Run:
    """One run on disk. Safe for the driver's threads; a second driver is kept out by `locked()`."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.manifest = manifest
        self._mutex = threading.Lock()

    @classmethod
    def create(cls, root: Path, manifest: Manifest, *, inputs: dict[str, str] | None = None) -> Run:
        """Make the folder, copy the inputs the steps read, and write the manifest of planned steps."""
        check_steps([record.step for record in manifest.steps])
        run_folder.check_place(root)
        make_folder(root)
        run = cls(root, manifest)
        with run.locked():
            if run_folder.is_run(root):  # another process was quicker
                run_folder.check_place(root)
            for name, text in (inputs or {}).items():
                write_atomic(root / name, text)
            run.save()
        return run

    @classmethod
    def open(cls, root: Path) -> Run:
        manifest = manifests.load(root / MANIFEST)
        try:
            check_steps([record.step for record in manifest.steps])
        except ConfigError as error:
            raise BadDataError(
                f"invalid steps in the manifest: {error.problem}", location=root / MANIFEST
            ) from error
        return cls(root, manifest)

    is_run = staticmethod(run_folder.is_run)

    def extend(self, records: Iterable[StepRecord], *, inputs: dict[str, str]) -> None:
        """Add planned steps that this run does not have yet; what it has stays as it is.

        Raises ConfigError when the inputs differ: the results would not be comparable.
        """
        for name, text in inputs.items():
            path = self.root / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                raise ConfigError(
                    f"{name} differs from the one this run was made with",
                    location=path,
                    fix="choose another --output-dir for another configuration",
                )
        names = {record.step.name for record in self.manifest.steps}
        new = [record for record in records if record.step.name not in names]
        check_steps([record.step for record in [*self.manifest.steps, *new]])
        self.manifest.steps += new
        self.save()

    def locked(self) -> AbstractContextManager[None]:
        """Keep other drivers out for as long as this process lives."""
        return exclusive(
            self.root / LOCK,
            busy="another lab process is working on this run",
            fix="wait for it, or stop it with Ctrl-C in its terminal",
        )

    def driver_pid(self) -> int | None:
        """The lab process that works on this run now, if any."""
        return holder_pid(self.root / LOCK)

    def interrupt_driver(self, wait_s: float = 60.0) -> int | None:
        """Stop the driver as Ctrl-C does and wait until it has ended; -> its pid, None if there was none.

        Raises BusyError when it has not ended in time.
        """
        pid = self.driver_pid()
        if pid is None:
            return None
        try:
            os.kill(pid, signal.SIGINT)
        except PermissionError as error:
            raise BusyError(f"the driver (pid {pid}) is another user's", location=self.root) from error
        end = time.monotonic() + wait_s
        while self.driver_pid() == pid:
            if time.monotonic() > end:
                raise BusyError(
                    f"the driver (pid {pid}) has not ended after {wait_s:g} s",
                    location=self.root,
                    fix=f"kill {pid}",
                )
            time.sleep(0.1)
        self.manifest = manifests.load(self.root / MANIFEST)
        return pid

    def open_steps(self) -> list[Step]:
        """Steps that were running when their driver went away."""
        return [record.step for record in self.manifest.steps if record.attempts and record.outcome is None]

    def save(self) -> None:
        manifests.save(self.manifest, self.root / MANIFEST)

    # Paths

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def figures(self) -> Path:
        return self.root / "figures"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def folder(self, step: Step) -> Path:
        return self.root / step.folder

    def log(self, step: Step) -> Path:
        return self.folder(step) / LOG

    # Steps

    def record(self, step: Step) -> StepRecord:
        return next(record for record in self.manifest.steps if record.step.name == step.name)

    def pending(self) -> list[Step]:
        """The steps still to run: never run, not ok, or whose files are gone or changed in size."""
        return [record.step for record in self.manifest.steps if not self._is_done(record)]

    def begin(self, step: Step) -> None:
        """Record on disk that the step runs now; the output of an earlier attempt is kept."""
        with self._mutex:
            record = self.record(step)
            make_folder(self.folder(step))
            self.keep_old_log(step, record.attempts)
            record.attempts += 1
            record.outcome = None
            record.files = {}
            record.lab_sha256 = record.report = None
            for name in (IMPORTED, REPORT):
                (self.folder(step) / name).unlink(missing_ok=True)
            self.save()

    def finish(self, step: Step, outcome: Outcome, report: StepReport | None = None) -> None:
        files = self._files(step)
        with self._mutex:
            record = self.record(step)
            record.outcome = outcome
            record.files = files
            record.lab_sha256 = self.imported(step)
            record.report = report
            record.attempts = max(record.attempts, report.attempt if report else 0)  # a requeue is one more
            self.save()

    def imported(self, step: Step) -> str | None:
        """The hash of the lab that the step says it imported; None if it said nothing."""
        try:
            return (self.folder(step) / IMPORTED).read_text()[:64] or None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def missing(self, step: Step) -> list[str]:
        """The patterns of `step.expects` that match no file with content."""
        return [
            pattern
            for pattern in step.expects
            if not any(path.is_file() and _size(path) for path in self.root.glob(pattern))
        ]

    def changed(self) -> list[str]:
        """Files that are here and not as their step left them: of another size, or written since with
        another SHA-256."""
        return [
            name
            for record in self.manifest.steps
            for name, file in sorted(record.files.items())
            if record.outcome is not None and _is_changed(self.root, name, file, _ended_s(record.outcome))
        ]

    def _is_done(self, record: StepRecord) -> bool:
        if record.outcome is None or record.outcome.status not in DONE:
            return False
        return all(_size(self.root / name) == file.size_bytes for name, file in record.files.items())

    def _files(self, step: Step) -> dict[str, FileRecord]:
        """Hash what lies in the step's folder, leaving out folders of other steps inside it."""
        other_folders = {self.folder(r.step) for r in self.manifest.steps} - {self.folder(step)}
        left_out = other_folders | {self.tables, self.figures, self.root / LAB}
        files = {}
        for parent, folders, names in os.walk(self.folder(step)):
            folders[:] = sorted(name for name in folders if Path(parent, name) not in left_out)
            for path in (Path(parent, name) for name in sorted(names)):
                is_private = path.name.startswith(".") or path.name == MANIFEST or path.is_symlink()
                if path.is_file() and not is_private:
                    name = path.relative_to(self.root).as_posix()
                    files[name] = FileRecord(path.stat().st_size, sha256_of(path))
        return files

    def attempt(self, step: Step) -> int:
        """Which attempt at this step is running."""
        return max(1, self.record(step).attempts)

    def keep_old_log(self, step: Step, attempts: int) -> None:
        """Move the log of an earlier attempt out of the way."""
        log = self.log(step)
        if attempts and log.exists():
            try:
                log.replace(log.with_suffix(f".attempt{attempts}.log"))
            except OSError as error:
                raise storage_error(error, log) from error


def _is_changed(root: Path, name: str, file: FileRecord, ended_s: float) -> bool:
    """Whether the file differs from its record; a deleted file does not count, a path out of the run does."""
    if "\0" in name or not (root / name).resolve().is_relative_to(root.resolve()):
        return True
    path = root / name
    if not path.is_file():
        return False
    status = path.stat()
    return status.st_size != file.size_bytes or (
        status.st_mtime > ended_s + SETTLED_S and sha256_of(path) != file.sha256
    )


def _ended_s(outcome: Outcome) -> float:
    """Unix seconds; 0 where the manifest does not say it as a time."""
    try:
        return datetime.fromisoformat(outcome.started_utc).timestamp() + outcome.seconds
    except (ValueError, OverflowError):
        return 0.0


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
