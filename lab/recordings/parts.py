"""Project the ranges of a recording onto its launches, process by process, and keep the part asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.errors import MissingError
from lab.recordings.calls import replays_graphs
from lab.recordings.capture import Capture
from lab.recordings.graphs import load_sources
from lab.recordings.graphs.join import executed_batches
from lab.recordings.graphs.origins import RULE, Origins, origins_of
from lab.recordings.processes import process_label, single_processes
from lab.recordings.projection import Projection, Wanted, project, select


def project_part(
    capture: Capture,
    attribution: str,
    phases: re.Pattern[str],
    wanted: Wanted,
    *,
    pid: str | None = None,
    together: bool = False,
    graph_captures: Sequence[Path] | None = None,
) -> list[tuple[int, Projection]]:
    """-> (index of the process in the capture, its projection) for each process, or for the one with `pid`.

    together: all processes in one projection, unless pid is set. graph_captures: recordings that name the
    operators of graph replays; None leaves replays as they were recorded, as the reports of nsys do.
    Raises MissingError where the capture has no such process, range or step, or nothing in the window.
    """
    if together and not pid:
        singles = {0: capture}
    else:
        singles = single_processes(capture)
    if pid:
        singles = {index: single for index, single in singles.items() if str(single.processes[0].pid) == pid}
    if not singles:
        pids = [str(process.pid) for process in capture.processes if process.pid is not None]
        raise MissingError(
            f"no process {str(pid)[:20]}; the recording has {(', '.join(pids) or 'none')[:300]}",
            location=capture.source,
        )
    projections: list[tuple[int, Projection]] = []
    origins = None
    errors: list[MissingError] = []
    left_out: list[str] = []
    for index, single in singles.items():
        try:
            if graph_captures is not None:
                single, origins = with_origins(single, graph_captures)
            projection = project(single, attribution, phases, origins)
            projections.append((index, select(projection, wanted, phases)))
        except MissingError as error:
            errors.append(error)
            left_out.append(f"{process_label(single.processes[0], index)} is left out: {error.problem}")
    if not projections:
        raise errors[0]
    index, projection = projections[0]
    return [(index, replace(projection, problems=[*projection.problems, *left_out])), *projections[1:]]


def with_origins(capture: Capture, graph_captures: Sequence[Path] = ()) -> tuple[Capture, Origins | None]:
    """-> the capture of one process, judged by the recordings of its graphs' captures, and where replayed
    nodes come from: None where no graph was replayed and no such recording is given."""
    if not graph_captures and not replays_graphs(capture):
        return capture, None
    sources, notes = load_sources(graph_captures, executed_batches(capture)) if graph_captures else ([], [])
    origins = origins_of(capture, sources)
    lacks = (*(lack for lack in capture.lacks if lack.rule != RULE), *origins.lacks)
    return replace(capture, problems=[*capture.problems, *notes], lacks=lacks), origins
