"""The engine that needs nothing: a step is a process tree on this machine, in this environment."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from lab.core.gpu import Gpu
from lab.core.options import Options
from lab.core.plan import Site
from lab.core.run import Run, utc_now
from lab.core.step import Outcome, Step
from lab.core.stop import Stop, reason_to_stop
from lab.engines.base import Engine
from lab.engines.lines import LineSplitter
from lab.engines.sink import Sink, last_words
from lab.engines.verdict import judge
from lab.errors import EngineError, UsageError, storage_error
from lab.gpus.discover import discover, select, visible_env
from lab.secrets import redact_env, secret_values

GUARD = Path(__file__).with_name("guard.py")
GRACE_S = 10.0
POLL_S = 0.1
STARTED_BY_THE_STEP = ("nixnan",)  # its own command finds the tool, checks it and puts it around the workload


class LocalEngine(Engine):
    """Runs steps as process trees under a guard, so that none of them outlives this process: nothing is left to attach to."""

    name = "local"

    def __init__(self, *, vendor: str = "none", grace_s: float = GRACE_S) -> None:
        self.vendor = vendor
        self.grace_s = grace_s

    @classmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        if options.image is not None:
            raise UsageError(
                "the local engine runs in this environment, not in an image",
                fix="drop --image or --engine local",
            )
        chosen = tuple(select(discover(), options.gpus))
        vendor = chosen[0].vendor if chosen else "none"
        return Site(vendor=vendor, gpus=chosen), cls(vendor=vendor)

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        return {
            "argv": self._argv(step),
            "cwd": run_dir,
            "env": redact_env(self._env(step, gpus), secret_values()),
        }

    def run(
        self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: Callable[[str], None], stop: Stop
    ) -> Outcome:
        from_image = [tool for tool in step.tools if tool not in STARTED_BY_THE_STEP]
        if from_image:
            raise EngineError(
                f"step {step.name!r} needs the tool {from_image[0]!r}, which lives in an image",
                fix="name the image: lab run --image cuda ...",
            )
        started, began = utc_now(), time.monotonic()
        kills_before = _oom_kills()
        sink = Sink(run.log(step), on_line)
        with self._process(run, step, gpus) as process:
            pump = _Pump(process.output, sink)
            stopped_by = self._wait(step, process, sink, stop)
            end = process.end()
            pump.join()
        if sink.error is not None:
            raise storage_error(sink.error, run.log(step)) from sink.error
        if "start_error" in end:
            raise EngineError(
                f"cannot start step {step.name!r}: {end['start_error']}", where=run.folder(step)
            )
        if "exit_code" not in end:
            raise EngineError(
                f"the guard of step {step.name!r} was killed, and the step with it", where=run.log(step)
            )
        code = int(end["exit_code"])
        return judge(
            exit_code=code,
            seconds=time.monotonic() - began,
            started_utc=started,
            stopped_by=stopped_by,
            limit_s=step.stall_timeout_s if stopped_by == "stall" else step.timeout_s,
            tail=[*sink.tail, *(last_words(run, step) if code else [])],
            oom_kills=_oom_kills() - kills_before,
            missing=run.missing(step) if code == 0 else (),
            peak_mem_bytes=end.get("peak_mem_bytes"),
        )

    def _argv(self, step: Step) -> list[str]:
        return [sys.executable if step.argv[0] == "python" else step.argv[0], *step.argv[1:]]

    def _env(self, step: Step, gpus: Sequence[Gpu]) -> dict[str, str]:
        """What the step gets on top of this process's environment."""
        shown = visible_env(gpus, self.vendor) if self.vendor != "none" else {}
        return {"PYTHONUNBUFFERED": "1", **shown, **step.env}

    @contextlib.contextmanager
    def _process(self, run: Run, step: Step, gpus: Sequence[Gpu]):  # type: ignore[no-untyped-def]
        ours, theirs = socket.socketpair()
        lock = run.log(step).with_name(f".{run.log(step).stem}.running").absolute()
        command = [
            sys.executable,
            "-I",
            "-S",
            str(GUARD),
            str(theirs.fileno()),
            str(self.grace_s),
            str(lock),
            "--",
            *self._argv(step),
        ]
        try:
            child = subprocess.Popen(
                command,
                cwd=run.root,
                env={**os.environ, **self._env(step, gpus)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(
                f"cannot start step {step.name!r}: {error.strerror}", where=error.filename
            ) from error
        finally:
            theirs.close()
        with child, ours:
            yield _Process(child, ours)

    def _wait(self, step: Step, process: _Process, sink: Sink, stop: Stop) -> str | None:
        """Until the step has ended; -> who stopped it, if lab did."""
        began = time.monotonic()
        stopped_by: str | None = None
        while process.running():
            now = time.monotonic()
            if stopped_by is None:
                stopped_by = reason_to_stop(
                    step,
                    stop,
                    ran_s=now - began,
                    silent_s=now - sink.last_line,
                    disk_full=sink.error is not None,
                )
                if stopped_by:
                    process.ask_to_stop()
            elif stop.now:
                process.kill()
            time.sleep(POLL_S if now - began > 1 else POLL_S / 10)
        return stopped_by


class _Process:
    """The guard of one step, and the line to it."""

    def __init__(self, child: subprocess.Popen[bytes], wire: socket.socket) -> None:
        self._child, self._wire = child, wire
        assert child.stdout is not None
        self.output: BinaryIO = child.stdout  # type: ignore[assignment]

    def running(self) -> bool:
        return self._child.poll() is None

    def ask_to_stop(self) -> None:
        self._say(b"s")

    def kill(self) -> None:
        self._say(b"k")

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just ended by itself
            self._wire.sendall(word)

    def end(self) -> dict[str, int | str | bool]:
        """What the guard reports; {} if it was killed itself."""
        self._wire.setblocking(False)
        try:
            line = self._wire.recv(65536).splitlines()
        except (BlockingIOError, ConnectionResetError):
            line = []
        return dict(json.loads(line[0])) if line else {}


class _Pump(threading.Thread):
    """Carries a step's output from its pipe to the sink; never stops reading, because a full pipe would stop the
    step."""

    def __init__(self, source: BinaryIO, sink: Sink) -> None:
        super().__init__(daemon=True, name="lab-pump")
        self._source, self._sink = source, sink
        self.start()

    def run(self) -> None:
        splitter = LineSplitter()
        with self._sink as sink:
            while chunk := self._source.read1(65536):  # type: ignore[attr-defined]
                sink.take(splitter.feed(chunk))
            sink.take(splitter.flush())


def _oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck on this host; 0 where it does not tell."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
