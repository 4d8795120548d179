"""Index the runs below a folder: read once, kept in a cache, read again only where files changed.

Tells which of them are going on and shows their last lines, without touching any lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import msgspec

import lab
from lab.core import findings as findings_file
from lab.core import manifest as manifests
from lab.core.files import cache_folder, write_atomic
from lab.core.findings import FINDINGS, Findings
from lab.core.manifest import Manifest
from lab.core.run import LOCK, LOG, MANIFEST
from lab.core.words import printable
from lab.errors import LabError, MissingError
from lab.serve.rows import RunRow, TableFile, analysis_row, broken_row, row_of
from lab.serve.walk import RunFiles, Walk, inside, opened, stamp, walk

TAIL_BYTES = 16 << 10
MOST_LOGS = 8  # of ranks of one step
RUNNING, ANALYSING = "running", "being analysed"
LEFT, ELSEWHERE = "left by its driver", "begun on another host"
GOING = (RUNNING, ANALYSING)


def activity(folder: Path, row: RunRow, locks: set[tuple[int, int]] | None = None) -> str:
    """Say what an open run is doing; "" for one that has ended.

    A driver holds a lock on its run for as long as it lives, and /proc/locks names it. Trying the lock would
    hold it, and make a driver that starts then fail.
    """
    if not may_go_on(row):
        return ""
    try:
        lock = os.lstat(folder / LOCK)
    except OSError:
        lock = None
    held = locks if locks is not None else held_locks()
    if lock and (lock.st_dev, lock.st_ino) in held:
        return RUNNING if row.state in ("open", "planned") else ANALYSING
    if row.state != "open":
        return ""
    return LEFT if row.host == socket.gethostname() else ELSEWHERE


def may_go_on(row: RunRow) -> bool:
    """Whether steps or the verdict of a run are not there yet."""
    return row.state in ("open", "planned") or (row.state in ("done", "failed") and not row.verdict)


def held_locks() -> set[tuple[int, int]]:
    """(device, inode) of every file of this machine on which a lock is held."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return set()
    return {
        (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        for line in lines
        if len(line) > 5 and line[1] != "->" and line[5].count(":") == 2
        for major, minor, inode in [line[5].split(":")]
    }


def tail(folder: Path, name: str, most_lines: int = 40) -> list[str]:
    """The last lines of a log, at most TAIL_BYTES of it; [] without one."""
    try:
        file = opened(folder, name)
    except LabError:
        return []
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()
    return [printable(line) for line in (lines[1:] if size > TAIL_BYTES else lines)[-most_lines:]]


def live_tail(folder: Path, row: RunRow) -> dict[str, list[str]]:
    """The last lines of each step that is going on: of its log, else of its ranks' logs."""
    return {step.name: _last_lines(folder, step.folder) for step in row.steps if step.status == "begun"}


def _last_lines(folder: Path, step: str) -> list[str]:
    if lines := tail(folder, f"{step}/{LOG}"):
        return lines
    try:
        names = sorted(name for name in os.listdir(inside(folder, step)) if name.endswith(".log"))
    except (LabError, OSError):
        return []
    tails = ((name, tail(folder, f"{step}/{name}", 8)) for name in names[:MOST_LOGS])
    return [f"{name}: {line}" for name, lines in tails for line in lines]


SCHEMA = 3  # of the cache
NO_FILE = "is a link, or no file at all: it is not read"
MOST_MANIFEST_BYTES = 64 << 20
MOST_TABLES = 500  # of one run
TABLE_SUFFIXES = (".csv", ".parquet")


class Entry(msgspec.Struct, frozen=True):
    files: RunFiles
    row: RunRow


class _Cache(msgspec.Struct):
    schema: int
    lab: str
    root: str
    entries: list[Entry]


class Index:
    """The runs below `root`. Safe for threads; `refresh` looks at the files at most once in `rest_s`."""

    def __init__(self, root: Path, *, cache: bool = True, rest_s: float = 0.5) -> None:
        if not root.is_dir():
            raise MissingError("no such folder", location=root, fix="name the folder that holds the runs")
        self.root = root.resolve()
        self.rows: list[RunRow] = []
        self.unseen: tuple[str, ...] = ()
        self.recordings: tuple[str, ...] = ()  # that belong to no run
        self.locks: set[tuple[int, int]] = set()  # held when the rows were read
        self.version = 0  # grows with every change
        self._entries: dict[str, Entry] = {}
        self._by_key: dict[str, RunRow] = {}
        self._rest_s = rest_s
        self._looked = 0.0
        self._mutex = threading.Lock()
        self._cache = cache_folder() / "index" / f"{_digest(str(self.root))}.json" if cache else None
        self._load()

    def refresh(self) -> list[RunRow]:
        """The rows, newest first."""
        with self._mutex:
            if not self._looked or time.monotonic() - self._looked >= self._rest_s:
                # Before the manifests: a driver that has given up its lock has written all that it will.
                self.locks = held_locks()
                self._look(walk(self.root))
                self._looked = time.monotonic()
            return self.rows

    def by_key(self, key: str) -> RunRow | None:
        """The run with this key, which names it in addresses."""
        self.refresh()
        return self._by_key.get(key)

    def path(self, row: RunRow) -> Path:
        return self.root / row.folder

    def find(self, name: str) -> RunRow:
        """A run by its folder below the root, its id, or the folder's last part. Raises MissingError."""
        rows = self.refresh()
        wanted = name.rstrip("/")
        matches = [row for row in rows if row.folder == wanted] or [
            row for row in rows if wanted in (row.id, row.folder.rsplit("/", 1)[-1], key_of(row))
        ]
        if len(matches) != 1:
            words = "several runs are" if matches else "no run is"
            raise MissingError(
                f"{words} named {name!r} here", location=self.root, fix="lab query 'select run from runs'"
            )
        return matches[0]

    def _look(self, below: Walk) -> None:
        new = {}
        for files in below.runs:
            entry = self._entries.get(files.folder)
            unchanged = entry is not None and entry.files == files
            new[files.folder] = entry if entry and unchanged else Entry(files, read_row(self.root, files))
        changed = len(new) != len(self._entries) or any(
            self._entries.get(folder) is not entry for folder, entry in new.items()
        )
        self.unseen, self.recordings = below.unseen, below.recordings
        if not changed and self.version:
            return
        self._entries = new
        self.rows = sorted((one.row for one in new.values()), key=lambda row: row.created_utc, reverse=True)
        self._by_key = {key_of(row): row for row in self.rows}
        self.version += 1
        if changed:
            self._save()

    def _load(self) -> None:
        """What an earlier look found; a cache that cannot be used is as good as none."""
        if self._cache is None:
            return
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
            cache = msgspec.json.decode(self._cache.read_bytes(), type=_Cache)
            if (cache.schema, cache.lab, cache.root) == (SCHEMA, lab.__version__, str(self.root)):
                self._entries = {entry.files.folder: entry for entry in cache.entries}

    def _save(self) -> None:
        if self._cache is None:
            return
        cache = _Cache(SCHEMA, lab.__version__, str(self.root), list(self._entries.values()))
        with contextlib.suppress(LabError, UnicodeEncodeError):  # without a cache the next start is slower
            write_atomic(self._cache, msgspec.json.encode(cache))


def key_of(row: RunRow) -> str:
    """Names a run in addresses: 16 hexadecimal digits of its folder's hash."""
    return _digest(row.folder)


def read_row(root: Path, files: RunFiles) -> RunRow:
    """Read the row of one folder; what cannot be read is a row with the reason."""
    path, folder = root / files.folder, _as_text(files.folder)
    if folder != files.folder:
        return broken_row(folder, "the folder's name is not UTF-8: rename it", _when(files))
    findings = _findings(path, files)
    if MANIFEST in files.odd:
        return broken_row(folder, f"{MANIFEST} {NO_FILE}", _when(files))
    if files.manifest is None:
        if not isinstance(findings, Findings):
            return broken_row(folder, str(findings), _when(files))
        row = analysis_row(folder, findings)
    else:
        manifest = _manifest(path, files)
        if isinstance(manifest, str):
            return broken_row(folder, manifest, _when(files))
        row = row_of(folder, manifest, findings)
    return msgspec.structs.replace(row, tables=_tables(path) if files.tables else ())


def _manifest(run: Path, files: RunFiles) -> Manifest | str:
    if files.manifest and files.manifest.size > MOST_MANIFEST_BYTES:
        return f"the manifest has {files.manifest.size:,} bytes, more than {MOST_MANIFEST_BYTES:,}"
    try:
        return manifests.load(run / MANIFEST)
    except LabError as error:
        return error.problem
    except RecursionError:
        return "the manifest is nested too deeply"


def _findings(run: Path, files: RunFiles) -> Findings | str | None:
    if FINDINGS in files.odd:
        return f"{FINDINGS} {NO_FILE}"
    if files.findings is None:
        return None
    try:
        return findings_file.load(run / FINDINGS)
    except LabError as error:
        return error.problem


def _tables(run: Path) -> tuple[TableFile, ...]:
    tables = []
    with contextlib.suppress(OSError), os.scandir(run / "tables") as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            state = stamp(entry.path) if suffix in TABLE_SUFFIXES and not name.startswith(".") else None
            if state and _as_text(entry.name) == entry.name:
                file = f"tables/{entry.name}"
                tables.append(TableFile(name=name, file=file, size_bytes=state.size, mtime_ns=state.mtime_ns))
            if len(tables) >= MOST_TABLES:
                break
    return tuple(sorted(tables, key=lambda table: table.file))


def _as_text(name: str) -> str:
    """Escape bytes that are not UTF-8, so that any answer can carry the name."""
    return name.encode("utf-8", "backslashreplace").decode()


def _when(files: RunFiles) -> str:
    newest = max((one.mtime_ns for one in (files.manifest, files.findings) if one), default=0)
    return datetime.fromtimestamp(newest / 1e9, timezone.utc).isoformat(timespec="milliseconds")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
