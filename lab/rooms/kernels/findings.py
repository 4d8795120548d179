"""A kernels run from folder to findings, whatever its step was: profile, replay or energy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Status as StepStatus
from lab.errors import LabError, MissingError
from lab.rooms.kernels.catalogue import files
from lab.rooms.kernels.catalogue.build import Catalogue, put_together
from lab.rooms.kernels.catalogue.rank import RankData, read_trail
from lab.rooms.kernels.catalogue.sources import trails_of
from lab.rooms.kernels.energy.analysis import analyse_energy
from lab.rooms.kernels.energy.choice import RESULT as ENERGY
from lab.rooms.kernels.energy.choice import is_energy
from lab.rooms.kernels.energy.result import EnergyResult
from lab.rooms.kernels.provenance import provenance
from lab.rooms.kernels.replay.analysis import analyse_replay
from lab.rooms.kernels.replay.files import RESULT as REPLAY
from lab.rooms.kernels.replay.files import is_replay
from lab.rooms.kernels.replay.proof.result import Result as ReplayResult
from lab.rooms.kernels.report.page import About, Extras, write_report, write_result_page
from lab.rooms.kernels.schema import LinearShape
from lab.rooms.kernels.trails import Trail, read_lines, trails

Progress = Callable[[str], None]
_Result = TypeVar("_Result", bound=msgspec.Struct)


def analyse_kernels(folder: Path, out: Path, run: Run | None, progress: Progress) -> Findings:
    """Profile -> catalogue and page; replay or energy -> its result and a page of it. All into `out`."""
    if is_energy(folder):
        return _with_page(analyse_energy(folder, out), out / ENERGY, EnergyResult, _about(folder, run))
    if is_replay(folder):
        return _with_page(analyse_replay(folder, out), out / REPLAY, ReplayResult, _about(folder, run))
    return analyse_profile(folder, out, run, progress)


def _about(folder: Path, run: Run | None) -> About:
    kind = run.manifest.kind.value if run else "measured"
    return About(f"Kernels {folder.resolve().name}", provenance(folder, run), kind)


def _with_page(
    findings: Findings, result: Path, kind: type[ReplayResult] | type[EnergyResult], about: About
) -> Findings:
    """The findings with a page beside the result; a step that left no result has no page."""
    if result not in findings.files:
        return findings
    read = msgspec.json.decode(result.read_bytes(), type=kind)
    page = write_result_page(findings, read, about, result.parent)
    return msgspec.structs.replace(findings, files=[*findings.files, page])


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
    replay, replay_home, no_replay = sibling(folder, REPLAY, ReplayResult)
    energy, energy_home, no_energy = sibling(folder, ENERGY, EnergyResult)
    extras = Extras(tuple(_shapes(traces)), replay, _link(replay_home, out), energy, _link(energy_home, out))
    missing = [*lost, *_missing_ranks(run, traces), *no_replay, *no_energy]
    findings = write_report(catalogue, extras, _about(folder, run), out, missing=missing)
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


def _shapes(traces: Sequence[Trail]) -> list[LinearShape]:
    paths = [trail.linear_shapes for trail in traces if trail.linear_shapes]
    return [line for path in paths for line in read_lines(path, LinearShape)]


def sibling(folder: Path, name: str, kind: type[_Result]) -> tuple[_Result | None, Path, list[str]]:
    """The result `name` of this run, or of the newest run beside it that was made from it; its folder; and
    which newer ones cannot be read.
    """
    unread: list[str] = []
    beside = sorted(folder.resolve().parent.glob(f"*/{name}"), reverse=True)
    for path in chain([folder / name], (one for one in beside if _made_from(one.parent, folder))):
        if path.is_file():
            try:
                return msgspec.json.decode(path.read_bytes(), type=kind), path.parent, unread
            except (OSError, msgspec.MsgspecError) as error:  # damaged, or of another version of lab
                unread.append(f"{path.parent.name}/{name} cannot be read and is not on this page: {error}")
    return None, folder, unread


def _link(home: Path, out: Path) -> str:
    """How a page in `out` links the folder `home`: "" or a path that ends in a slash."""
    relative = os.path.relpath(home, out)
    return "" if relative == "." else f"{relative}/"


def _made_from(candidate: Path, folder: Path) -> bool:
    if not Run.is_run(candidate):
        return False
    try:
        source = Run.open(candidate).manifest.config.get("source", "")
    except LabError:
        return False
    same = bool(source) and os.path.realpath(source) == str(folder.resolve())
    # Runs that were copied elsewhere together: the recorded path is gone, its last part still matches.
    moved = bool(source) and not Path(source).exists() and Path(source).name == folder.resolve().name
    return same or moved
