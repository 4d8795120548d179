"""Export one run in one format."""

from __future__ import annotations

from pathlib import Path

from lab.core.files import make_folder
from lab.errors import LabError, MissingError, not_here
from lab.serve.export.sheets import safe, write_parquet, write_xlsx
from lab.serve.export.timelines import MISSING, write_perfetto
from lab.serve.walk import recordings_below


def export_run(run: Path, form: str, out: Path) -> tuple[list[Path], list[str]]:
    """The files written into `out`, and sentences about what is not in them.

    Raises MissingError where there is nothing to export, and what a reader raises for a single recording.
    """
    if not run.exists():
        raise not_here("no such run or recording", run)
    make_folder(out)
    place = run.resolve().name
    name = safe(place.split(".", 1)[0] if run.is_file() else place)
    if form == "xlsx":
        target = out / f"{name}.xlsx"
        notes = write_xlsx(run, target)
        return ([target] if target.exists() else []), notes
    if form == "parquet":
        written, notes = write_parquet(run, make_folder(out / name))
        if not written:
            raise MissingError(
                "neither tables nor recordings", location=run, fix="; ".join(notes[:3]) or None
            )
        return written, notes
    return _timelines(run, out, name)


def _timelines(run: Path, out: Path, name: str) -> tuple[list[Path], list[str]]:
    groups = recordings_below(run)
    if not groups:
        raise MissingError(
            "no recording in this run", location=run, fix="lab inspect shows what a folder contains"
        )
    written: list[Path] = []
    notes: list[str] = []
    for group, paths in groups.items():
        stem = name if run.is_file() else f"{name}_{safe(group)}" if group != "." else name
        target = out / f"{stem}.json.gz"
        try:
            left = write_perfetto(paths, target)
            written.append(target)
        except LabError as error:
            if len(groups) == 1:
                raise
            left = [f"left out: {error.problem}"]
        notes += [with_place(text, group) for text in left]
    return written, notes


def with_place(note: str, place: str) -> str:
    """Put the place into a note, behind its prefix."""
    prefix = next((text for text in MISSING if note.startswith(text)), "")
    return f"{prefix} {place}: {note[len(prefix) :].strip()}" if prefix else f"{place}: {note}"
