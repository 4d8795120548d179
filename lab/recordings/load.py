"""Any recording, recognised by its content rather than by its name."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab.errors import BadDataError, MissingError
from lab.recordings import nsys, sqlite
from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.capture import from_kineto

START_BYTES = 4096
_GZIP = b"\x1f\x8b"
_BLANK = b"\xef\xbb\xbf \t\r\n"
_ROCPD_TABLE = re.compile(r"rocpd_kernel_dispatch(_[0-9a-f_]{36,37})?")
_SDK_KEY = re.compile(rb'\{\s*"rocprofiler-sdk-tool"')


@dataclass(frozen=True)
class Found:
    """What a sniffer may look at.

    start: the first START_BYTES bytes, inflated if the file is gzipped; tables: names of an SQLite file's
    tables; names: of the files in a folder; plain: where the content can be read (an SQLite file inflated).
    """

    path: Path
    plain: Path
    start: bytes = b""
    tables: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Format:
    """One kind of recording: fits tells it from its content, load reads `Found.plain`.

    load is None for what lab knows by sight and has no timeline of; `why` then says what to do.
    """

    name: str
    what: str
    fits: Callable[[Found], bool]
    load: Callable[[Path], Capture] | None = None
    why: str = ""


def _kineto(path: Path) -> Capture:
    return from_kineto(read_kineto(path))


def _json_starts(found: Found) -> bool:
    return found.start.lstrip(_BLANK)[:1] in (b"{", b"[")


# The first that fits. `name` is that of `Capture.collector` where lab reads it.
FORMATS: tuple[Format, ...] = (
    Format(
        "git-lfs",
        "a Git LFS pointer: the recording itself was not downloaded",
        lambda found: found.start.startswith(b"version https://git-lfs"),
        why="git lfs pull, in the repository that it comes from",
    ),
    Format(
        "nsys",
        "an nsys export",
        lambda found: bool(found.tables & {"META_DATA_EXPORT", "META_DATA_CAPTURE", "StringIds"}),
        nsys.load,
    ),
    Format(
        "rpd",
        "a database of rocmProfileData (.rpd)",
        lambda found: {"rocpd_op", "rocpd_api"} <= found.tables,
        why="this version of lab does not read it",
    ),
    Format(
        "rocpd",
        "a rocpd database (rocprofv3, rocprof-sys)",
        lambda found: any(_ROCPD_TABLE.fullmatch(name) for name in found.tables),
        why="this version of lab does not read it",
    ),
    Format(
        "rocprof-compute",
        "an analysis database of rocprof-compute: kernel metrics and a roofline, no timeline",
        lambda found: {"compute_dispatch", "compute_metadata"} <= found.tables,
        why="this version of lab does not read it",
    ),
    Format(
        "rocprofv3",
        "rocprofv3's JSON",
        lambda found: _SDK_KEY.match(found.start.lstrip(_BLANK)) is not None,
        why="this version of lab does not read it",
    ),
    Format("kineto", "a Kineto trace", _json_starts, _kineto),
)


def load_capture(path: Path | str) -> Capture:
    """Read any recording that FORMATS names, also gzipped; or a .nsys-rep (needs nsys).

    Raises MissingError without the file, or without nsys for a .nsys-rep; BadDataError if it is empty,
    truncated, damaged or something else.
    """
    path = Path(path)
    with look(path) as found:
        capture = _loader(found)(found.plain)
    return replace(capture, source=path)


def format_of(path: Path | str) -> Format:
    """Which kind of recording it is. Raises what `load_capture` raises for one that is none."""
    with look(Path(path)) as found:
        return _format(found)


def _loader(found: Found) -> Callable[[Path], Capture]:
    kind = _format(found)
    if kind.load is None:
        raise BadDataError(kind.what, where=found.path, fix=kind.why)
    return kind.load


def _format(found: Found) -> Format:
    for one in FORMATS:
        if one.fits(found):
            return one
    if found.path.suffix in nsys.REPORT_SUFFIXES and not found.tables:
        return Format("nsys", "a report of nsys", lambda _: True, nsys.load_report)
    raise _foreign(found)


def _foreign(found: Found) -> BadDataError | MissingError:
    if found.path.is_dir():
        return MissingError(
            "a folder, and not one that is a recording", where=found.path, fix="give the files in it"
        )
    if found.start.startswith(sqlite.MAGIC):
        some = ", ".join(sorted(found.tables)[:5]) or "none"
        return BadDataError(
            f"an SQLite file of no profiler that lab knows (tables: {some[:300]})",
            where=found.path,
            fix="for Nsight Systems: nsys export --type sqlite FILE.nsys-rep",
        )
    return BadDataError(
        "not a recording: neither SQLite (nsys, rocpd, rpd) nor JSON (torch.profiler, rocprofv3)",
        where=found.path,
        fix="give FILE.sqlite (nsys export --type sqlite), FILE.db, FILE.rpd, or a trace FILE.json[.gz]",
    )


@contextmanager
def look(path: Path) -> Iterator[Found]:
    """The beginning of a file or folder, for the sniffers; an SQLite file is inflated within the block."""
    if path.is_dir():
        yield Found(path, path, names=frozenset(one.name for one in path.iterdir()))
        return
    start = _first_bytes(path)
    packed = start.startswith(_GZIP)
    start = _unzipped_start(path) if packed else start
    if not start.startswith(sqlite.MAGIC):
        # A damaged gzip file: the JSON reader says at which byte.
        yield Found(path, path, start or (b"{" if packed else b""))
    elif packed:
        with sqlite.unzipped(path) as plain:
            yield Found(path, plain, start, _tables(plain))
    else:
        yield Found(path, path, start, _tables(path))


def _tables(path: Path) -> frozenset[str]:
    with sqlite.opened(path) as connection:
        return sqlite.tables_of(connection)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = file.read(START_BYTES)
    except FileNotFoundError as error:
        raise MissingError("no such file", where=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror}", where=path) from error
    if not start:
        raise BadDataError("the file is empty (0 bytes)", where=path, fix="record or export it again")
    return start


def _unzipped_start(path: Path) -> bytes:
    """The first bytes inside a gzip file; b"" for a damaged one, whose reader reports the place."""
    try:
        with gzip.open(path) as file:
            return file.read(START_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
