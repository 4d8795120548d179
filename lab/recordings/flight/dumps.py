"""Dumps of the flight recorder by rank: pickles and JSON, any names, numbers that may be texts."""

from __future__ import annotations

import json
import pickletools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.pieces import files_in, read_whole

MOST_BYTES, MOST_ENTRIES = 256 << 20, 1_000_000
# No real job has groups and texts beyond these.
MOST_GROUPS, LONGEST_INT = 65_536, 1 << 63
# The opcodes of a pickle of plain values, by what they do: none of these calls or imports anything.
_SKIPPED = {"PROTO", "FRAME", "STOP"}
_VALUES = {
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "FLOAT", "BINFLOAT"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
# So many values from the stack, -1 for all since the mark. A tuple is read as a list, which cannot be a key:
# nested ones in a few bytes would take for ever to hash.
_LISTS = {"EMPTY_LIST": 0, "EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": -1, "LIST": -1}
_DICTS = {"EMPTY_DICT": 0, "DICT": -1}
_STORES = {"APPEND": 1, "APPENDS": -1, "SETITEM": 2, "SETITEMS": -1}
_COUNTS = {**_LISTS, **_DICTS, **_STORES}
_RANK = re.compile(r"rank[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")
BATCH = "coalesced"  # the call that stands for several sends and receives, or collectives
_STACK = re.compile(r"stack|py-?spy|traceback", re.IGNORECASE)
_SUFFIXES = ("", ".pkl", ".pickle", ".json", ".bin", ".dump", ".trace")


@dataclass(frozen=True)
class Entry:
    """One collective, send or receive as a rank recorded it; frames innermost first.

    state is scheduled, started or completed (gloo writes the first alone). seq counts the collectives of a
    group, or its sends and receives with all peers together.
    """

    group: str
    seq: int
    is_p2p: bool
    name: str
    backend: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Dump:
    """One rank's dump. groups: name -> its ranks, empty where not recorded; status: (enqueued, completed).

    stack: the Python stack that lies beside the dump, "" for none.
    """

    entries: tuple[Entry, ...]
    groups: Mapping[str, tuple[int, ...]]
    status: Mapping[str, tuple[int, int]]
    stack: str = ""


def read_dumps(folder: Path, unread: dict[int, LabError] | None = None) -> dict[int, Dump]:
    """Read the dumps of one job: rank -> dump.

    The rank is `rank3` or the last number in a file's name; files without a number are not dumps, unless
    `folder` is the file. Of a pickle and a JSON of one rank the pickle is read, for it has the source lines.
    unread: takes the errors of unreadable dumps, by rank, if any can be read; without it the first is raised.
    Raises MissingError without dumps, BadDataError where none can be read or a rank is there twice.
    """
    paths, stacks = _paths(folder)
    dumps: dict[int, Dump] = {}
    errors: dict[int, LabError] = {}
    for rank, path in sorted(paths.items()):
        try:
            dumps[rank] = _read(path, _stack(stacks.get(rank)))
        except LabError as error:
            errors[rank] = error
    if errors and (unread is None or not dumps):
        raise next(iter(errors.values()))
    if unread is not None:
        unread.update(errors)
    if not dumps:
        raise MissingError(
            "no flight-recorder dumps here",
            location=folder,
            fix="set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT, or use `lab run --stall-timeout`",
        )
    return dumps


def _paths(folder: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """Rank -> its dump, and rank -> its Python stack."""
    paths: dict[int, Path] = {}
    stacks: dict[int, Path] = {}
    for path in _files(folder):
        rank = _rank_in(path)
        if rank is None and path == folder:
            rank = 0
        if rank is None:
            continue
        if _STACK.search(path.name):
            stacks[rank] = path
        elif path.suffix.lower() in _SUFFIXES or path.suffix[1:].isdigit():
            if rank in paths and paths[rank].stem != path.stem:
                raise BadDataError(
                    f"two dumps of rank {rank}: {paths[rank].name} and {path.name}",
                    location=folder,
                    fix="give a folder with the dumps of one job alone",
                )
            if rank not in paths or path.suffix.lower() != ".json":
                paths[rank] = path
    return paths, stacks


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise MissingError("no such folder", location=folder, fix="give the folder of the ranks' dumps")
    return files_in(folder, "give a folder with the dumps of one job alone")


def _rank_in(path: Path) -> int | None:
    stem = path.name[: -len(path.suffix)] if path.suffix.lower() in (*_SUFFIXES[1:], ".txt") else path.name
    match = _RANK.search(stem) or _LAST_NUMBER.search(stem)
    return int(match.group(1)) if match else None


def _stack(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open("rb") as file:
        return file.read(1 << 16).decode("utf-8", "replace")


def _read(path: Path, stack: str) -> Dump:
    data = read_whole(path, MOST_BYTES)
    document = _json(data, path) if data.lstrip()[:1] in (b"{", b"[") else _unpickled(data, path)
    is_dump = isinstance(document, dict) and {"entries", "pg_config", "pg_status"} & document.keys()
    entries = document.get("entries", []) if is_dump else None
    if not isinstance(entries, list):
        raise BadDataError("no flight-recorder dump: it has no list of entries", location=path)
    if len(entries) > MOST_ENTRIES:
        raise BadDataError(f"more than {MOST_ENTRIES} entries", location=path)
    status = document.get("pg_status")
    return Dump(
        entries=tuple(_in_batches(_distinct(entries), is_cut=_is_cut(entries))),
        groups=_groups(document.get("pg_config")),
        status={
            _text(key): (
                _int(row.get("last_enqueued_collective")),
                _int(row.get("last_completed_collective")),
            )
            for key, row in (status.items() if isinstance(status, dict) else ())
            if isinstance(row, dict)
        },
        stack=stack,
    )


def _json(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"no flight-recorder dump: not JSON ({error})", location=path) from error


def _unpickled(data: bytes, path: Path) -> Any:
    """The plain values of a pickle, by its opcodes; any other opcode is refused."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def run(name: str, argument: Any) -> None:
        if name in _COUNTS:
            count = _COUNTS[name]
            start = marks.pop() if count < 0 else len(stack) - count
            items = stack[start:]
            del stack[start:]
            if name in _LISTS:
                stack.append(items)
            elif name in _DICTS:
                stack.append(dict(zip(items[::2], items[1::2], strict=True)))
            elif isinstance(stack[-1], list):
                stack[-1].extend(items)
            else:
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _PUTS:
            memo[len(memo) if argument is None else int(argument)] = stack[-1]
        elif name in _GETS:
            stack.append(memo[int(argument)])
        else:
            stack.append(_CONSTANTS.get(name, argument))

    fix = "only dumps of plain values are read: texts, numbers, lists and dicts"
    plain_opcodes = {*_VALUES, *_CONSTANTS, *_COUNTS, *_PUTS, *_GETS, "MARK"}
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name in plain_opcodes:
                run(opcode.name, argument)
            elif opcode.name not in _SKIPPED:
                problem = (
                    f"not a plain dump: its pickle may run code ({opcode.name} at byte {position}): refused"
                )
                raise BadDataError(problem, location=path, fix=fix)
        return stack[-1]
    except (ValueError, LookupError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        problem = f"not a plain dump, or not a whole one ({type(error).__name__}: {error})"
        raise BadDataError(problem, location=path, fix=fix) from error


def _distinct(entries: Sequence[Any]) -> Iterator[tuple[Entry, int]]:
    """The entries with their p2p number, each once: a list that names one a million times has one."""
    seen_ids: set[int] = set()
    cache: dict[tuple[Any, int], tuple[Any, ...]] = {}
    for entry in entries:
        if isinstance(entry, dict) and id(entry) not in seen_ids:
            seen_ids.add(id(entry))
            yield _entry(entry, cache), _int(entry.get("p2p_seq_id"))


def _is_cut(entries: Sequence[Any]) -> bool:
    """Whether the ring has overwritten what came before the first entry."""
    return bool(entries) and isinstance(entries[0], dict) and _int(entries[0].get("record_id")) > 0


def _in_batches(entries: Iterator[tuple[Entry, int]], *, is_cut: bool) -> Iterator[Entry]:
    """Give the sends and receives of a batch the batch's end; entries come with their p2p number.

    ProcessGroupNCCL records a batch after its members, as "coalesced" with their number. The members stay
    "scheduled" for ever, and the batch of sends and receives is not marked p2p (torch 2.11 on two H200s): it
    would pass for a collective that has the number of another. So would one whose members the ring has
    overwritten: the first of its group in a dump that is cut, which may be one of transfers.
    """
    groups: set[str] = set()  # of which an entry has come
    waiting: dict[str, list[tuple[Entry, int]]] = {}  # by group: what no batch has closed yet
    for entry, p2p_seq in entries:
        is_first = entry.group not in groups
        groups.add(entry.group)
        if entry.is_p2p and entry.name != BATCH:
            waiting.setdefault(entry.group, []).append((entry, p2p_seq))
            continue
        if entry.name == BATCH:
            members = waiting.pop(entry.group, [])
            # A plain send before a batch of collectives has the batch's number, too, but a state of its own.
            is_p2p = entry.is_p2p or any(
                number == p2p_seq and member.state == "scheduled" for member, number in members
            )
            is_p2p |= is_cut and is_first and p2p_seq > 0
            for member, number in members:
                has_ended = entry.state == "completed" and number == p2p_seq
                yield replace(member, state="completed", retired=True) if has_ended else member
            entry = replace(entry, is_p2p=is_p2p, seq=p2p_seq if is_p2p else entry.seq)
        yield entry
    for members in waiting.values():
        yield from (member for member, _ in members)


def _entry(row: Mapping[Any, Any], cache: dict[tuple[Any, int], tuple[Any, ...]]) -> Entry:
    """cache: what was read of lists that entries share, by identity."""

    def shared(read: Callable[[Any], Any], name: str) -> tuple[Any, ...]:
        key = read, id(row.get(name))
        if key not in cache:
            cache[key] = tuple(read(row.get(name)))
        return cache[key]

    group = row.get("process_group")
    backend, _, call = _text(row.get("profiling_name", "")).rpartition(":")
    is_p2p = bool(row.get("is_p2p"))
    return Entry(
        group=_text(group[0] if isinstance(group, (list, tuple)) and group else row.get("pg_id", "")),
        seq=_int(row.get("p2p_seq_id" if is_p2p else "collective_seq_id")),
        is_p2p=is_p2p,
        name=call,
        backend=backend,
        input_sizes=shared(_sizes, "input_sizes"),
        output_sizes=shared(_sizes, "output_sizes"),
        dtypes=shared(_dtypes, "input_dtypes"),
        state=_text(row.get("state", "")),
        retired=bool(row.get("retired")),
        created_ns=_int(row.get("time_created_ns")),
        frames=shared(_frames, "frames"),
    )


def _dtypes(value: Any) -> Iterator[str]:
    return (_text(kind) for kind in _list(value)[:64])


def _frames(value: Any) -> Iterator[str]:
    for frame in _list(value)[:64]:
        if isinstance(frame, dict):
            file, name = _text(frame.get("filename", "?")), _text(frame.get("name", "?"))
            yield f"{file}:{_int(frame.get('line'))} in {name}"


def _sizes(value: Any) -> Iterator[tuple[int, ...]]:
    return (tuple(_int(n) for n in _list(shape)[:16]) for shape in _list(value)[:4096])


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    cache: dict[int, tuple[int, ...]] = {}  # by identity: groups of a hostile dump may share one long list
    for key, row in list(config.items())[:MOST_GROUPS] if isinstance(config, dict) else ():
        if not isinstance(row, dict):
            continue
        ranks = row.get("ranks", "")
        if id(ranks) not in cache:
            text = ranks[: 1 << 20] if isinstance(ranks, str) else _text(ranks)
            numbers = ranks if isinstance(ranks, (list, tuple)) else re.findall(r"\d{1,7}", text)
            cache[id(ranks)] = tuple(sorted({_int(number) for number in numbers}))
        groups[_text(row.get("name", key))] = cache[id(ranks)]
    return groups


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _int(value: Any) -> int:
    """An integer of at most 63 bits, -1 for anything else."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else -1
    except (ValueError, OverflowError):
        return -1
    return number if abs(number) < LONGEST_INT else -1


def _text(value: Any) -> str:
    """Printable and short: dumps come from outside, and their texts reach a terminal."""
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value[:300]).decode("utf-8", "replace")
    elif isinstance(value, int):
        value = value if abs(value) < LONGEST_INT else "?"
    elif not isinstance(value, (str, float, type(None))):
        value = f"a {type(value).__name__}"  # written out, a few shared lists could fill the memory
    return "".join(char if char.isprintable() else "?" for char in str(value)[:300])
