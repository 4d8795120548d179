"""The page, the tables and the lines of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Status as StepStatus
from lab.core.words import plural
from lab.errors import BadDataError
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.replay.compare import PLACES, Divergence, Finding, compare
from lab.rooms.trials.replay.config import CONFIG, ReplayConfig, read_replay
from lab.rooms.trials.replay.read import End, Record, files, read, shown

STATUS: dict[str, Status] = {"bitwise": "ok", "nothing seen": "fail"}
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
    records, lacking = gather(folder, run, config)
    finding = compare(records)
    lacking += missing(finding, records, config)
    verdict = sentences(finding, records)
    divergences, ranks = _divergences(finding.divergences), _ranks(records)
    tables = [write_csv(ranks, out / "tables/records.csv")]
    sections = [Section("Records", [Table(ranks, "One row per run and rank", "tables/records.csv")])]
    if finding.divergences:
        tables.append(write_csv(divergences, out / "tables/divergences.csv"))
        found = Table(
            divergences, "The first place of each comparison, earliest first", "tables/divergences.csv"
        )
        sections.insert(0, Section("First divergences", [found]))
    if agreeing := [group for group in finding.groups if len(group) > 1]:
        agree = [f"Agree in every bit: {', '.join(group)}." for group in agreeing]
        sections.append(Section("Runs that agree", [Points(agree)]))
    notes = [
        f"{one.run}, rank {one.head.rank}: {shown(text)}"
        for one in records
        if one.end
        for text in (*_unwritten(one.end), *one.end.notes)
    ]
    if notes:
        sections.append(Section("Notes", [Points(notes[:40])]))
    status: Status = STATUS.get(finding.verdict, "fail")
    page = Page(
        title=f"Replay {run.manifest.id if run else folder.resolve().name}",
        question="Does the same step give the same bits again, and where is the first that differs?",
        verdict=verdict,
        status="warn" if status == "ok" and lacking else status,
        cards=_cards(finding),
        sections=sections,
        provenance=provenance(folder, run.manifest if run else None),
        footnotes=FOOTNOTES,
        room="trials",
        badge="" if finding.verdict == "bitwise" and not lacking else finding.verdict,
    )
    tables.append(write_page(page, out / "report.html"))
    lines = [*verdict, "", f"report: {tables[-1]}"]
    if len(finding.divergences) > 1:
        columns = ["step", "rank", "direction", "module", "what", "compared"]
        lines[-1:-1] = [terminal_table(divergences[columns].head(6), width=140), ""]
    terminal = "\n".join(lines)
    return Findings(verdict, page.status, tables, terminal, lacking, answer=answer(finding, records))


def gather(folder: Path, run: Run | None, config: ReplayConfig | None) -> tuple[list[Record], list[str]]:
    """Records of the run's steps and of the replay that it is held against, and what cannot be read."""
    found: list[Record] = []
    problems: list[str] = []
    for name, place in _places(folder, run, config, problems):
        mine = []
        for path in files(place):
            try:
                mine.append(read(path, name))
            except BadDataError as error:
                problems.append(f"{name}: {path.name}: {error.problem}")
        if not mine:
            problems.append(f"{name}: no record of it")
            continue
        world = max(one.head.world for one in mine)
        here = {one.head.rank for one in mine}
        if lost := sorted({*range(world)} - here):
            problems.append(
                f"{name}: no record of {plural(len(lost), 'rank')}: {', '.join(map(str, lost[:16]))}"
            )
        found += mine
    if not found:
        raise BadDataError(
            "no record of bits", location=folder, fix="see the steps' logs: did a model train?"
        )
    return found, problems + [text for one in found for text in one.problems]


def _places(
    folder: Path, run: Run | None, config: ReplayConfig | None, problems: list[str]
) -> list[tuple[str, Path]]:
    if run is not None:
        for record in run.manifest.steps:
            if record.outcome is None or record.outcome.status is not StepStatus.ok:
                problems.append(f"{record.step.name} did not end well")
        places = [(record.step.name, run.folder(record.step)) for record in run.manifest.steps]
    else:
        steps = sorted(one for one in (folder / "steps").glob("*") if one.is_dir())
        places = [(one.name, one) for one in steps] or [(folder.resolve().name, folder)]
    if config is not None and config.against:
        other = Path(config.against)
        places += [(f"{other.name}/{one.name}", one) for one in sorted((other / "steps").glob("*"))]
    return places


def missing(finding: Finding, records: Sequence[Record], config: ReplayConfig | None) -> list[str]:
    """What the verdict does not cover."""
    lines = []
    if finding.verdict == "nothing seen":
        lines.append("nothing was seen: no training step of a model was recorded")
    if config is not None and finding.steps < config.steps:
        lines.append(f"{finding.steps} of {plural(config.steps, 'step')} recorded in every run")
    if config is not None and config.repeats and finding.verdict != "nothing seen" and not finding.repeats:
        lines.append("no step was run again inside its process (see Notes)")
    for one in records:
        if one.end and one.end.left_out:
            lines.append(f"{one.run}, rank {one.head.rank}: {plural(one.end.left_out, 'event')} left out")
        if one.end and one.end.unseen:
            kinds = ", ".join(shown(kind) for kind in list(one.end.unseen)[:4])
            lines.append(f"{one.run}, rank {one.head.rank}: tensors without readable bits: {kinds}")
    runs = {one.run for one in records}
    if len(runs) < 2 and (config is None or config.runs > 1):
        lines.append("only one run has a record: nothing to compare it with")
    worlds = {run: max(one.head.world for one in records if one.run == run) for run in runs}
    if len(set(worlds.values())) > 1:
        lines.append("the runs have different numbers of ranks")
    return lines


def _unwritten(end: End) -> list[str]:
    """What no verdict rests on: it holds what was in memory before."""
    if not end.unwritten:
        return []
    outputs = plural(sum(end.unwritten.values()), "output")
    names = ", ".join(f"{count:,} of {shown(name)}" for name, count in list(end.unwritten.items())[:10])
    return [f"{outputs} that nobody need write were not compared: {names}"]


def sentences(finding: Finding, records: Sequence[Record]) -> list[str]:
    """The verdict first, then where, why and what to switch."""
    runs = len({one.run for one in records})
    ranks = len({one.head.rank for one in records})
    seen = f"{plural(finding.steps, 'step')} of {plural(runs, 'run')} on {plural(ranks, 'rank')}"
    again = f", {plural(finding.repeats, 'repeat')} of steps" if finding.repeats else ""
    if finding.verdict == "nothing seen":
        return ["Nothing was seen: no training step was recorded."]
    first = finding.first
    if first is None:
        drawn = ", ".join(finding.random_differs)
        return [
            f"bitwise: {seen}{again} agree in {plural(finding.events, 'event')}.",
            f"A rate of differing runs of up to {1 - 0.05 ** (1 / max(1, runs)):.0%} stays possible.",
            *(
                [f"Random numbers of {drawn} are not seeded; nothing that was recorded drew them."]
                if drawn
                else []
            ),
        ]
    lines = [f"{finding.verdict}: first difference at {where(first)}."]
    lines.append(f"Compared: {first.between[0]} with {first.between[1]} ({seen}{again}).")
    lines += _cause(finding, first)
    if len(finding.groups) > 1 and runs > 2:
        agree = [f"{', '.join(group)} agree" for group in finding.groups if len(group) > 1]
        lines.append(f"{'; '.join(agree) or 'No two runs agree'}.")
    if finding.deterministic is not None:
        did = "repeat" if finding.deterministic else "still differ"
        lines.append(f"With deterministic algorithms the repeats of step 1 {did}.")
    if finding.repeats_agree and first.kind == "runs":
        lines.append(_of_repeats(first))
    return lines


def _of_repeats(first: Divergence) -> str:
    """What it says that the repeats inside one process agree: of the model's forward and backward alone."""
    is_repeated = first.direction == "forward" or (
        first.direction == "backward" and first.equal_inputs is True
    )
    if not is_repeated:
        return (
            "Forward and backward repeat inside one process; what comes before and after them (data, loss, "
            "collectives, update) does not run again."
        )
    hint = " (such as the order of a set: PYTHONHASHSEED=0)" if first.equal_inputs is False else ""
    return f"Inside one process the same step repeats: the difference needs another process{hint}."


def where(one: Divergence) -> str:
    """`step 2, rank 1, blocks.0.attn, backward: operator aten.index_add in IndexAddBackward0`."""
    event = one.event
    what = PLACES.get(event.kind, event.kind)
    name = "" if event.kind == "input" else f" {shown(event.name)}" if event.kind != "module" else ""
    node = f" in {shown(event.node)}" if event.node else ""
    return (
        f"step {one.step}, rank {one.rank}, {shown(event.m) or 'model'}, {one.direction}: {what}{name}{node}"
    )


def _cause(finding: Finding, first: Divergence) -> list[str]:
    lines = []
    if first.other:
        lines.append("The other run did something else here: its control flow differs.")
    lines += _of_inputs(finding, first)
    if finding.verdict == "input pipeline":
        same = "the same batches in another order" if finding.same_batches else "other batches"
        lines.append(f"The runs were given {same}; weights were equal until then.")
    if first.event.kind == "weight" and first.event.p == "start":
        lines.append(
            "The weights differed before the first step: their initialisation or checkpoint differs."
            if first.step == 1
            else "The weights were changed after the update before, by something other than the optimizer."
        )
    if first.event.kind == "weight" and first.event.p == "update" and first.kind == "runs":
        lines.append(
            "The gradients of this update had equal bits: the optimizer's settings (its rate, say) or state "
            "differ, or its own operators do not repeat."
        )
    if first.event.kind == "used":
        lines.append(
            "It was changed between the backward and the update, by code that is not recorded there: "
            "clipping, the program itself, or a collective that is not torch.distributed's." + _of_used(first)
        )
    drawn = [one for one in finding.random_differs if first.event.kind == "input" or one in ("torch", "cuda")]
    if drawn and (first.event.random or first.event.kind in ("input", "weight")):
        lines.append(f"Random numbers of {', '.join(drawn)} differed when that step began: not seeded.")
    elif finding.random_differs and first.equal_inputs is False and first.kind == "runs":
        names = ", ".join(finding.random_differs)
        lines.append(
            f"Random numbers of {names} differed when that step began, not seeded: perhaps one of them."
        )
    made_here = first.equal_inputs is not False
    if made_here and (source := first.source) is not None:
        lines.append(f"Known: {source.why}. Switch: {source.switch}.")
    elif made_here and first.event.kind in ("op", "comm"):
        lines.append("No known source of differences: a custom operator, a race, or a fault of the hardware.")
    if first.kind == "ranks":
        lines.append(
            "Replicas must agree here"
            + ("." if "others" in first.between[1] else "; which of two is wrong is open.")
        )
    elif any(one.once and one.event == first.event for one in finding.divergences):
        lines.append(
            "It happened once: the step's repeats agree with each other. A flipped bit, a race or a hook."
        )
    return lines


def _of_inputs(finding: Finding, first: Divergence) -> list[str]:
    """Whether the difference came in or was made here."""
    if first.inputs_of:
        return [
            f"It is a collective whose inputs differed on {_on(first.inputs_of, first.ranks)}: the "
            "difference is made there, in code before it that is not seen, and reaches the others through it."
        ]
    if first.equal_inputs and first.event.kind == "comm" and first.ranks > 1:
        return [
            f"The inputs of all {first.ranks} ranks had equal bits and the output differs on "
            f"{_on(first.outputs_of, first.ranks)}: the difference is made in the collective."
        ]
    if first.equal_inputs:
        return ["Its inputs had equal bits, so the difference is made here."]
    if first.equal_inputs is None:
        unknown = "Whether the inputs of all ranks were equal is not known: some ranks have no record of it."
        return [unknown] if first.event.kind == "comm" else []
    lines = [
        "Its inputs differed already: the difference is made in code before it that is not seen: numpy, "
        "Python, a clock or a library gave a number, or nothing had written its memory (torch.empty)."
    ]
    if finding.deterministic:
        lines.append("Deterministic algorithms fill new memory, and the step repeats under them.")
    return lines


def _on(ranks: Sequence[int], of: int) -> str:
    """`rank 1 alone`, `ranks 0, 2` or `all 4 ranks`."""
    if len(ranks) == of:
        return f"all {of} ranks"
    few = ", ".join(map(str, ranks[:16])) + (", …" if len(ranks) > 16 else "")
    return f"rank {few} alone" if len(ranks) == 1 else f"ranks {few}"


def _of_used(first: Divergence) -> str:
    if first.ranks < 2:
        return ""
    if len(first.outputs_of) == first.ranks:
        return f" It differs on all {first.ranks} ranks: on which of them that began is not seen."
    return f" It differs on {_on(first.outputs_of, first.ranks)}."


def answer(finding: Finding, records: Sequence[Record]) -> dict[str, Any]:
    """What scripts rely on."""
    first = finding.first
    place = None
    if first is not None:
        source = first.source if first.equal_inputs is not False else None
        place = {
            "step": first.step,
            "rank": first.rank,
            "module": first.event.m,
            "direction": first.direction,
            "kind": first.event.kind,
            "op": first.event.name,
            "node": first.event.node,
            "equal_inputs": first.equal_inputs,
            "inputs_differ_on": list(first.inputs_of),
            "outputs_differ_on": list(first.outputs_of),
            "compared": first.kind,
            "why": source.why if source else None,
            "switch": source.switch if source else None,
        }
    return {
        "replay": finding.verdict,
        "first": place,
        "deterministic": finding.deterministic,
        "runs": len({one.run for one in records}),
        "ranks": len({one.head.rank for one in records}),
        "steps": finding.steps,
        "repeats": finding.repeats,
        "events": finding.events,
    }


def _divergences(found: Sequence[Divergence]) -> pd.DataFrame:
    rows = [
        {
            "step": one.step,
            "rank": one.rank,
            "direction": one.direction,
            "module": shown(one.event.m),
            "what": f"{PLACES.get(one.event.kind, one.event.kind)} {shown(one.event.name)}",
            "node": shown(one.event.node),
            "shape": shown(one.event.shape),
            "inputs": _inputs(one),
            "compared": " / ".join(one.between),
            "switch": one.source.switch if one.source else "",
        }
        for one in found
    ]
    made: pd.DataFrame = pd.DataFrame(rows)
    return made


def _inputs(one: Divergence) -> str:
    if one.inputs_of:
        return f"differ on {_on(one.inputs_of, one.ranks)}"
    return {True: "equal", False: "differ", None: "not recorded"}[one.equal_inputs]


def _ranks(records: Sequence[Record]) -> pd.DataFrame:
    rows = [
        {
            "run": one.run,
            "rank": one.head.rank,
            "host": shown(one.head.host),
            "device": shown(one.head.device),
            "uuid": shown(one.head.uuid),
            "torch": shown(one.head.torch),
            "threads": one.head.threads,
            "model": shown(one.head.model),
            "level": shown(one.head.level),
            "steps": one.end.steps if one.end else None,
            "events": len(one.events),
        }
        for one in records
    ]
    made: pd.DataFrame = pd.DataFrame(rows)
    return made


def _cards(finding: Finding) -> list[Card]:
    cards = [Card("Verdict", finding.verdict, "tables/records.csv")]
    if finding.first is not None:
        first = finding.first
        note = f"{first.event.m or 'model'}, {first.direction}"
        cards.append(
            Card(
                "First difference",
                f"step {first.step}, rank {first.rank}",
                "tables/divergences.csv",
                note=note,
            )
        )
    cards.append(Card("Steps", str(finding.steps), "tables/records.csv", note=f"{finding.repeats} repeats"))
    cards.append(Card("Events", f"{finding.events:,}", "tables/records.csv"))
    return cards
