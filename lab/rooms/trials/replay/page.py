"""The page, the tables and the lines of a replay; `lab same` prints the lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import first_few, plural, printable, ranks_text
from lab.errors import BadDataError
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.replay.compare import Divergence, Finding, Record, compare
from lab.rooms.trials.replay.config import CONFIG, ReplayConfig, read_replay
from lab.workload.recorder.format import Row, files_of, read

MOST_NOTES = 40
KINDS = {
    "random": "random numbers",
    "weight": "weights",
    "buffer": "buffers",
    "input": "batch",
    "module": "output",
    "op": "operator",
    "grad": "gradient",
    "reduced": "gradient after the reduction",
    "used": "gradient that the update uses",
    "comm": "collective",
}
FOOTNOTES = (
    "Checksums cover every bit of a tensor and its place; -0.0 differs from 0.0. Different tensors have "
    "equal checksums with a chance of 2^-64.",
    "A difference is made where the inputs were equal and the output was not. Everything after it inherits.",
    "Code between a model's output and the call of backward (the loss) is seen by the gradient that enters "
    "the model.",
)


def report(folder: Path, out: Path, run: Run | None) -> Findings:
    """Tables and report.html into `out`. Raises BadDataError where no record can be read."""
    config = read_replay(folder / CONFIG) if (folder / CONFIG).exists() else None
    records, lacking = gather(folder, run)
    finding = compare(records)
    lacking += missing(finding, records, config)
    verdict = sentences(finding, records)
    divergences = pd.DataFrame([_divergence_row(place) for place in finding.divergences])
    frames = {
        "divergences": (divergences, "The first place of each comparison, earliest first"),
        "records": (pd.DataFrame([_record_row(record) for record in records]), "One row per run and rank"),
    }
    files, tables = [], []
    for name, (frame, caption) in frames.items():
        if len(frame):
            files.append(write_csv(frame, out / f"tables/{name}.csv"))
            tables.append(Table(frame, caption, f"tables/{name}.csv"))
    agreeing = [f"Agree in every bit: {', '.join(group)}." for group in finding.groups if len(group) > 1]
    notes = [f"{name_of(record)}: {text}" for record in records for text in notes_of(record)]
    status: Status = "fail" if finding.verdict != "bitwise" else "warn" if lacking else "ok"
    page = Page(
        title=f"Replay {run.manifest.id if run else folder.resolve().name}",
        question="Does the same step give the same bits again, and where is the first that differs?",
        verdict=verdict,
        status=status,
        cards=[
            Card("Verdict", finding.verdict, "tables/records.csv"),
            Card("Steps", str(finding.steps), "tables/records.csv", note=f"{finding.repeats} repeats"),
            Card("Tensors", f"{finding.rows:,}", "tables/records.csv"),
        ],
        sections=[Section("Records", tables), Section("Notes", [Points([*agreeing, *notes[:MOST_NOTES]])])],
        provenance=provenance(folder, run.manifest if run else None),
        footnotes=FOOTNOTES,
        room="trials",
        badge="" if status == "ok" else finding.verdict,
    )
    files.append(write_page(page, out / "report.html"))
    lines = [*verdict, "", f"report: {files[-1]}"]
    if len(divergences) > 1:
        columns = ["step", "rank", "direction", "module", "what", "compared"]
        lines[-1:-1] = [terminal_table(divergences[columns].head(6), width=140), ""]
    return Findings(verdict, status, files, "\n".join(lines), lacking, answer=answer(finding, records))


def compare_folders(folders: Sequence[Path]) -> tuple[dict[str, Any], list[str], list[str]]:
    """For `lab same`: what scripts rely on, the verdict's sentences, and what it does not cover."""
    records, lacking = [], []
    for folder in folders:
        of_folder, problems = gather(folder, None)
        prefix = f"{folder.name}/" if len(folders) > 1 else ""
        records += [record._replace(run=f"{prefix}{record.run}") for record in of_folder]
        lacking += problems
    finding = compare(records)
    lacking += missing(finding, records, None)
    return answer(finding, records), sentences(finding, records), lacking


def gather(folder: Path, run: Run | None) -> tuple[list[Record], list[str]]:
    """Records of the run's steps, and what cannot be read."""
    records: list[Record] = []
    problems: list[str] = []
    for name, place in _folders(folder, run, problems):
        of_run = []
        for path in files_of(place):
            try:
                of_run.append(Record.of(name, read(path)))
            except BadDataError as error:
                problems.append(f"{name}: {path.name}: {error.problem}")
        if not of_run:
            problems.append(f"{name}: no record of it")
            continue
        absent = sorted({*range(max(r.recording.world for r in of_run))} - {r.rank for r in of_run})
        if absent:
            numbers = first_few([str(rank) for rank in absent], 16)
            problems.append(f"{name}: no record of {plural(len(absent), 'rank')}: {numbers}")
        records += of_run
    if not records:
        raise BadDataError(
            "no record of bits", location=folder, fix="see the steps' logs: did a model train?"
        )
    return records, problems + [f"{name_of(r)}: {text}" for r in records for text in r.recording.lacks]


def _folders(folder: Path, run: Run | None, problems: list[str]) -> list[tuple[str, Path]]:
    if run is None:
        steps = sorted(step for step in (folder / "steps").glob("*") if step.is_dir())
        return [(step.name, step) for step in steps] or [(folder.resolve().name, folder)]
    for record in run.manifest.steps:
        if record.outcome is None or not record.outcome.ok:
            problems.append(f"{record.step.name} did not end well")
    return [(record.step.name, run.folder(record.step)) for record in run.manifest.steps]


def name_of(record: Record) -> str:
    return f"{record.run}, rank {record.rank}"


def missing(finding: Finding, records: Sequence[Record], config: ReplayConfig | None) -> list[str]:
    """What the verdict does not cover."""
    lines = []
    if finding.verdict == "nothing seen":
        lines.append("nothing was seen: no training step of a model was recorded")
    if config is not None and finding.steps < config.steps:
        lines.append(f"{finding.steps} of {plural(config.steps, 'step')} recorded in every run")
    if config is not None and config.repeats and finding.verdict != "nothing seen" and not finding.repeats:
        lines.append("no step was run again inside its process (see Notes)")
    runs = {record.run for record in records}
    if len(runs) < 2 and (config is None or config.runs > 1):
        lines.append("only one run has a record: nothing to compare it with")
    recorded = sorted({int(record.recording.end.get("steps", 0)) for record in records})
    if len(recorded) > 1:  # a run that ended early is equal as far as it went
        lines.append(
            f"from {recorded[0]} to {plural(recorded[-1], 'step')} recorded: not compared beyond the fewest"
        )
    if len({max(r.recording.world for r in records if r.run == run) for run in runs}) > 1:
        lines.append("the runs have different numbers of ranks")
    return lines


def notes_of(record: Record) -> list[str]:
    """What no verdict rests on, because it holds what was in memory before; then the recorder's notes."""
    unwritten = record.recording.unwritten
    lines = []
    if unwritten:
        outputs = plural(sum(unwritten.values()), "output")
        names = first_few([f"{count:,} of {name}" for name, count in unwritten.items()], 10)
        lines = [f"{outputs} that need not be written were not compared: {names}"]
    return [*lines, *record.recording.notes]


def sentences(finding: Finding, records: Sequence[Record]) -> list[str]:
    """The verdict first, then where, why and what to switch."""
    runs = len({record.run for record in records})
    ranks = len({record.rank for record in records})
    covered = f"{plural(finding.steps, 'step')} of {plural(runs, 'run')} on {plural(ranks, 'rank')}"
    again = f", {plural(finding.repeats, 'repeat')} of steps" if finding.repeats else ""
    if finding.verdict == "nothing seen":
        return ["Nothing was seen: no training step was recorded."]
    place = finding.first_place
    if place is None:
        drawn = ", ".join(finding.random_differs)
        unseeded = f"Random numbers of {drawn} are not seeded; nothing that was recorded drew them."
        return [
            f"bitwise: {covered}{again} agree in {plural(finding.rows, 'tensor')}.",
            f"A rate of differing runs of up to {1 - 0.05 ** (1 / max(1, runs)):.0%} stays possible.",
            *([unseeded] if drawn else []),
        ]
    lines = [f"{finding.verdict}: first difference at {place_text(place)}."]
    lines.append(f"Compared: {place.between[0]} with {place.between[1]} ({covered}{again}).")
    lines += _cause(finding, place)
    if len(finding.groups) > 1 and runs > 2:
        agree = [f"{', '.join(group)} agree" for group in finding.groups if len(group) > 1]
        lines.append(f"{'; '.join(agree) or 'No two runs agree'}.")
    if finding.repeats_agree and place.kind == "runs":
        lines.append(_of_repeats(place))
    return lines


def _of_repeats(place: Divergence) -> str:
    """Say what agreeing repeats inside one process prove: of the model's forward and backward alone."""
    # A backward whose inputs differed began with the loss, which is not repeated.
    needs_equal_inputs = {"forward": False, "backward": True}.get(place.direction)
    if needs_equal_inputs is None or (needs_equal_inputs and place.equal_inputs is not True):
        return (
            "Forward and backward repeat inside one process; what comes before and after them (data, loss, "
            "collectives, update) does not run again."
        )
    hint = " (such as the order of a set: PYTHONHASHSEED=0)" if place.equal_inputs is False else ""
    return f"Inside one process the same step repeats: the difference needs another process{hint}."


def place_text(place: Divergence) -> str:
    """`step 2, rank 1, blocks.0.attn, backward: operator aten.index_add in IndexAddBackward0`."""
    row = place.row
    name = f" {row.op}" if row.kind not in ("input", "module") else ""
    node = f" in {row.node}" if row.node else ""
    location = f"step {place.step}, rank {place.rank}, {row.module or 'model'}, {place.direction}"
    return f"{location}: {_kind(row)}{name}{node}"


def _kind(row: Row) -> str:
    is_gradient = row.kind == "module" and row.phase == "bwd"
    return "gradient of the output" if is_gradient else KINDS.get(row.kind, row.kind)


def _cause(finding: Finding, place: Divergence) -> list[str]:
    row, lines = place.row, []
    made_here = place.equal_inputs is not False
    if place.absent:
        lines.append("The other run did something else here: its control flow differs.")
    lines += _of_inputs(place)
    if finding.verdict == "input pipeline":
        same = "the same batches in another order" if finding.same_batches else "other batches"
        lines.append(f"The runs were given {same}; weights were equal until then.")
    if row.kind == "weight" and row.phase == "start":
        lines.append(
            "The weights differed before the first step: their initialisation or checkpoint differs."
            if place.step == 1
            else "The weights were changed after the update before, by something other than the optimizer."
        )
    if row.kind == "weight" and row.phase == "update" and place.kind == "runs":
        lines.append(
            "The gradients of this update had equal bits: the optimizer's settings (its rate, say) or state "
            "differ, or its own operators do not repeat."
        )
    if row.kind == "used":
        differs_on = f" It differs on {_on(place.outputs_of, place.ranks)}." if place.ranks > 1 else ""
        lines.append(
            "It was changed between the backward and the update, by code that is not recorded there: "
            f"clipping, the program itself, or a collective that is not torch.distributed's.{differs_on}"
        )
    drawn = [name for name in finding.random_differs if row.kind == "input" or name in ("torch", "cuda")]
    if drawn and (row.random or row.kind in ("input", "weight")):
        lines.append(f"Random numbers of {', '.join(drawn)} differed when that step began: not seeded.")
    elif finding.random_differs and not made_here and place.kind == "runs":
        names = ", ".join(finding.random_differs)
        lines.append(
            f"Random numbers of {names} differed when that step began, not seeded: perhaps one of them."
        )
    if made_here and place.source is not None:
        lines.append(f"Known: {place.source.reason}. Switch: {place.source.switch}.")
    elif made_here and row.kind in ("op", "comm"):
        lines.append("No known source of differences: a custom operator, a race, or a fault of the hardware.")
    if place.kind == "ranks":
        is_open = "others" not in place.between[1]
        lines.append(f"Replicas must agree here{'; which of two is wrong is open' if is_open else ''}.")
    return lines


def _of_inputs(place: Divergence) -> list[str]:
    """Whether the difference came in or was made here."""
    is_collective = place.row.kind == "comm"
    if place.inputs_of:
        return [
            f"It is a collective whose inputs differed on {_on(place.inputs_of, place.ranks)}: the "
            "difference is made there, in code before it that is not seen, and reaches the others through it."
        ]
    if place.equal_inputs and is_collective and place.ranks > 1:
        return [
            f"The inputs of all {place.ranks} ranks had equal bits and the output differs on "
            f"{_on(place.outputs_of, place.ranks)}: the difference is made in the collective."
        ]
    if place.equal_inputs:
        return ["Its inputs had equal bits, so the difference is made here."]
    if place.equal_inputs is None:
        unknown = "Whether the inputs of all ranks were equal is not known: some ranks have no record of it."
        return [unknown] if is_collective else []
    return [
        "Its inputs differed already: the difference is made in code before it that is not seen: numpy, "
        "Python, a clock or a library gave a number, or nothing had written its memory (torch.empty)."
    ]


def _on(ranks: Sequence[int], of: int) -> str:
    """`rank 1 alone`, `ranks 0, 2` or `all 4 ranks`."""
    if len(ranks) == of:
        return f"all {of} ranks"
    return f"{ranks_text(ranks, 16)}{' alone' if len(ranks) == 1 else ''}"


def answer(finding: Finding, records: Sequence[Record]) -> dict[str, Any]:
    """Verdict as scripts read it."""
    place, fields = finding.first_place, None
    if place is not None:
        source = place.source if place.equal_inputs is not False else None
        fields = {
            "step": place.step,
            "rank": place.rank,
            "module": place.row.module,
            "direction": place.direction,
            "kind": place.row.kind,
            "op": place.row.op,
            "node": place.row.node,
            "equal_inputs": place.equal_inputs,
            "inputs_differ_on": list(place.inputs_of),
            "outputs_differ_on": list(place.outputs_of),
            "compared": place.kind,
            "why": source.reason if source else None,
            "switch": source.switch if source else None,
        }
    return {
        "replay": finding.verdict,
        "first": fields,
        "runs": len({record.run for record in records}),
        "ranks": len({record.rank for record in records}),
        "steps": finding.steps,
        "repeats": finding.repeats,
        "events": finding.rows,
    }


def _divergence_row(place: Divergence) -> dict[str, Any]:
    row = place.row
    return {
        "step": place.step,
        "rank": place.rank,
        "direction": place.direction,
        "module": row.module,
        "what": f"{_kind(row)} {row.op}",
        "node": row.node,
        "shape": f"{row.dtype}[{','.join(map(str, row.shape))}]",
        "inputs": {True: "equal", False: "differ", None: "not recorded"}[place.equal_inputs],
        "inputs_differ_on": ", ".join(map(str, place.inputs_of)),
        "compared": " / ".join(place.between),
        "switch": place.source.switch if place.source else "",
    }


def _record_row(record: Record) -> dict[str, Any]:
    names = ("host", "device", "uuid", "torch", "threads", "model", "level")
    return {
        "run": record.run,
        "rank": record.rank,
        **{name: printable(record.fact(name)) for name in names},
        "steps": record.recording.end.get("steps"),
        "tensors": len(record.recording.rows),
    }
