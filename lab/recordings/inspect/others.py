"""Files beside recordings that lab knows by sight: named as what they are, never judged, never executed."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PEEK_BYTES = 64 << 10
_GZIP = b"\x1f\x8b"


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
    """By its bytes alone: a pickle is code, and lab does not run it."""
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
    """What a file is that holds no recording; None if lab does not know it. Looks at PEEK_BYTES at most."""
    start = peek(path)
    return next((one for one in OTHERS if one.fits(start)), None)


def peek(path: Path) -> bytes:
    """The first bytes, inflated if gzipped; b"" if they cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(PEEK_BYTES)
        if not start.startswith(_GZIP):
            return start
        with gzip.open(path) as packed:
            return packed.read(PEEK_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
