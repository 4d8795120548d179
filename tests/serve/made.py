"""Runs made for tests and benches: real manifests and findings, without anything that ran."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from lab.core import findings, manifest
from lab.core.files import write_atomic
from lab.core.findings import FINDINGS, Evidence, Finding, Findings
from lab.core.gpu import Gpu
from lab.core.manifest import FileRecord, ImageRecord, Lab, Manifest, StepRecord
from lab.core.run import MANIFEST
from lab.core.step import Outcome, Status, Step
from tests.tracegen import TraceWriter

DAY = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
PAGE = b"<!doctype html><title>report</title><p>A report.</p><a href='tables/configs.csv'>data</a>"


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def write_run(
    root: Path,
    name: str,
    *,
    room: str = "sweep",
    at: datetime = DAY,
    step_ms: float = 10.0,
    statuses: tuple[str | None, ...] = ("ok", "ok"),
    verdict: str | None = "ok",
    lead: str = "28 channels are fastest.",
    versions: dict[str, str] | None = None,
    config: dict | None = None,
    driver: str = "580.1",
    table: str = "configs",
    cells: dict[str, object] | None = None,
    host: str = "node1",
    lacking: tuple[str, ...] = (),
    figures: Sequence[tuple[str, str, float | None, str, str]] | None = None,
) -> Path:
    """A run with its manifest, one table, a page and findings; a status of None is a step that has begun.

    figures: (title, text, value, unit, note), in place of the step's time.
    """
    folder = root / name
    (folder / "tables").mkdir(parents=True)
    steps = []
    for index, status in enumerate(statuses):
        step = Step(name=f"step{index}", argv=("python", "-c", "pass"), folder=f"steps/step{index}")
        log = b"loss 0.7\nloss 0.6\n"
        (folder / step.folder).mkdir(parents=True)
        (folder / step.folder / "run_output.log").write_bytes(log)
        outcome = None
        if status:
            outcome = Outcome(
                status=Status(status),
                seconds=5.0,
                started_utc=stamp(at + timedelta(seconds=1 + 6 * index)),
                reason="" if status == "ok" else "out of memory",
                exit_code=0 if status == "ok" else 1,
            )
        files = {f"{step.folder}/run_output.log": FileRecord(len(log), hashlib.sha256(log).hexdigest())}
        steps.append(
            StepRecord(
                step=step, fingerprint="f" * 16, attempts=1, outcome=outcome, files=files if outcome else {}
            )
        )
    manifest.save(
        Manifest(
            id=name,
            room=room,
            created_utc=stamp(at),
            lab=Lab(version="0.1.0", commit="c" * 40, dirty=False),
            command=("lab", "run", room, "--channels", "28 42"),
            engine="docker",
            image=ImageRecord(name="cuda", ref="lab/cuda:1", id="sha256:abc"),
            host={"name": host, "cpu": "EPYC"},
            gpus=(Gpu(vendor="nvidia", index=0, uuid="GPU-1", name="NVIDIA H200", driver=driver),),
            versions={"torch": "2.11.0"} | (versions or {}),
            config={"model": "tiny", "channels": [28, 42]} | (config or {}),
            steps=steps,
        ),
        folder / MANIFEST,
    )
    table_text = io.StringIO()
    rows = {"channels": 28, "step_ms": step_ms} | (cells or {})
    csv.writer(table_text, lineterminator="\n").writerows([list(rows), list(rows.values())])
    write_atomic(folder / "tables" / f"{table}.csv", table_text.getvalue())
    write_atomic(folder / "report.html", PAGE)
    if verdict:
        evidence = (Evidence(file=f"tables/{table}.csv", sha256="0" * 64, row=0, columns=("step_ms",)),)
        if figures is None:
            figures = [("Step", f"{step_ms:g} ms", step_ms, "ms", "")]
        every = {"severity": "info", "evidence": evidence}
        found = [Finding(id="verdict-1", kind="verdict", title=room, text=lead, **every)]
        for number, (title, text, value, unit, note) in enumerate(figures, 1):
            shown = {"title": title, "text": text, "value": value, "unit": unit, "note": note}
            found.append(Finding(id=f"figure-{number}", kind="figure", **shown, **every))
        findings.save(
            Findings(
                producer="lab 0.1.0",
                written_utc=stamp(at + timedelta(minutes=10)),
                run=name,
                room=room,
                status=verdict,
                findings=tuple(found),
                lacking=lacking,
            ),
            folder / FINDINGS,
        )
    return folder


def write_runs(root: Path, count: int) -> Path:
    """`count` runs of three rooms and four models, one an hour; every hundredth is broken."""
    for index in range(count):
        room = ("sweep", "nan", "kernels")[index % 3]
        name = f"{room}_{index:05}"
        at = DAY + timedelta(hours=index)
        bad = index % 10 == 7
        write_run(
            root,
            name,
            room=room,
            at=at,
            step_ms=10 + (index * 37 % 101) / 10,
            statuses=("ok", "oom") if bad else ("ok", "ok"),
            verdict="warn" if bad else "ok",
            config={"model": f"model-{index % 4}"},
            versions={"torch": f"2.{11 + index // 500}.0"},
        )
        if index % 100 == 50:
            (root / name / MANIFEST).write_text('{"schema_version": 1')
    return root


def write_steps(root: Path, **took_us: float) -> None:
    """A recording of three steps in each run: run -> how long its matrix product takes."""
    for run, took in took_us.items():
        trace = TraceWriter()
        for step in range(3):
            trace.step(step, 1000 * step, 900)
            trace.gemm(64, 64, 32, 1000 * step + 100, took)
        trace.write(root / run / "trace.json")
