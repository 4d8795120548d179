"""The index of runs below a folder: read once, kept in a cache, and read again only where files changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
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
from lab.core.run import MANIFEST
from lab.errors import LabError, MissingError
from lab.serve.live import held_locks
from lab.serve.rows import RunRow, TableFile, analysis_row, broken_row, row_of
from lab.serve.walk import Seen, Walk, stamp, walk

SCHEMA = 2  # of the cache
NO_FILE = "is a link, or no file at all: it is not read"
MOST_MANIFEST_BYTES = 64 << 20
MOST_TABLES = 500  # of one run
TABLE_SUFFIXES = (".csv", ".parquet")


class Entry(msgspec.Struct, frozen=True):
    seen: Seen
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
            raise MissingError("no such folder", where=root, fix="name the folder that holds the runs")
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
                # Before the manifests: a driver that holds no lock any more has written all that it will.
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
        found = [row for row in rows if row.folder == wanted] or [
            row for row in rows if wanted in (row.id, row.folder.rsplit("/", 1)[-1], key_of(row))
        ]
        if len(found) != 1:
            words = "several runs are" if found else "no run is"
            raise MissingError(
                f"{words} named {name!r} here", where=self.root, fix="lab query 'select run from runs'"
            )
        return found[0]

    def _look(self, seen: Walk) -> None:
        new = {}
        for one in seen.seen:
            known = self._entries.get(one.folder)
            new[one.folder] = known if known and known.seen == one else Entry(one, read_row(self.root, one))
        changed = len(new) != len(self._entries) or any(
            self._entries.get(folder) is not entry for folder, entry in new.items()
        )
        self.unseen, self.recordings = seen.unseen, seen.recordings
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
            kept = msgspec.json.decode(self._cache.read_bytes(), type=_Cache)
            if (kept.schema, kept.lab, kept.root) == (SCHEMA, lab.__version__, str(self.root)):
                self._entries = {one.seen.folder: one for one in kept.entries}

    def _save(self) -> None:
        if self._cache is None:
            return
        kept = _Cache(SCHEMA, lab.__version__, str(self.root), list(self._entries.values()))
        with contextlib.suppress(LabError, UnicodeEncodeError):  # without a cache the next start is slower
            write_atomic(self._cache, msgspec.json.encode(kept), lasting=False)


def key_of(row: RunRow) -> str:
    """Names a run in addresses: 16 hexadecimal digits of its folder's hash."""
    return _digest(row.folder)


def read_row(root: Path, seen: Seen) -> RunRow:
    """The row of one folder, read anew; what cannot be read is a row with the reason."""
    here, folder = root / seen.folder, _as_text(seen.folder)
    if folder != seen.folder:
        return broken_row(folder, "the folder's name is not UTF-8: rename it", _when(seen))
    found = _findings(here, seen)
    if MANIFEST in seen.odd:
        return broken_row(folder, f"{MANIFEST} {NO_FILE}", _when(seen))
    if seen.manifest is None:
        if isinstance(found, Findings):
            row = analysis_row(folder, found)
        else:
            return broken_row(folder, str(found), _when(seen))
    else:
        manifest = _manifest(here, seen)
        if isinstance(manifest, str):
            return broken_row(folder, manifest, _when(seen))
        row = row_of(folder, manifest, found)
    return msgspec.structs.replace(row, tables=_tables(here) if seen.tables else ())


def _manifest(here: Path, seen: Seen) -> Manifest | str:
    if seen.manifest and seen.manifest.size > MOST_MANIFEST_BYTES:
        return f"the manifest has {seen.manifest.size:,} bytes, more than {MOST_MANIFEST_BYTES:,}"
    try:
        return manifests.load(here / MANIFEST)
    except LabError as error:
        return error.what
    except RecursionError:
        return "the manifest is nested too deeply"


def _findings(here: Path, seen: Seen) -> Findings | str | None:
    if FINDINGS in seen.odd:
        return f"{FINDINGS} {NO_FILE}"
    if seen.findings is None:
        return None
    try:
        return findings_file.load(here / FINDINGS)
    except LabError as error:
        return error.what


def _tables(here: Path) -> tuple[TableFile, ...]:
    found = []
    with contextlib.suppress(OSError), os.scandir(here / "tables") as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            is_at = stamp(entry.path) if suffix in TABLE_SUFFIXES and not name.startswith(".") else None
            if is_at and _as_text(entry.name) == entry.name:
                file = f"tables/{entry.name}"
                found.append(TableFile(name=name, file=file, size_bytes=is_at.size, mtime_ns=is_at.mtime_ns))
            if len(found) >= MOST_TABLES:
                break
    return tuple(sorted(found, key=lambda one: one.file))


def _as_text(name: str) -> str:
    """Bytes that are no UTF-8 escaped, so that any answer can hold the name."""
    return name.encode("utf-8", "backslashreplace").decode()


def _when(seen: Seen) -> str:
    newest = max((one.mtime_ns for one in (seen.manifest, seen.findings) if one), default=0)
    return datetime.fromtimestamp(newest / 1e9, timezone.utc).isoformat(timespec="milliseconds")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
