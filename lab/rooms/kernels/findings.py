"""A kernels run from folder to findings, whatever its step was: profile, replay or energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Status as StepStatus
from lab.errors import LabError, MissingError
from lab.report.provenance import provenance as of_manifest
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue import files
from lab.rooms.kernels.catalogue.build import Catalogue, put_together
from lab.rooms.kernels.catalogue.rank import RankData, read_trail
from lab.rooms.kernels.catalogue.sources import trails_of
from lab.rooms.kernels.energy import summary as energy_summary
from lab.rooms.kernels.energy.choice import ENERGY_RAW, ENERGY_RESULT, ENERGY_TABLE, RawEnergy, is_energy
from lab.rooms.kernels.energy.evaluate import evaluate as evaluate_energy
from lab.rooms.kernels.replay.args import PLAN_FILE, RAW_FILE, RESULT, TABLE, RawReplay, ReplayPlan, is_replay
from lab.rooms.kernels.replay.proof import summary as replay_summary
from lab.rooms.kernels.replay.proof.evaluate import evaluate as evaluate_replay
from lab.rooms.kernels.replay.proof.rows import Row
from lab.rooms.kernels.report.page import About, write_report, write_result_page
from lab.rooms.kernels.report.sections import energy_section, replay_section
from lab.rooms.kernels.schema import Generation
from lab.rooms.kernels.trails import Trail, read_json, trails

Progress = Callable[[str], None]
_REPLAY_COLUMNS = (
    "sig_id position op overload kernel class kind mode count trace_sum_us trace_median_us time_share n_ran "
    "replay_median_us replay_ci_low_us replay_ci_high_us err_pct same_kernel arg_src origin launched flags "
    "name"
)


def analyse_kernels(folder: Path, out: Path, run: Run | None, progress: Progress) -> Findings:
    """Profile -> catalogue and page; replay or energy -> its result and a page of it. All into `out`."""
    if is_energy(folder):
        return analyse_energy(folder, out, _about(folder, run))
    if is_replay(folder):
        return analyse_replay(folder, out, _about(folder, run))
    return analyse_profile(folder, out, run, progress)


def _about(folder: Path, run: Run | None) -> About:
    kind = run.manifest.kind.value if run else "measured"
    return About(f"Kernels {folder.resolve().name}", provenance(folder, run), kind)


def analyse_energy(folder: Path, out: Path, about: About) -> Findings:
    """Evaluate the measurement in `folder`; write energy.json, tables/energy.csv and a page into `out`."""
    if not (folder / ENERGY_RAW).is_file():
        return _failure(f"no window was measured: {Path(ENERGY_RAW).name} is missing")
    result = evaluate_energy(
        read_json(folder / PLAN_FILE, ReplayPlan), read_json(folder / ENERGY_RAW, RawEnergy)
    )
    write_atomic(out / ENERGY_RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    rows = [msgspec.to_builtins(row) | {"flags": "; ".join(row.flags)} for row in result.rows]
    write_csv(pd.DataFrame(rows), out / ENERGY_TABLE)
    findings = Findings(
        verdict=energy_summary.verdict_sentences(result),
        status=energy_summary.status(result),
        files=[out / ENERGY_RESULT, out / ENERGY_TABLE],
        terminal=energy_summary.terminal(result),
        lacking=energy_summary.missing_sentences(result),
    )
    return write_result_page(findings, energy_section(result, out), about, out)


def analyse_replay(folder: Path, out: Path, about: About) -> Findings:
    """Compare the replay in `folder` with its recording; write replay.json, replay.csv and a page."""
    if not (folder / RAW_FILE).is_file():
        return _failure(f"nothing was replayed: {Path(RAW_FILE).name} is missing")
    plan = read_json(folder / PLAN_FILE, ReplayPlan)
    result = evaluate_replay(plan, read_json(folder / RAW_FILE, RawReplay))
    write_atomic(out / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    write_csv(_replay_table(result.rows), out / TABLE)
    findings = Findings(
        verdict=replay_summary.verdict_sentences(result),
        status=replay_summary.status(result),
        files=[out / RESULT, out / TABLE],
        terminal=replay_summary.terminal(result, plan),
        lacking=replay_summary.missing_sentences(result),
    )
    return write_result_page(findings, replay_section(result), about, out)


def _replay_table(rows: Sequence[Row]) -> pd.DataFrame:
    """replay.csv: one row per launch of a signature, by share of time."""
    cells = []
    for row in sorted(rows, key=lambda row: -row.time_share):
        us = row.us or {"median": None, "ci": None}
        low, high = us["ci"] or (None, None)
        values = msgspec.to_builtins(row) | {"flags": "; ".join(row.flags)}
        values |= {"replay_median_us": us["median"], "replay_ci_low_us": low, "replay_ci_high_us": high}
        cells.append(values)
    table: pd.DataFrame = pd.DataFrame(cells, columns=_REPLAY_COLUMNS.split())
    return table


def analyse_profile(folder: Path, out: Path, run: Run | None, progress: Progress) -> Findings:
    """The traces of all ranks, the catalogue, the page. Missing ranks are named, the others are analysed."""
    traces = trails(folder) if run else trails_of([folder])
    if not traces:
        return _failure(": ".join(["no trace was recorded", *_failed(run)[:1]]))
    try:
        catalogue, lost = read_all(traces, progress)
    except LabError as error:
        if not _failed(run):
            raise
        return _failure(
            f"the failed step left a file that cannot be read: {error.problem} ({error.location})"
        )
    written = [*files.write_unique(catalogue, out), *files.write_launches(catalogue, out)]
    missing = [*lost, *_missing_ranks(run, traces)]
    findings = write_report(catalogue, _about(folder, run), out, missing)
    return msgspec.structs.replace(findings, files=[*written, *findings.files])


def _failure(sentence: str) -> Findings:
    return Findings([sentence], "fail", [], sentence, [sentence])


def read_all(traces: Sequence[Trail], progress: Progress = lambda _: None) -> tuple[Catalogue, list[str]]:
    """The catalogue of the ranks that can be read, and why others cannot.

    Raises the last error if none can.
    """
    ranks: list[RankData] = []
    lost, last_error = [], None
    for trail in traces:
        progress(f"  reading {trail.trace.name}")
        try:
            ranks += read_trail(trail, {rank.rank for rank in ranks})
        except LabError as error:
            last_error = error
            lost.append(f"rank {trail.rank}: {error.problem} ({error.location or trail.trace})")
    if not ranks:
        raise last_error or MissingError(
            "no trace to read", location=traces[0].trace.parent if traces else None
        )
    return put_together(ranks), lost


def _failed(run: Run | None) -> list[str]:
    """Why steps of this run did not succeed."""
    outcomes = [record.outcome for record in run.manifest.steps if record.outcome] if run else []
    return [outcome.reason for outcome in outcomes if outcome.status is not StepStatus.ok]


def _missing_ranks(run: Run | None, traces: Sequence[Trail]) -> list[str]:
    wanted = int(run.manifest.config.get("tp", 1)) if run else len(traces)
    present = {trail.rank for trail in traces}
    return [f"rank {rank} left no trace" for rank in range(wanted) if rank not in present]


def provenance(folder: Path, run: Run | None) -> dict[str, dict[str, str]]:
    """Where a page's numbers come from, in groups of name and value; of a run the weights, too."""
    groups = of_manifest(folder, run.manifest if run else None)
    generations = [trail.generation for trail in trails(folder) if trail.generation] if run else []
    if not generations:
        return groups
    generation = read_json(generations[0], Generation)  # of the first rank that says what it generated
    encoded_by = generation.tokens_by or "encoding not recorded"
    weights = {
        generation.weights: generation.weights_note,
        "dtype": generation.dtype,
        "attention": generation.attn,
        "tokens": f"{generation.prompt_tokens} in the prompt ({encoded_by}), {generation.new_tokens} new",
        "unprofiled generation": f"{generation.unprofiled_s:.4f} s",
    }
    return {**groups, "Weights": weights}
