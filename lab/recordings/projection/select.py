"""A part of a projected recording: some ranges, some steps, a window of time."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.core.words import first_few, plural
from lab.errors import MissingError
from lab.recordings.capture import OP, Capture
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import PHASES
from lab.recordings.projection.result import Part, Projection, phases_of_other_threads
from lab.recordings.projection.sums import instance_sums, path_tree
from lab.recordings.tables import Table

_NUMBER = re.compile(r"(\d+)\D*$")


@dataclass(frozen=True)
class Wanted:
    """What to select; everything that is given must hold.

    range: name of ranges, or a regular expression that fits names in full; steps: numbers of measured
    steps, as in their names; start_ns and end_ns: a window on the recording's clock, end excluded.
    """

    range: str | None = None
    steps: frozenset[int] | None = None
    start_ns: int | None = None
    end_ns: int | None = None

    def __bool__(self) -> bool:
        return self != Wanted()


def select(projection: Projection, wanted: Wanted, phases: re.Pattern[str] = PHASES) -> Projection:
    """The operations, calls, ranges and steps of a part of the recording.

    An operation or call is in a range or a step by the rules of the projection, and in a window if it begins
    in it. Steps count if they own any of the operations that are left, and lie whole in the window.
    Raises MissingError where nothing fits.
    """
    if not wanted:
        return projection
    capture = projection.capture
    masks = [np.ones(len(table), dtype=bool) for table in _tables(capture)]
    steps = projection.steps
    words: list[str] = []
    if wanted.steps is not None:
        rows = _steps_numbered(projection, wanted.steps)
        masks = _both(masks, _launched_in(projection, rows, phases))
        words.append(_steps_text(wanted.steps))
    if wanted.range is not None:
        rows = _ranges_named(projection, wanted.range)
        masks = _both(masks, _launched_in(projection, rows, phases))
        words.append(f"ranges `{wanted.range}`")
    if wanted.start_ns is not None or wanted.end_ns is not None:
        masks = _both(masks, [_begins_in(table, wanted) for table in _tables(capture)])
        steps = steps[_begins_in(capture.ranges.take(steps), wanted)]
        if wanted.end_ns is not None:
            steps = steps[capture.ranges.end_ns[steps] <= wanted.end_ns]
        words.append(_window_text(wanted, capture))
    if not any(mask.any() for mask in masks):
        raise MissingError(
            f"nothing was recorded in {', '.join(words)}; the recording is {_length_ms(capture):g} ms long",
            location=capture.source,
        )
    ops, api, ranges, osrt = masks
    # Means are per step, so steps that own nothing of the part must not count.
    used = np.unique(projection.owners(steps)[ops])
    return _reduced(projection, Part(", ".join(words), ops, api, ranges, osrt, steps[used[used >= 0]]))


def _tables(capture: Capture) -> tuple[Table, Table, Table, Table]:
    return capture.ops, capture.api, capture.ranges, capture.osrt


def _both(masks: Sequence[np.ndarray], narrower: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [mask & narrow for mask, narrow in zip(masks, narrower, strict=True)]


def _steps_numbered(projection: Projection, wanted: frozenset[int]) -> np.ndarray:
    """Rows of the steps with these numbers in their names; without numbers, counted from 0."""
    capture, steps = projection.capture, projection.steps
    names = [capture.name(int(index)) for index in capture.ranges.name_id[steps]]
    numbers = [int(match[1]) if (match := _NUMBER.search(name)) else i for i, name in enumerate(names)]
    rows = steps[[number in wanted for number in numbers]] if len(steps) else steps
    if not len(rows):
        available = _numbers(numbers) if numbers else "none"
        raise MissingError(
            f"no measured {_steps_text(wanted)}; the recording has {available}", location=capture.source
        )
    return rows


def _steps_text(numbers: frozenset[int]) -> str:
    return f"step{'s' if len(numbers) > 1 else ''} {_numbers(numbers)}"


def _numbers(numbers: Collection[int]) -> str:
    return first_few([str(number) for number in sorted({*numbers})], 8)


def _ranges_named(projection: Projection, name: str) -> np.ndarray:
    capture = projection.capture
    try:
        pattern = re.compile(name)
    except re.error:
        pattern = re.compile(re.escape(name))

    def fits(text: str) -> bool:
        return text == name or pattern.fullmatch(text) is not None

    rows = np.flatnonzero(capture.by_text(fits, capture.ranges.name_id))
    if not len(rows):
        raise MissingError(
            f"no range is named {name!r}: {_other_names(capture, name)}", location=capture.source
        )
    return rows


def _other_names(capture: Capture, name: str) -> str:
    """Names of ranges with this text in them, else the program's own, most frequent first."""
    used = {capture.name(int(index)) for index in np.unique(capture.ranges.name_id)} - {""}
    near = sorted(one for one in used if name.lower() in one.lower())
    if near:
        return f"there are {', '.join(near[:5])}"
    program_names, counts = np.unique(capture.ranges.name_id[capture.ranges.kind != OP], return_counts=True)
    often = [capture.name(int(index)) for index in program_names[np.argsort(-counts, kind="stable")][:5]]
    examples = f", such as {', '.join(often)}" if often else ""
    return f"{plural(len(used), 'name')} of ranges are recorded{examples}"


def _launched_in(projection: Projection, rows: np.ndarray, phases: re.Pattern[str]) -> list[np.ndarray]:
    """Masks of `_tables`: what is in one of the ranges `rows`, by its thread, inherited or by its ends."""
    capture, parent = projection.capture, projection.instances.parent
    wanted = np.zeros(len(capture.ranges), dtype=bool)
    wanted[rows] = True

    def below(start: np.ndarray) -> np.ndarray:
        inside: np.ndarray = nearest_ancestor(parent, start, wanted) >= 0
        return inside

    ops = below(projection.ops.range) | below(projection.ops.inherited)
    ops[projection.loose.op[wanted[projection.loose.range]]] = True
    nest = projection.nest
    all_calls = np.arange(len(capture.api))
    inner = nest.around(capture, all_calls)
    api = below(inner)
    if projection.attribution == "full":
        inherited, _ = phases_of_other_threads(capture, nest, all_calls, inner, phases)
        api |= below(inherited)
    launched = projection.ops.api[ops]
    api[launched[launched >= 0]] = True
    of_os = nest.around(replace(capture, api=capture.osrt), np.arange(len(capture.osrt)))
    return [ops, api, below(np.arange(len(capture.ranges))), below(of_os)]


def _begins_in(table: Table, wanted: Wanted) -> np.ndarray:
    inside = np.ones(len(table), dtype=bool)
    if wanted.start_ns is not None:
        inside &= table.start_ns >= wanted.start_ns
    if wanted.end_ns is not None:
        inside &= table.start_ns < wanted.end_ns
    return inside


def _window_text(wanted: Wanted, capture: Capture) -> str:
    origin_ns = first_ns(capture)
    ends = [("from", wanted.start_ns), ("to", wanted.end_ns)]
    return " ".join(f"{word} {(at - origin_ns) / 1e6:g} ms" for word, at in ends if at is not None)


def first_ns(capture: Capture) -> int:
    """The earliest time in a recording, 0 in an empty one."""
    starts = [int(table.start_ns.min()) for table in _tables(capture) if len(table)]
    return min(starts, default=0)


def _length_ms(capture: Capture) -> float:
    ends = [int(table.end_ns.max()) for table in _tables(capture) if len(table)]
    return (max(ends, default=0) - first_ns(capture)) / 1e6


def _reduced(projection: Projection, part: Part) -> Projection:
    """The projection with these operations alone, and every sum made from them."""
    keep = np.flatnonzero(part.ops)
    capture = replace(projection.capture, ops=projection.capture.ops.take(keep))
    ops = projection.ops.take(keep)
    place = np.full(len(part.ops), -1, dtype=np.int64)
    place[keep] = np.arange(len(keep))
    loose = projection.loose.where(part.ops[projection.loose.op])
    loose = Table({"op": place[loose.op], "range": loose.range})
    sums = instance_sums(capture, projection.nest, ops.range, ops.inherited, loose.op, loose.range)
    tree = projection.tree
    return replace(
        projection,
        capture=capture,
        ops=ops,
        tree=path_tree(capture, tree.parent.tolist(), tree.name_id.tolist(), ops.path),
        instances=projection.instances.with_columns(**sums),
        loose=loose,
        part=part,
        origins=projection.origins.take(keep) if projection.origins is not None else None,
    )
