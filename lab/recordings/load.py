"""Any recording, recognised by its content rather than by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lab.core.words import plural
from lab.errors import BadDataError, MissingError
from lab.recordings import nsys, rocpd, rocprofv3, rpd, sqlite, xplane
from lab.recordings.capture import Capture
from lab.recordings.integrity import integrity_of
from lab.recordings.integrity.physics import limit_lacks
from lab.recordings.kineto import read_kineto
from lab.recordings.nsys.export import is_folder
from lab.recordings.nsys.parquet import load_folder
from lab.recordings.pieces import start_of
from lab.recordings.processes import combined, without_untimed
from lab.recordings.rocpd.rows import TABLE
from lab.recordings.rocprofv3.csv_reader import is_kernel_trace, load_csv

_NAMES = re.compile(
    r"\.(sqlite|db|rpd|nsys-rep|qdrep|pftrace|pb)(\.gz)?\Z|trace.*\.json(\.gz)?\Z|kernel_trace\.csv(\.gz)?\Z"
)
START_BYTES = 4096
# JAX writes no categories; its processes are named by device, its GPU events by HLO operation.
_JAX = re.compile(rb'"/device:(GPU|TPU):\d+|"hlo_module"|"PjitFunction\(')
_XPLANE = re.compile(rb"/(device|host):(GPU|TPU|CPU)|/host:metadata|Task Environment")
_JAX_WAY = "give the .xplane.pb that JAX wrote beside it: the JSON holds at most 1,000,000 of its events"
# A packet (field 1) of up to 2^28 bytes that begins with a field of its own.
_PERFETTO = re.compile(rb"\n[\x80-\xff]{0,3}[\x01-\x7f](\Z|[\x08-\xff])")
_PAIRS = re.compile(rb'"ph"\s*:\s*"B"[^}]*"cat"|"cat"\s*:[^}]*"ph"\s*:\s*"B"')
_BLANK = b"\xef\xbb\xbf \t\r\n"
# Names of its tracks and arguments; torch.profiler writes neither.
_OLD_ROCPROF = (b'"BeginNs"', b' CPU HIP API"', b' CPU HSA API"')
# What merges write before every name of a rank's events, also those of the original sweep.
_RANK_PREFIX = re.compile(r"\[R\d{1,6}\] (?!rank )")
_SDK_KEY = re.compile(rb'\{\s*"rocprofiler-sdk-tool"')


@dataclass(frozen=True)
class Sample:
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
    """One kind of recording: fits tells it from its content, load reads `Sample.plain`.

    load is None for what lab knows by sight and has no timeline of; `advice` then says what to do. Every
    reader raises MissingError without the file, and BadDataError, with the place, if it is empty, truncated,
    damaged, of an unknown version, or holds what its tool does not write.
    """

    name: str
    title: str
    fits: Callable[[Sample], bool]
    load: Callable[[Path], Capture] | None = None
    advice: str = ""


def _json_starts(sample: Sample) -> bool:
    return sample.start.lstrip(_BLANK)[:1] in (b"{", b"[")


# The first that fits. `name` is that of `Capture.collector` where lab reads it.
FORMATS: tuple[Format, ...] = (
    Format(
        "git-lfs",
        "a Git LFS pointer: the recording itself was not downloaded",
        lambda sample: sample.start.startswith(b"version https://git-lfs"),
        advice="git lfs pull, in the repository that it comes from",
    ),
    Format(
        "nsys",
        "an nsys export",
        lambda sample: bool(sample.tables & {"META_DATA_EXPORT", "META_DATA_CAPTURE", "StringIds"}),
        nsys.load,
    ),
    Format("nsys", "an nsys export to Parquet", lambda sample: is_folder(sample.names), load_folder),
    Format(
        "rpd",
        "a database of rocmProfileData (.rpd)",
        lambda sample: {"rocpd_op", "rocpd_api"} <= sample.tables,
        rpd.load,
    ),
    Format(
        "rocpd",
        "a rocpd database (rocprofv3, rocprof-sys)",
        lambda sample: any(TABLE.fullmatch(name) for name in sample.tables),
        rocpd.load,
    ),
    Format(
        "rocprof-compute",
        "an analysis database of rocprof-compute: kernel metrics and a roofline, no timeline",
        lambda sample: {"compute_dispatch", "compute_metadata"} <= sample.tables,
        advice="read it with rocprof-compute; for a timeline, record with rocprofv3",
    ),
    Format(
        "rocprofv3",
        "rocprofv3's JSON",
        lambda sample: _SDK_KEY.match(sample.start.lstrip(_BLANK)) is not None,
        rocprofv3.load,
    ),
    Format(
        "rocprofv3",
        "rocprofv3's CSV (kernel trace)",
        lambda sample: is_kernel_trace(sample.start),
        load_csv,
    ),
    Format(
        "rocprof",
        "a JSON trace of the first rocprof (v1, v2), which AMD has replaced and lab does not read",
        lambda sample: _json_starts(sample) and any(mark in sample.start for mark in _OLD_ROCPROF),
        advice="record with rocprofv3 (--output-format rocpd or json), or with torch.profiler",
    ),
    Format(
        "jax",
        "a JSON trace of JAX's profiler, which is an extract of its XPlane file",
        lambda sample: _json_starts(sample) and _JAX.search(sample.start) is not None,
        advice=_JAX_WAY,
    ),
    Format(
        "xplane",
        "an XPlane file (the profiler of JAX, XLA and TensorFlow)",
        lambda sample: sample.start[:1] == b"\n" and _XPLANE.search(sample.start) is not None,
        xplane.load,
    ),
    Format(
        "chrome",
        "a trace of begin and end events (ph B and E); torch.profiler writes complete ones (ph X)",
        lambda sample: _json_starts(sample) and _PAIRS.search(sample.start) is not None,
        advice="give the file that the profiler wrote, before a tool rewrote it",
    ),
    Format("kineto", "a Kineto trace", _json_starts, read_kineto),
    Format(
        "pftrace",
        "a Perfetto trace, which lab does not read: recorders alter the times that they put into one",
        lambda sample: _PERFETTO.match(sample.start) is not None,
        advice="rocprofv3: --output-format rocpd or json; torch.profiler: export_chrome_trace to a .json.gz",
    ),
)


def load_capture(path: Path | str, *, salvage: bool = False) -> Capture:
    """Read any recording that FORMATS names, also gzipped; a .nsys-rep (needs nsys); a folder of one job.

    The one way from a file to what it holds, with what it lacks. salvage: keep the readable part of a Kineto
    trace that is cut or damaged.

    Raises what the reader raises (`Format`); MissingError without nsys for a .nsys-rep.
    """
    with look(Path(path)) as sample:
        capture = _loaded(sample, salvage=salvage)
    judged = replace(capture, lacks=(*capture.lacks, *integrity_of(capture), *limit_lacks(capture)))
    judged._views.update(capture._views)  # of the same tables
    return judged


def load_torch_trace(path: Path | str, *, salvage: bool = False) -> Capture:
    """`load_capture` for what reads operators and their arguments, which torch.profiler alone records.

    Raises BadDataError for a recording of any other tool.
    """
    with look(Path(path)) as sample:
        kind = kind_of(sample)
    if kind.name != "kineto":
        raise BadDataError(
            f"not a Kineto trace: {kind.title}",
            location=path,
            fix="give a trace that torch.profiler wrote (export_chrome_trace or tensorboard_trace_handler)",
        )
    return load_capture(path, salvage=salvage)


def _loaded(sample: Sample, *, salvage: bool = False) -> Capture:
    """The capture with what its reader alone knows of lacks."""
    kind = kind_of(sample)
    if kind.load is None:
        raise BadDataError(kind.title, location=sample.path, fix=kind.advice)
    load = partial(read_kineto, salvage=True) if salvage and kind.name == "kineto" else kind.load
    capture = replace(load(sample.plain), source=sample.path)
    if any(map(_RANK_PREFIX.match, capture.strings)):
        capture = replace(capture, strings=[_RANK_PREFIX.sub("", text) for text in capture.strings])
    return without_untimed(capture)


def format_of(path: Path | str) -> Format:
    """Which kind of recording it is. Raises what `load_capture` raises for one that is none."""
    with look(Path(path)) as sample:
        return kind_of(sample)


def named_as_recording(path: Path) -> bool:
    """Whether it is named as one: in a folder it is then not passed over if it cannot be read."""
    return _NAMES.search(path.name) is not None


def is_recording(folder: Path) -> bool:
    """Whether a folder is a recording as a whole."""
    with look(folder) as sample:
        return any(reader.fits(sample) for reader in FORMATS) or _job_format(folder) is not None


def kind_of(sample: Sample) -> Format:
    """The first format that fits."""
    for kind in FORMATS:
        if kind.fits(sample):
            return kind
    if sample.path.is_dir() and (job := _job_format(sample.path)):
        return job
    if sample.path.suffix in nsys.REPORT_SUFFIXES and not sample.tables:
        return Format("nsys", "a report of nsys", lambda _: True, nsys.load_report)
    raise _foreign(sample)


# What a job of several processes writes: one file each, in one folder or in one per host.
_OF_A_JOB = ("*.db", "*.rpd", "*_results.json", "*.db.gz", "*.rpd.gz", "*_results.json.gz", "*.xplane.pb")
_SEVERAL = ("rocpd", "rpd", "rocprofv3", "xplane")
_MOST_FILES = 4096


def _job_format(folder: Path) -> Format | None:
    """How to read a folder with the files of one job; None for any other.

    Where a job was written in several formats, the first of _SEVERAL counts: they hold the same.
    """
    places = (folder, *(one for one in sorted(folder.iterdir()) if one.is_dir()))
    files = [file for place in places for pattern in _OF_A_JOB for file in sorted(place.glob(pattern))]
    if len(files) > _MOST_FILES:
        raise BadDataError(f"a folder with {len(files):,} files: more than {_MOST_FILES:,}", location=folder)
    kinds = {}
    for file in files:
        with look(file) as sample:
            kinds[file] = next((reader for reader in FORMATS if reader.fits(sample)), None)
    for name in _SEVERAL:
        chosen = [file for file, kind in kinds.items() if kind and kind.name == name]
        if chosen:
            title = f"a folder with {plural(len(chosen), 'file')} of one job"
            return Format(name, title, lambda _: True, partial(_load_job, chosen))
    return None


def _load_job(files: list[Path], folder: Path) -> Capture:
    captures = []
    for file in files:
        with look(file) as sample:
            captures.append(_loaded(sample))
    return combined(folder, captures)


def _foreign(sample: Sample) -> BadDataError | MissingError:
    if sample.path.is_dir():
        return MissingError(
            "a folder, and not one that is a recording", location=sample.path, fix="give the files in it"
        )
    if sample.start.startswith(sqlite.MAGIC):
        tables = ", ".join(sorted(sample.tables)[:5]) or "none"
        return BadDataError(
            f"an SQLite file of no profiler that lab knows (tables: {tables[:300]})",
            location=sample.path,
            fix="for Nsight Systems: nsys export --type sqlite FILE.nsys-rep",
        )
    if sample.start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return BadDataError(
            "a text in UTF-16, which no profiler writes",
            location=sample.path,
            fix="convert it: iconv -f UTF-16 -t UTF-8 FILE",
        )
    return BadDataError(
        "not a recording: no SQLite (nsys, rocpd, rpd), JSON (torch.profiler, rocprofv3) or XPlane file",
        location=sample.path,
        fix="give FILE.sqlite (nsys export --type sqlite), FILE.db, FILE.rpd, or a trace FILE.json[.gz]",
    )


@contextmanager
def look(path: Path) -> Iterator[Sample]:
    """The beginning of a file or folder, for the sniffers; an SQLite file is inflated within the block."""
    if path.is_dir():
        yield Sample(path, path, names=frozenset(one.name for one in path.iterdir()))
        return
    start, packed = start_of(path, START_BYTES)
    if not start and not packed:
        raise BadDataError("the file is empty (0 bytes)", location=path, fix="record or export it again")
    if not start.startswith(sqlite.MAGIC):
        # A damaged gzip file: the JSON reader says at which byte.
        yield Sample(path, path, start or (b"{" if packed else b""))
    elif packed:
        with sqlite.unzipped(path) as plain:
            yield Sample(path, plain, start, _tables(plain))
    else:
        yield Sample(path, path, start, _tables(path))


def _tables(path: Path) -> frozenset[str]:
    with sqlite.opened(path) as connection:
        return sqlite.tables_of(connection)
