"""The packets of a Perfetto file in batches, compressed ones inflated."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from lab.errors import BadDataError, MissingError
from lab.recordings.protobuf import padded

BATCH_BYTES = 8 << 20
MOST_BYTES = 256 << 20  # of one packet, and of what one packet inflates to
_PACKET = 0x0A  # field 1 of bytes: all that a Perfetto file consists of
_COMPRESSED = b"\x92\x03"  # field 50 of bytes: zlib data, packets inside


class Batch(NamedTuple):
    """Packets data[starts:ends] in their order."""

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def looks_like_packets(start: bytes) -> bool:
    """Whether a file begins like Perfetto's: a packet of plausible length that begins with a field."""
    if start[:1] != b"\n":
        return False
    try:
        length, at = _varint(start, 1)
    except (IndexError, ValueError):
        return False
    return 0 < length <= MOST_BYTES and (
        at >= len(start) or ((start[at] & 7) in (0, 1, 2, 5) and start[at] > 7)
    )


def batches(path: Path) -> Iterator[Batch]:
    """Every packet of the file, plain or gzipped, BATCH_BYTES at a time.

    Raises MissingError where the file cannot be read, BadDataError where it is truncated or damaged.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        if packed:
            with gzip.open(path) as unpacked:
                yield from _batches(cast(IO[bytes], unpacked), path)
        else:
            with path.open("rb") as file:
                yield from _batches(file, path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"the gzip file is truncated or damaged: {error}", location=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror or error}", location=path) from error


def _batches(file: IO[bytes], path: Path) -> Iterator[Batch]:
    held, at = b"", 0  # what is left of the last read, and its place in the file
    while True:
        more = file.read(BATCH_BYTES)
        data = held + more
        starts, ends, used = _boundaries(data, at, path)
        for first, last, compressed in _runs(data, starts):
            if not compressed:
                yield Batch(padded(data), np.array(starts[first:last]), np.array(ends[first:last]))
                continue
            for index in range(first, last):
                yield _inflated(data[starts[index] : ends[index]], at + starts[index], path)
        held, at = data[used:], at + used
        if not more:
            break
    if held:
        raise BadDataError(
            f"the file is truncated: the packet at byte {at} is cut after {len(held)} bytes",
            location=path,
            fix="copy or record it again",
        )


def _boundaries(data: bytes, at: int, path: Path) -> tuple[list[int], list[int], int]:
    """Where the whole packets in `data` begin and end, and how many bytes they take."""
    starts, ends, position, size = [], [], 0, len(data)
    while position < size:
        if data[position] != _PACKET:
            raise BadDataError(f"no packet of Perfetto at byte {at + position}", location=path)
        try:
            length, start = _varint(data, position + 1)
        except IndexError:
            break
        except ValueError as error:
            raise BadDataError(f"no packet of Perfetto at byte {at + position}", location=path) from error
        if length > MOST_BYTES:
            raise BadDataError(
                f"the packet at byte {at + position} is said to hold {length} bytes", location=path
            )
        if start + length > size:
            break
        starts.append(start)
        position = start + length
        ends.append(position)
    return starts, ends, position


def _runs(data: bytes, starts: list[int]) -> Iterator[tuple[int, int, bool]]:
    """Runs of packets that are compressed, or are not."""
    packed = np.array([data[start : start + 2] == _COMPRESSED for start in starts], dtype=bool)
    edges = np.flatnonzero(np.diff(packed)) + 1
    bounds = [0, *edges.tolist(), len(starts)]
    for first, last in pairwise(bounds):
        if first < last:
            yield first, last, bool(packed[first])


def _inflated(packet: bytes, at: int, path: Path) -> Batch:
    """The packets inside a compressed one; lengths bounded, because 1 MiB can inflate to 1 GiB."""
    try:
        length, start = _varint(packet, len(_COMPRESSED))
        inflate = zlib.decompressobj()
        data = inflate.decompress(packet[start : start + length], MOST_BYTES)
        whole = inflate.eof
    except (IndexError, ValueError, zlib.error) as error:
        raise BadDataError(
            f"the compressed packet at byte {at} is damaged: {error}", location=path
        ) from error
    if not whole:
        raise BadDataError(
            f"the compressed packet at byte {at} is cut, or larger than lab reads", location=path
        )
    starts, ends, used = _boundaries(data, 0, path)
    if used < len(data):
        raise BadDataError(f"the compressed packet at byte {at} ends within a packet", location=path)
    return Batch(padded(data), np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the offset behind it; IndexError at the end of the data, ValueError beyond 64 bits."""
    value = shift = 0
    while True:
        digit = data[at]
        value |= (digit & 0x7F) << shift
        at += 1
        if digit < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
