"""NVTX ranges of an export."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import OP, PUSH_POP, RANGE_COLUMNS, START_END, filled
from lab.recordings.lacks import Lack
from lab.recordings.nsys.export import PREFIX, Export, host_pid_of, tid_of
from lab.recordings.nsys.operations import with_valid_ends
from lab.recordings.nsys.strings import StringIds
from lab.recordings.tables import Table

# Values of NVTX_EVENTS.eventType.
_PUSH_POP, _START_END, _OLD_PUSH_POP, _OLD_START_END, _DOMAIN = 59, 60, 70, 71, 75
_SIZES = re.compile(r", sizes = (\[[\[\]\d, ]*\])")
_OPERATOR = re.compile(r"::|^(detach_?|record_param_comms)$|Backward\d*$")
_KIND_OF = {_PUSH_POP: PUSH_POP, _OLD_PUSH_POP: PUSH_POP, _START_END: START_END, _OLD_START_END: START_END}


def read_ranges(export: Export, strings: StringIds) -> Table:
    """Push/pop and start/end ranges; text_id and domain are ids of StringIds, or below -1."""
    schema = RANGE_COLUMNS | {"text_id": np.int64, "domain": np.int64, "still_open": np.int8}
    if "NVTX_EVENTS" not in export.tables:
        return filled(schema, 0, {})
    found = export.numbers(
        "NVTX_EVENTS",
        {"start_ns": "start", "end_ns": "end", "type": "eventType", "at": "globalTid", "row": "rowid"},
        {"text_id": "textId", "domain_id": "domainId", "end_at": "endGlobalTid"},
        ("eventType", tuple(_KIND_OF)),
    )
    found["still_open"] = found["end_ns"] < 0
    _end_the_unfinished(export, found)
    with_valid_ends(export, "NVTX_EVENTS", found)
    found["kind"] = np.where(np.isin(found["type"], (_PUSH_POP, _OLD_PUSH_POP)), PUSH_POP, START_END)
    found |= {
        "pid": host_pid_of(found["at"]),
        "tid": tid_of(found["at"]),
        "end_tid": tid_of(np.where(found["end_at"] > 0, found["end_at"], -1)),
    }
    found["text_id"] = _texts(export, strings, found)
    found["domain"] = _domains(export, strings, found)
    return filled(schema, len(found["at"]), found)


def _end_the_unfinished(export: Export, found: dict[str, np.ndarray]) -> None:
    """A range that was open when recording ended lasts until the last time in the file, as in nsys."""
    still_open = found["end_ns"] < 0
    if not still_open.any():
        return
    tables = [PREFIX + name for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")]
    last = [export.largest(table, "end") for table in tables if table in export.tables]
    end = max([int(found["end_ns"].max()), int(found["start_ns"].max()), *last])
    found["end_ns"] = np.where(still_open, end, found["end_ns"])
    export.problems.append(f"{plural(int(still_open.sum()), 'range')} still open at the end of the recording")


def _texts(export: Export, strings: StringIds, found: dict[str, np.ndarray]) -> np.ndarray:
    """The range's own text where it has one, otherwise its entry in StringIds."""
    ids = found["text_id"].copy()
    if "text" in export.tables["NVTX_EVENTS"]:
        known: dict[object, int] = {}
        rows, own = [], []
        for row, text in export.rows("NVTX_EVENTS", ("rowid", "text"), ("eventType", tuple(_KIND_OF))):
            if text is None:
                continue
            if (index := known.get(text)) is None:
                index = known[text] = strings.add(str(text))
            rows.append(row)
            own.append(index)
        ids[np.searchsorted(found["row"], np.array(rows, dtype=np.int64))] = np.array(own, dtype=np.int64)
    return strings.use(ids)


def _domains(export: Export, strings: StringIds, found: dict[str, np.ndarray]) -> np.ndarray:
    """Named domains by (process, domain id); 0 is the default one."""
    if not {"domainId", "text"} <= export.tables["NVTX_EVENTS"]:
        return np.full(len(found["at"]), -1)
    named = {
        (at >> 24, domain): str(text)
        for at, domain, text in export.rows(
            "NVTX_EVENTS", ("globalTid", "domainId", "text"), ("eventType", (_DOMAIN,))
        )
        if text is not None and at is not None
    }
    keys = np.stack([found["at"] >> 24, found["domain_id"]], axis=1)
    used, which = np.unique(keys, axis=0, return_inverse=True)
    ids = [
        -1 if domain <= 0 else strings.add(named.get((process, domain), f"domain {domain}"))
        for process, domain in used.tolist()
    ]
    return np.array(ids, dtype=np.int64)[which.ravel()] if len(used) else np.empty(0, dtype=np.int64)


def never_closed(ranges: Table, texts: Sequence[str]) -> tuple[Lack, ...]:
    """Rule O: ranges that were pushed and never popped, though their like began later on their thread.

    Their like has the same name but for its numbers. A range that the end of the recording cuts off is usual;
    so is one around its like if others stand so, too (a recursion).
    """
    pushed = np.flatnonzero(ranges.kind == PUSH_POP)
    if not ranges.still_open[pushed].any():
        return ()
    names = {
        text: re.sub(r"\d+", "#", texts[text] if text >= 0 else "") for text in set(ranges.text_id.tolist())
    }
    ids = {name: index for index, name in enumerate(dict.fromkeys(names.values()))}
    key = np.array([ids[names[text]] for text in ranges.text_id[pushed].tolist()])
    columns = [getattr(ranges, name)[pushed] for name in ("process", "tid", "domain")]
    order = np.lexsort((ranges.start_ns[pushed], key, *columns))
    rows = pushed[order]
    like = np.all([column[order][1:] == column[order][:-1] for column in (key, *columns)], axis=0)
    opened = ranges.still_open[rows] > 0
    inside = like & (ranges.start_ns[rows[1:]] < ranges.end_ns[rows[:-1]])
    recursive = set(key[order][:-1][inside & ~opened[:-1]].tolist())
    lost = inside & opened[:-1] & ~np.isin(key[order][:-1], list(recursive))
    if not (n := int(lost.sum())):
        return ()
    text = (
        f"{n:,} of {plural(len(pushed), 'range')} were never closed, first "
        f"{_name(texts, ranges, rows, lost)}, though ranges of the same name follow on their thread: "
        "what ran later counts as theirs"
    )
    return (Lack("ops", "hole", "O", -1, n, len(pushed), n / len(pushed), text),)


def _name(texts: Sequence[str], ranges: Table, rows: np.ndarray, lost: np.ndarray) -> str:
    first = rows[:-1][lost]
    return repr(texts[ranges.text_id[first[np.argmin(ranges.start_ns[first])]]])


def with_bare_names(ranges: Table, strings: StringIds) -> Table:
    """The ranges with names without numbers and sizes; those of PyTorch's operators get the kind OP."""
    names, seqs = strings.strings.stripped(ranges.text_id)
    texts = strings.strings.texts
    used, which = np.unique(ranges.text_id, return_inverse=True)
    sizes = np.array([_sizes(texts[text]) if text >= 0 else "" for text in used.tolist()], dtype=object)
    dims = np.array([strings.strings.id(one) if one else -1 for one in sizes], dtype=np.int32)
    library = np.array([*(_OPERATOR.search(text) is not None for text in texts), False])[names]
    # emit_nvtx numbers operators and a program's own ranges alike; only operators have a sequence number
    # or a name of PyTorch's.
    operator = (ranges.kind == PUSH_POP) & (names != ranges.text_id) & ((seqs >= 0) | library)
    columns = {name: getattr(ranges, name) for name in ranges} | {"name_id": names, "seq": seqs}
    columns["kind"] = np.where(operator, OP, ranges.kind)
    columns["dims_id"] = dims[which] if len(used) else np.full(len(ranges), -1)
    return filled(RANGE_COLUMNS, len(ranges), columns)


def _sizes(text: str) -> str:
    """The shapes of an operator's inputs in the form of Kineto's `Input Dims`; "" where there are none."""
    found = _SIZES.search(text)
    return found[1].replace(" ", "") if found else ""
