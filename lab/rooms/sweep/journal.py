"""What a run planned, and the sweep's log and summary in the words of the original sweep (docs/sweep.md)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from lab.core.files import write_atomic
from lab.core.manifest import StepRecord
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from lab.errors import writing
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import Planned

WORDS = {Status.ok: "SUCCESS", Status.skipped: "SKIPPED", None: "UNKNOWN"}
_ROW = "%-10s %-15s %-10s %-15s"
STATUS = {Status.ok: "ok", Status.skipped: "ok"}


class Journal:
    """A Watcher that keeps nccl_thread_sweep_{TS}.log and the summary beside it up to date."""

    def __init__(self, run: Run) -> None:
        self._run = run
        stamp = datetime.fromisoformat(run.manifest.created_utc).astimezone().strftime("%Y%m%d_%H%M%S")
        self.log = run.root / f"nccl_thread_sweep_{stamp}.log"
        self.summary = run.root / f"nccl_thread_sweep_summary_{stamp}.txt"
        self._open()

    def begin(self, step: Step) -> None:
        t, c = step.labels["threads"], step.labels["channels"]
        self._say(f"Running with RCCL_THREADS_PER_BLOCK={t}, NCCL_MAX_NCHANNELS={c}{_how(step)}")

    def line(self, step: Step, line: str) -> None:
        """The step's own log holds its lines."""

    def end(self, step: Step, outcome: Outcome) -> None:
        setting = f"THREADS={step.labels['threads']}, CHANNELS={step.labels['channels']}{_how(step)}"
        duration = f"duration: {outcome.seconds:.0f}s"
        if outcome.ok:
            self._say(f"✓ Completed run with {setting} ({duration})")
        else:
            self._say(f"✗ Failed run with {setting} (exit code: {outcome.exit_code}, {duration})")
        write_atomic(self.summary, summary_text(self._run.manifest.steps, datetime.now()))
        if all(record.outcome for record in self._run.manifest.steps):
            self._say(f"Summary saved to: {self.summary.name}")
            self._say("All runs completed!")

    def _open(self) -> None:
        config = self._run.manifest.config
        self._say(f"Config file: {config.get('config') or 'chosen by the hardware'}")
        self._say(f"Testing threads per block: {_words(config.get('threads', ()))}")
        self._say(f"Testing channels: {_words(config.get('channels', ()))}")
        for name in ("algorithms", "protocols"):
            if any(words := config.get(name, ())):
                self._say(f"Testing {name}: {_words(word or 'auto' for word in words)}")
        self._say(f"Results directory: {self._run.root}")

    def _say(self, message: str) -> None:
        with writing(self.log), self.log.open("a", encoding="utf-8") as file:
            file.write(f"[{datetime.now():%Y-%m-%d %H:%M:%S}] {message}\n")


def summary_text(records: Iterable[StepRecord], written_at: datetime) -> str:
    """The summary: one row per run, a blank line after each group of threads, then the folders."""
    ordered = sorted(records, key=lambda record: _key(record.step))
    has_how = any(_how(record.step) for record in ordered)
    lines = [
        "NCCL Channel & Thread Sweep Summary",
        f"Generated: {written_at:%a %b %d %H:%M:%S %Y}",
        "",
        (_ROW % ("THREADS", "CHANNELS", "STATUS", "DURATION(s)")) + ("ALGO PROTO" if has_how else ""),
        "-" * 52,
    ]
    for index, record in enumerate(ordered):
        labels = record.step.labels
        cells = (labels["threads"], labels["channels"], _word(record.outcome), _seconds(record.outcome))
        words = [str(labels.get(name) or "auto") for name in ("algorithm", "protocol")] if has_how else []
        lines.append((_ROW % cells + " ".join(words)).rstrip())
        following = ordered[index + 1].step.labels["threads"] if index + 1 < len(ordered) else None
        if following != labels["threads"]:
            lines.append("")
    return "\n".join([*lines, "Output directories:", *(f"  {Path(r.step.folder)}" for r in ordered), ""])


def _key(step: Step) -> Key:
    labels = step.labels
    threads, channels, repeat = (int(labels[name]) for name in ("threads", "channels", "repeat"))
    algorithm, protocol = (str(labels.get(name, "")) for name in ("algorithm", "protocol"))
    return Key(threads, channels, algorithm, protocol, repeat)


def _how(step: Step) -> str:
    """`, NCCL_ALGO=ring, NCCL_PROTO=ll`, as far as they are requested."""
    names = {"algorithm": "NCCL_ALGO", "protocol": "NCCL_PROTO"}
    return "".join(f", {name}={step.labels[key]}" for key, name in names.items() if key in step.labels)


def _word(outcome: Outcome | None) -> str:
    return WORDS.get(outcome.status if outcome else None, "FAILED")


def _seconds(outcome: Outcome | None) -> str:
    return f"{outcome.seconds:.0f}" if outcome and outcome.status is not Status.skipped else "N/A"


def _words(values: Iterable[object]) -> str:
    return " ".join(str(value) for value in values)


def expected_runs(run: Run | None) -> Planned:
    """Every planned step, so that one that failed or never ran is a row of the result too."""
    planned = {}
    for record in run.manifest.steps if run else ():
        outcome = record.outcome
        status = STATUS.get(outcome.status, "failed") if outcome else "missing"
        planned[_key(record.step)] = (status, (outcome.reason or "") if outcome else "did not run")
    return planned
