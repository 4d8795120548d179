"""The packets of a Perfetto file, compressed ones inflated."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from lab.errors import BadDataError, MissingError
from lab.recordings.protobuf import varint
from lab.recordings.sqlite import is_gzip

BATCH_BYTES = 8 << 20
MOST_BYTES = 256 << 20  # of one packet, and of what one packet inflates to
_PACKET = 0x0A  # field 1 of bytes: all that a Perfetto file consists of
_COMPRESSED = b"\x92\x03"  # field 50 of bytes: zlib data, packets inside


def looks_like_packets(start: bytes) -> bool:
    """Whether a file begins like Perfetto's: a packet of plausible length that begins with a field."""
    if start[:1] != b"\n":
        return False
    try:
        length, offset = varint(start, 1)
    except (IndexError, OverflowError):
        return False
    return 0 < length <= MOST_BYTES and (
        offset >= len(start) or ((start[offset] & 7) in (0, 1, 2, 5) and start[offset] > 7)
    )


def packets(path: Path) -> Iterator[bytes]:
    """Every packet of the file, plain or gzipped; compressed ones inflated.

    Raises MissingError where the file cannot be read, BadDataError where it is truncated or damaged.
    """
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            yield from _packets(cast(IO[bytes], file), path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"the gzip file is truncated or damaged: {error}", location=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror or error}", location=path) from error


def _packets(file: IO[bytes], path: Path) -> Iterator[bytes]:
    held, offset = b"", 0  # what is left of the last read, and its place in the file
    while chunk := file.read(BATCH_BYTES):
        data, used = held + chunk, 0
        for start, end in _boundaries(data, offset, path):
            if data.startswith(_COMPRESSED, start):
                yield from _inflated(data[start:end], offset + start, path)
            else:
                yield data[start:end]
            used = end
        held, offset = data[used:], offset + used
    if held:
        raise BadDataError(
            f"the file is truncated: the packet at byte {offset} is cut after {len(held)} bytes",
            location=path,
            fix="copy or record it again",
        )


def _boundaries(data: bytes, offset: int, path: Path) -> Iterator[tuple[int, int]]:
    """Where each whole packet in `data`, which is at `offset`, begins and ends."""
    position = 0
    while position < len(data):
        try:
            if data[position] != _PACKET:
                raise OverflowError
            length, start = varint(data, position + 1)
        except IndexError:
            return
        except OverflowError as error:
            raise BadDataError(f"not a Perfetto packet at byte {offset + position}", location=path) from error
        if length > MOST_BYTES:
            raise BadDataError(f"the packet at byte {offset + position} claims {length} bytes", location=path)
        if start + length > len(data):
            return
        position = start + length
        yield start, position


def _inflated(packet: bytes, offset: int, path: Path) -> Iterator[bytes]:
    """The packets inside a compressed one; lengths bounded, because 1 MiB can inflate to 1 GiB."""
    try:
        length, start = varint(packet, len(_COMPRESSED))
        inflate = zlib.decompressobj()
        data = inflate.decompress(packet[start : start + length], MOST_BYTES)
    except (IndexError, OverflowError, zlib.error) as error:
        raise BadDataError(
            f"the compressed packet at byte {offset} is damaged: {error}", location=path
        ) from error
    if not inflate.eof:
        raise BadDataError(
            f"the compressed packet at byte {offset} is cut, or larger than lab reads", location=path
        )
    end = 0
    for start, end in _boundaries(data, 0, path):
        yield data[start:end]
    if end < len(data):
        raise BadDataError(f"the compressed packet at byte {offset} ends within a packet", location=path)
