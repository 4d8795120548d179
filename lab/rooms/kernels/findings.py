"""A kernels run from folder to findings, whatever its step was: profile, replay or energy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

import lab
from lab.core.provenance import lab_identity
from lab.core.run import Run
from lab.core.step import Status as StepStatus
from lab.errors import LabError, MissingError
from lab.rooms.kernels.catalogue import files
from lab.rooms.kernels.catalogue.launches import Catalogue, put_together, read_rank
from lab.rooms.kernels.energy.joules import RESULT as ENERGY
from lab.rooms.kernels.energy.joules import EnergyResult, analyse_energy, is_energy
from lab.rooms.kernels.replay.proof import RESULT as REPLAY
from lab.rooms.kernels.replay.proof import ReplayFindings, analyse_replay, is_replay
from lab.rooms.kernels.replay.proof import Result as ReplayResult
from lab.rooms.kernels.report import Extras, Findings, page_of_replay, report
from lab.rooms.kernels.schema import LinearShape, Trail, read_lines, trails

Progress = Callable[[str], None]
_Result = TypeVar("_Result", bound=msgspec.Struct)


def analyse_kernels(folder: Path, out: Path, run: Run | None, progress: Progress) -> Findings:
    """Profile -> catalogue and page; replay or energy -> its result and a page of it. All into `out`."""
    if is_energy(folder):
        return _with_page(analyse_energy(folder, out), out / ENERGY, EnergyResult, folder, out, run)
    if is_replay(folder):
        return _with_page(analyse_replay(folder, out), out / REPLAY, ReplayResult, folder, out, run)
    return analyse_profile(folder, out, run, progress)


def _with_page(
    found: ReplayFindings,
    result: Path,
    kind: type[ReplayResult] | type[EnergyResult],
    folder: Path,
    out: Path,
    run: Run | None,
) -> Findings:
    paths = list(found.files)
    if result in paths:
        read = msgspec.json.decode(result.read_bytes(), type=kind)
        paths.append(
            page_of_replay(
                out,
                f"Kernels {folder.resolve().name}",
                found.verdict,
                found.status,
                read,
                provenance(folder, run),
            )
        )
    known: dict[str, Literal["ok", "warn", "fail"]] = {"ok": "ok", "warn": "warn"}
    return Findings(found.verdict, known.get(found.status, "fail"), paths, found.terminal, found.lacking)


def analyse_profile(folder: Path, out: Path, run: Run | None, progress: Progress) -> Findings:
    """The traces of all ranks, the catalogue, the page. A rank that is not there is said, the others are analysed."""
    found = trails(folder)
    if not found:
        words = _why_no_trace(run)
        return Findings([words], "fail", [], words, [words])
    try:
        catalogue, lost = read_all(found, progress)
    except LabError as error:
        if not _failed(run):
            raise
        words = f"what the failed step left cannot be read: {error.what} ({error.where})"
        return Findings([words], "fail", [], words, [words])
    written = [*files.write_unique(catalogue, out), *files.write_launches(catalogue, out)]
    missing = _missing_ranks(run, found)
    replay, replay_home = sibling(folder, REPLAY, ReplayResult)
    energy, energy_home = sibling(folder, ENERGY, EnergyResult)
    extras = Extras(tuple(_shapes(found)), replay, _link(replay_home, out), energy, _link(energy_home, out))
    return report(
        catalogue,
        extras,
        out=out,
        title=f"Kernels {folder.resolve().name}",
        provenance=provenance(folder, run),
        files=written,
        lacking=[*lost, *missing],
        kind=run.manifest.kind.value if run else "measured",
    )


def read_all(found: Sequence[Trail], progress: Progress = lambda _: None) -> tuple[Catalogue, list[str]]:
    """The catalogue of the ranks that can be read, and what could not be. Raises the error if none can."""
    ranks, lost, last = [], [], None
    for trail in found:
        progress(f"  reading {trail.trace.name}")
        try:
            ranks.append(read_rank(trail))
        except LabError as error:
            last = error
            lost.append(f"rank {trail.rank}: {error.what} ({error.where or trail.trace})")
    if not ranks:
        raise last or MissingError("there is no trace", where=found[0].trace.parent if found else None)
    return put_together(ranks), lost


def _failed(run: Run | None) -> list[str]:
    """Why steps of this run did not succeed."""
    outcomes = [record.outcome for record in run.manifest.steps if record.outcome] if run else []
    return [outcome.reason for outcome in outcomes if outcome.status is not StepStatus.ok]


def _why_no_trace(run: Run | None) -> str:
    return ": ".join(["no trace was recorded", *_failed(run)[:1]])


def _missing_ranks(run: Run | None, found: Sequence[Trail]) -> list[str]:
    wanted = int(run.manifest.config.get("tp", 1)) if run else len(found)
    there = {trail.rank for trail in found}
    return [f"rank {rank} left no trace" for rank in range(wanted) if rank not in there]


def _shapes(found: Sequence[Trail]) -> list[LinearShape]:
    return [
        line
        for trail in found
        if trail.linear_shapes
        for line in read_lines(trail.linear_shapes, LinearShape)
    ]


def sibling(folder: Path, name: str, kind: type[_Result]) -> tuple[_Result | None, Path]:
    """The result `name` of this run, or of the newest run beside it that was made from this one, and its folder."""
    places = [folder / name, *sorted(folder.resolve().parent.glob(f"*/{name}"), reverse=True)]
    for path in places:
        if path.is_file() and (path.parent == folder or _made_from(path.parent, folder)):
            try:
                return msgspec.json.decode(path.read_bytes(), type=kind), path.parent
            except (OSError, msgspec.MsgspecError):
                continue  # of another lab; its own page tells it
    return None, folder


def _link(home: Path, out: Path) -> str:
    """A folder as a page in `out` links it."""
    relative = os.path.relpath(home, out)
    return "" if relative == "." else f"{relative}/"


def _made_from(other: Path, folder: Path) -> bool:
    if not Run.is_run(other):
        return False
    try:
        source = Run.open(other).manifest.config.get("source", "")
    except LabError:
        return False
    same = bool(source) and os.path.realpath(source) == str(folder.resolve())
    # Runs that were copied together still belong together.
    return same or (bool(source) and not Path(source).exists() and Path(source).name == folder.resolve().name)


def provenance(folder: Path, run: Run | None) -> dict[str, dict[str, str]]:
    """What the page says of where its numbers come from."""
    if run is None:
        return {
            "Recording": {"folder": str(folder), "manifest": "none: lab did not make this recording"},
            "Analysed by": {"lab": lab.__version__, "commit": lab_identity().commit or "unknown"},
        }
    made = run.manifest
    groups = {
        "Run": {
            "id": made.id,
            "created": made.created_utc,
            "command": " ".join(made.command),
            "engine": made.engine,
            "image": made.image.ref if made.image else "none",
            "lab": f"{made.lab.version} {made.lab.commit or ''}{' with local changes' if made.lab.dirty else ''}".strip(),
        },
        "GPUs": {f"{gpu.index}": f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in made.gpus}
        or {"none": "CPU run"},
        "Weights": _weights(folder),
        "Versions": made.versions,
        "Host": {name: str(value) for name, value in made.host.items()},
        "Configuration": {name: str(value) for name, value in made.config.items()},
        "Environment": made.env,
    }
    return {title: rows for title, rows in groups.items() if rows}


def _weights(folder: Path) -> dict[str, str]:
    from lab.rooms.kernels.schema import Generation, read_json

    for trail in trails(folder):
        if trail.generation:
            said = read_json(trail.generation, Generation)
            return {
                said.weights: said.weights_note,
                "dtype": said.dtype,
                "attention": said.attn,
                "tokens": f"{said.prompt_tokens} of prompt ({said.tokens_by or 'unknown how'}), {said.new_tokens} new",
                "unprofiled generation": f"{said.unprofiled_s:.4f} s",
            }
    return {}
