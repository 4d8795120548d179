"""Make one row per run: what its manifest and findings say, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from lab.core.findings import Finding, Findings
from lab.core.manifest import Manifest, StepRecord
from lab.core.words import plural, printable

COMPLETE = "complete, as analysed"
MOST_TEXT = 2000  # characters of one text of a row
MOST_VALUE = 1e100  # of a figure; a larger one is only shown
FIELDS = ("room", "model", "state", "gpus", "driver", "host", "lab", "kind", "integrity", "lead", "error")
State = Literal["done", "failed", "open", "planned", "analysis", "unreadable"]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    status: str  # of its outcome; `begun` without one, `planned` before
    reason: str = ""
    seconds: float | None = None
    attempts: int = 0
    started_utc: str = ""
    exit_code: int | None = None
    peak_mem_bytes: int | None = None
    labels: dict[str, str | int] = {}
    folder: str = "."


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A key figure: `text` as on the page, `value` where it is a number."""

    label: str
    text: str
    value: float | None
    unit: str = ""
    note: str = ""

    @property
    def is_bound(self) -> bool:
        return is_lower_bound(self.label, self.note)

    @property
    def shown(self) -> str:
        return f"≥ {self.text}" if self.is_bound else self.text


def is_lower_bound(label: str, note: str) -> bool:
    """Whether a page calls this figure a lower bound, as it does where the recording lost something."""
    return "at least" in label.lower() or note.lower().startswith("at least")


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # without its suffix
    file: str  # relative to the run
    size_bytes: int
    mtime_ns: int


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `folder` is relative to the indexed one; `integrity` says what is known to be missing.

    state: `open` is a run that began and has steps without an outcome: going on, or left by its driver.
    verdict: status of the report (`ok`, `warn`, `fail`), "" where there is none.
    """

    folder: str
    id: str
    state: State
    room: str = ""
    kind: str = ""
    created_utc: str = ""
    ended_utc: str = ""
    verdict: str = ""
    lead: str = ""
    integrity: str = ""
    error: str = ""
    engine: str = ""
    image: str = ""
    image_id: str = ""
    host: str = ""
    gpus: str = ""
    gpu_count: int = 0
    driver: str = ""
    power_limit: str = ""
    model: str = ""
    lab: str = ""
    commit: str = ""
    dirty: bool | None = None
    versions: dict[str, str] = {}
    env: dict[str, str] = {}
    config: dict[str, Any] = {}
    command: tuple[str, ...] = ()
    steps_done: int = 0
    steps_total: int = 0
    steps: tuple[StepRow, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    lacking: tuple[str, ...] = ()
    tables: tuple[TableFile, ...] = ()

    def fields(self) -> dict[str, str]:
        """What a person filters, sorts and groups by, as text."""
        return {
            **{
                figure.label: figure.shown for figure in self.figures
            },  # at the start: none of them replaces a column
            **{name: str(getattr(self, name)) for name in FIELDS},
            "run": self.folder,
            "verdict": self.verdict or "none",
            "when": self.created_utc,
            "day": self.created_utc[:10],
            "image": self.image or self.engine,
            "commit": self.commit[:12],
            **{f"version {name}": value for name, value in self.versions.items()},
            **{f"config {name}": text_of(value) for name, value in self.config.items()},
        }


def text_of(value: object) -> str:
    """A value of a configuration as one line."""
    return cut(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def cut(text: str) -> str:
    """At most MOST_TEXT printable characters."""
    if len(text) <= MOST_TEXT and text.isprintable():  # most are, and this is quick
        return text
    shown = printable(text)
    return shown if len(shown) <= MOST_TEXT else f"{shown[:MOST_TEXT]} … ({len(shown):,} characters)"


def _model_of(config: Mapping[str, object]) -> str:
    """What a run measured; several as `linear, semicrf`."""
    models = next((config[key] for key in ("model", "config", "models") if config.get(key)), "")
    names = [model for model in models if isinstance(model, str)] if isinstance(models, list) else []
    return cut(", ".join(names)) if names and names == models else text_of(models)


def row_of(folder: str, manifest: Manifest, findings: Findings | str | None) -> RunRow:
    """The row of a readable manifest; `findings` is a text where they could not be read: the reason."""
    steps = tuple(map(_step_row, manifest.steps))
    image = manifest.image
    config = manifest.config
    return RunRow(
        folder=folder,
        id=cut(manifest.id),
        state=_state(steps),
        room=cut(manifest.room),
        kind=manifest.kind.value,
        created_utc=cut(manifest.created_utc),
        ended_utc=_ended(steps),
        integrity=_integrity(steps, findings),
        engine=cut(manifest.engine),
        image=cut(image.name or image.ref) if image else "",
        image_id=cut(image.id or "") if image else "",
        host=cut(str(manifest.host.get("name", ""))),
        gpus=cut(_gpus(manifest)),
        gpu_count=len(manifest.gpus),
        driver=cut(", ".join(sorted({gpu.driver for gpu in manifest.gpus if gpu.driver}))),
        power_limit=", ".join(
            sorted({f"{gpu.power_limit_w:g} W" for gpu in manifest.gpus if gpu.power_limit_w})
        ),
        model=_model_of(config),
        lab=cut(manifest.lab.version),
        commit=cut(manifest.lab.commit or ""),
        dirty=manifest.lab.dirty,
        versions={cut(name): cut(text) for name, text in manifest.versions.items()},
        env={cut(name): cut(text) for name, text in manifest.env.items()},
        config=config
        if len(msgspec.json.encode(config)) < 65536
        else {"": "more than 64 kB: see the manifest"},
        command=tuple(map(cut, manifest.command)),
        steps=steps,
        steps_done=sum(step.status in ("ok", "skipped") for step in steps),
        steps_total=len(steps),
        **_verdict_and_figures(findings),
    )


def analysis_row(folder: str, findings: Findings) -> RunRow:
    """The row of an analysis of a recording that lab did not make."""
    return RunRow(
        folder=folder,
        id=folder.rsplit("/", 1)[-1],
        state="analysis",
        room=cut(findings.room),
        kind=findings.kind,
        created_utc=cut(findings.written_utc),
        integrity=_lacks(findings) or COMPLETE,
        **_verdict_and_figures(findings),
    )


def broken_row(folder: str, error: str, when: str) -> RunRow:
    """A run whose manifest cannot be read is a row with its reason."""
    return RunRow(
        folder=folder,
        id=folder.rsplit("/", 1)[-1],
        state="unreadable",
        created_utc=when,
        error=cut(error),
        integrity="unreadable",
    )


def _verdict_and_figures(findings: Findings | str | None) -> dict[str, Any]:
    if not isinstance(findings, Findings):
        return {}
    return {
        "verdict": findings.status,
        "lead": cut(next(iter(findings.verdict), "")),
        "lacking": tuple(map(cut, findings.lacking or ())),
        "findings": tuple(map(_clean, findings.findings)),
        "figures": tuple(_figure(finding) for finding in findings.findings if finding.kind == "figure"),
    }


def _step_row(record: StepRecord) -> StepRow:
    step, outcome = record.step, record.outcome
    if outcome is None:
        status = "begun" if record.attempts else "planned"
        return StepRow(
            name=step.name, status=status, attempts=record.attempts, labels=step.labels, folder=step.folder
        )
    return StepRow(
        name=step.name,
        status=outcome.status.value,
        reason=cut(outcome.reason),
        seconds=outcome.seconds,
        attempts=record.attempts,
        started_utc=cut(outcome.started_utc),
        exit_code=outcome.exit_code,
        peak_mem_bytes=outcome.peak_mem_bytes,
        labels=step.labels,
        folder=step.folder,
    )


def _state(steps: tuple[StepRow, ...]) -> State:
    kinds = {step.status for step in steps}
    if kinds <= {"ok", "skipped"}:
        return "done"
    if "begun" in kinds or ("planned" in kinds and kinds - {"planned", "skipped"}):
        return "open"
    return "planned" if kinds & {"planned"} else "failed"


def _ended(steps: tuple[StepRow, ...]) -> str:
    return max((end for one in steps if (end := _end_of(one))), default="")


def _end_of(step: StepRow) -> str:
    """When a step ended, UTC; "" where that is not known."""
    try:
        began = datetime.fromisoformat(step.started_utc)
        return (began + timedelta(seconds=step.seconds or 0.0)).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return ""


def _gpus(manifest: Manifest) -> str:
    names: dict[str, int] = {}
    for gpu in manifest.gpus:
        names[gpu.name or gpu.vendor] = names.get(gpu.name or gpu.vendor, 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in names.items())


def _integrity(steps: tuple[StepRow, ...], findings: Findings | str | None) -> str:
    """What is known to be missing from a run; `complete, as analysed` where nothing is."""
    wrong: list[str] = []
    bad = [step for step in steps if step.status not in ("ok", "skipped")]
    if bad:
        wrong.append(f"{len(bad)} of {plural(len(steps), 'step')} without a result")
    if isinstance(findings, str):
        wrong.append(cut(f"findings unreadable: {findings}"))
    elif findings is None:
        wrong.append("no findings: not analysed, or by a lab of before they were kept (lab analyze RUN)")
    else:
        if lacks := _lacks(findings):
            wrong.append(lacks)
        if (ended := _ended(steps)) and ended > findings.written_utc:
            wrong.append("analysed before its last step ended")
    if not steps:
        wrong.append("no steps")
    return "; ".join(wrong) or COMPLETE


def _lacks(findings: Findings) -> str:
    if findings.lacking is None:
        return "the analysis was not finished"
    wrong = [f"the analysis lacks {plural(len(findings.lacking), 'thing')}"] if findings.lacking else []
    figures = [finding for finding in findings.findings if finding.kind == "figure"]
    wrong += [f"the recording is {cut(figure.text)}" for figure in figures if _is_incomplete(figure)]
    if any(_figure(figure).is_bound for figure in figures):
        wrong.append("figures are lower bounds")
    return "; ".join(wrong)


def _is_incomplete(figure: Finding) -> bool:
    """Whether this is what a page says of a recording's integrity, and something is missing from it."""
    return figure.title == "recording" and figure.text != "complete"


def _figure(finding: Finding) -> Figure:
    clean = _clean(finding)
    return Figure(label=clean.title, text=clean.text, value=clean.value, unit=clean.unit, note=clean.note)


def _clean(value: Any) -> Any:
    """Cut every text in a finding to printable ones, and drop numbers too large for arithmetic."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, float):
        return value if abs(value) < MOST_VALUE else None
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    if isinstance(value, msgspec.Struct):
        fields = {name: _clean(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value
