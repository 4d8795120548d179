"""From arguments to the things to look at: files, folders that are one recording, runs of lab."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.run import Run
from lab.errors import LabError, MissingError, not_here
from lab.recordings.load import format_of
from lab.recordings.pieces import start_of

PEEK_BYTES = 64 << 10


@dataclass(frozen=True)
class Other:
    """format and tool as in a recording's row; commands use `{}` for the path."""

    format: str
    tool: str
    title: str
    fits: Callable[[bytes], bool]
    commands: tuple[str, ...] = ()


def _json_with(*keys: bytes) -> Callable[[bytes], bool]:
    patterns = [re.compile(rb'"' + key + rb'"\s*:') for key in keys]

    def fits(start: bytes) -> bool:
        opened = start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
        return opened and all(pattern.search(start) for pattern in patterns)

    return fits


def _pickled_recorder(start: bytes) -> bool:
    """Recognize a recorder's pickle by its bytes: a pickle is code, and lab does not run it."""
    return start[:1] == b"\x80" and b"pg_config" in start and (b"entries" in start or b"version" in start)


_POWER = re.compile(rb"\A[^\n]*\btimestamp\b[^\n]*\b(power_w|power\.draw|power)\b", re.IGNORECASE)
OTHERS = (
    Other(
        "nixnan-log",
        "nixnan",
        "a log of nixnan: NaN and Inf by instruction",
        lambda start: re.search(rb"^#nixnan", start, re.MULTILINE) is not None,
        ("lab nan parse {}",),
    ),
    Other(
        "flight-recorder",
        "torch.distributed",
        "a dump of the flight recorder, as a pickle: lab does not open pickles",
        _pickled_recorder,
    ),
    Other(
        "flight-recorder",
        "torch.distributed",
        "a dump of the flight recorder",
        lambda start: (
            _json_with(b"entries")(start)
            and (b"collective_seq_id" in start or b"pg_config" in start or b"comm_lib_version" in start)
        ),
    ),
    Other(
        "execution-trace",
        "torch.profiler",
        "an execution trace of PyTorch: operators and tensors, no times on the GPU",
        lambda start: _json_with(b"schema", b"nodes")(start) and b"chakra" in start,
        ("lab kernels replay TRACE --execution-trace {}",),
    ),
    Other(
        "execution-details",
        "vLLM, SGLang",
        "which graph capture belongs to which batch size",
        _json_with(b"file", b"batch_size", b"mode"),
    ),
    Other(
        "power-log",
        "a power meter",
        "power of GPUs over time",
        lambda start: _POWER.match(start) is not None,
    ),
)


def other_of(path: Path) -> Other | None:
    """What a file without a recording is; None if lab does not know it. Looks at PEEK_BYTES at most."""
    try:
        start, _ = start_of(path, PEEK_BYTES)
    except MissingError:
        return None
    return next((one for one in OTHERS if one.fits(start)), None)


_XPLANE = ".xplane.pb"


@dataclass(frozen=True)
class Item:
    """named: given by the user, so that it must be something; run: a folder that lab made."""

    path: Path
    named: bool
    run: bool = False


def items_of(paths: Sequence[Path]) -> Iterator[Item]:
    """Each path once, in the given order; folders in the order of their names. Links to folders are not
    followed. Raises MissingError for a path that is not there."""
    for path in paths:
        if not path.exists():
            raise not_here("no such file or folder", path)
    resolved: set[Path] = set()
    for path in paths:
        for item in _below(path):
            if (real := item.path.resolve()) not in resolved:
                resolved.add(real)
                yield item


def _below(path: Path) -> Iterator[Item]:
    if not path.is_dir() or is_recording(path):
        yield Item(path, named=True)
        return
    for folder, folders, files in os.walk(path):
        parent = Path(folder)
        if parent != path and is_recording(parent):
            folders.clear()
            yield Item(parent, named=False)
            continue
        if Run.is_run(parent):
            yield Item(parent, named=False, run=True)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # JAX writes an extract of each XPlane file beside it.
        spaces = (name.removesuffix(_XPLANE) for name in files if name.endswith(_XPLANE))
        extracts = {f"{host}.trace.json.gz" for host in spaces}
        for name in sorted(set(files) - extracts):
            if not name.startswith(".") and (parent / name).is_file():
                yield Item(parent / name, named=False)


def is_recording(folder: Path) -> bool:
    """Whether the folder as a whole is one recording: an export of nsys to Parquet, the files of one job.

    A folder that holds anything else beside them is walked: nothing in it may be passed over.
    """
    try:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return False
    kinds = {one.name.removesuffix(".gz").rpartition(".")[2] for one in inside}
    if len(kinds) != 1 or not all(one.is_file() for one in inside):
        return False
    if len(inside) == 1 and kinds != {"parquet"}:
        return False
    try:
        format_of(folder)
    except LabError:
        return False
    return True
