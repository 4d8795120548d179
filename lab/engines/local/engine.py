"""The engine that needs nothing: a step is a process tree on this machine, in this environment."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lab.core.gpu import PROMISE, Gpu
from lab.core.options import Options
from lab.core.plan import Site
from lab.core.run import LAB, Run
from lab.core.snapshot import launched, report_env, step_env
from lab.core.step import Outcome, Step, utc_now
from lab.core.stop import Stop
from lab.engines.base import Engine, OnLine
from lab.engines.local.process import GuardedProcess, OutputReader, guarded
from lab.engines.output import LogWriter
from lab.engines.verdict import Ending, oom_kills, oom_kills_since, outcome_of
from lab.errors import EngineError, UsageError
from lab.gpus.discover import Found, look
from lab.gpus.neighbours import notes_on
from lab.gpus.nvidia import cards_without_driver
from lab.gpus.selection import MASKS, parse_spec, select, visible_env
from lab.hub import OFFLINE, offline_settings
from lab.secrets import TOKEN_VARIABLES, redact_env, secret_values

GRACE_S = 10.0
ONLINE = dict.fromkeys(OFFLINE, "0")
POLL_S = 0.1
STARTED_BY_THE_STEP = ("nixnan",)  # its own command finds the tool, checks it and wraps the workload in it


class LocalEngine(Engine):
    """Runs steps as process trees under a guard. None outlives this process, so none is left to attach to."""

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
        if options.mounts or options.vendor:
            option = "--mount" if options.mounts else "--vendor"
            raise UsageError(
                f"{option} is about containers, and steps run in this environment", fix="add --image"
            )
        # Without GPUs nothing is looked for: a broken driver or a stale mask then does not matter.
        discovered = look() if parse_spec(options.gpus) != [] else Found([])
        chosen = tuple(select(discovered.gpus, options.gpus, discovered.notes))
        vendor = chosen[0].vendor if chosen else "none"
        notes = (*discovered.notes, *notes_on(chosen))
        return Site(vendor=vendor, gpus=chosen, notes=notes), cls(vendor=vendor)

    def notes(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        cards = None if gpus else cards_without_driver(os.environ)
        return (f"{cards}: steps run on the CPU",) if cards else ()

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        env = redact_env(self._env(step, gpus), secret_values())
        return {"argv": self._argv(step), "cwd": run_dir, "env": env}

    def preview_fetch(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        online = msgspec.structs.replace(step, env={**step.env, **ONLINE})
        return self.preview(online, gpus, run_dir=run_dir)

    def run(self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: OnLine, stop: Stop) -> Outcome:
        return self._execute(run, step, self._env(step, gpus), on_line=on_line, stop=stop)

    def fetch(self, run: Run, step: Step, *, stdin: bytes, on_line: OnLine, stop: Stop) -> Outcome:
        env = {**self._env(step, ()), **ONLINE}
        return self._execute(run, step, env, stdin=stdin, on_line=on_line, stop=stop)

    def _execute(
        self,
        run: Run,
        step: Step,
        env: Mapping[str, str],
        *,
        stdin: bytes = b"",
        on_line: OnLine,
        stop: Stop,
    ) -> Outcome:
        _refuse_image_tools(step)
        started_utc, began, kills_before = utc_now(), time.monotonic(), oom_kills()
        log = LogWriter(run.log(step), on_line)
        with guarded(
            self._launched(run, step),
            name=step.name,
            cwd=run.root,
            env={**_inherited(os.environ), **env, **self._lab_env(run, step)},
            stdin=stdin,
            lock=run.log(step).with_name(f".{run.log(step).stem}.running").absolute(),
            grace_s=self.grace_s,
        ) as process:
            reader = OutputReader(process.output, log)
            stopped_by = _wait(step, process, log, stop)
            report = process.report()
            reader.join()
        ending = Ending(
            exit_code=_exit_code(report, run, step),
            seconds=time.monotonic() - began,
            started_utc=started_utc,
            stopped_by=stopped_by,
            oom_kills=oom_kills_since(kills_before),
            peak_mem_bytes=report.get("peak_mem_bytes"),
        )
        return outcome_of(run, step, log, ending)

    def _argv(self, step: Step) -> list[str]:
        return [sys.executable if step.argv[0] == "python" else step.argv[0], *step.argv[1:]]

    def _launched(self, run: Run, step: Step) -> list[str]:
        """The command behind the report of what the step sees; one that cannot start says so itself."""
        argv = self._argv(step)
        if shutil.which(argv[0]) is None or not (run.root / LAB).is_dir():
            return argv
        return [*launched(run, step, str(run.root.absolute()), sys.executable, argv)]

    def _lab_env(self, run: Run, step: Step) -> dict[str, str]:
        """What makes the step import the run's own copy of lab, wherever another is installed."""
        inherited = step.env.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")
        root = str(run.root.absolute())
        return {**step_env(run, step, root, inherited), **report_env(run, step)}

    def _env(self, step: Step, gpus: Sequence[Gpu]) -> dict[str, str]:
        """What the step gets on top of this process's environment."""
        # A wrapped step's program (apptainer, srun) has no vendor: the container's variables name the GPUs.
        shown = visible_env(gpus, self.vendor) if self.vendor != "none" or not gpus else {}
        promised = {PROMISE: str(len(gpus))}
        return {"PYTHONUNBUFFERED": "1", **offline_settings(os.environ), **promised, **shown, **step.env}


def _inherited(env: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without the Hub's token and without masks of GPUs.

    Only a fetch gets the token, on its standard input. A mask inherited beside a step's own would hide GPUs.
    """
    return {name: value for name, value in env.items() if name not in (*TOKEN_VARIABLES, *MASKS)}


def _refuse_image_tools(step: Step) -> None:
    from_image = [tool for tool in step.tools if tool not in STARTED_BY_THE_STEP]
    if from_image:
        raise EngineError(
            f"step {step.name!r} needs the tool {from_image[0]!r}, which only an image provides",
            fix="name the image: lab run --image cuda ...",
        )


def _wait(step: Step, process: GuardedProcess, log: LogWriter, stop: Stop) -> str | None:
    """Until the step has ended; -> who stopped it, if lab did."""
    began = time.monotonic()
    stopped_by: str | None = None
    while process.running():
        ran_s = time.monotonic() - began
        if stopped_by is None:
            stopped_by = log.reason_to_stop(step, stop, ran_s)
            if stopped_by:
                process.ask_to_stop()
        elif stop.at_once:
            process.kill()
        time.sleep(POLL_S if ran_s > 1 else POLL_S / 10)
    return stopped_by


def _exit_code(report: dict[str, Any], run: Run, step: Step) -> int:
    if "start_error" in report:
        raise EngineError(
            f"cannot start step {step.name!r}: {report['start_error']}", location=run.folder(step)
        )
    if "exit_code" not in report:
        raise EngineError(
            f"the guard process of step {step.name!r} was killed, and the step with it",
            location=run.log(step),
        )
    return int(report["exit_code"])
