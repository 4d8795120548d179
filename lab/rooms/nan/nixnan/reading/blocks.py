"""A log's bytes as blocks of whole lines, inflated where it is compressed, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lab.errors import BadDataError
from lab.recordings.pieces import inflater
from lab.rooms.nan.nixnan.grammar import PREFIX

BLOCK_BYTES = 128 << 10  # small enough that a block and its lines stay in the processor's cache
LINE_BYTES = 1 << 20  # a longer line is not nixnan's; it is dropped piece by piece


class Blocks:
    """Blocks of whole lines, each ending with a line's end, whatever stood at the end of the file.

    Afterwards: unfinished (a last line without an end), cut (why a compressed stream ended early), and the
    number of lines too long for nixnan, with its prefix in them (long_torn) or without (long_foreign).
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.unfinished = b""
        self.cut: str | None = None
        self.long_torn = self.long_foreign = 0
        self._chunks = self._inflated(file, path) if file.peek(2)[:2] == b"\x1f\x8b" else self._plain(file)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[bytes]:
        unfinished, skipping, is_nixnan = b"", False, False
        for chunk in self._chunks:
            text = unfinished + chunk
            end = text.rfind(b"\n") + 1
            if skipping:
                line_start = text.find(b"\n") + 1
                is_nixnan = is_nixnan or PREFIX in text[: line_start or None]
                if not line_start:
                    unfinished = text[-len(PREFIX) :]
                    continue
                skipping = self._drop(is_nixnan)
                text, end = text[line_start:], end - line_start
            if end:
                yield text[:end]
            unfinished = text[end:]
            if len(unfinished) > LINE_BYTES // 2:
                unfinished = unfinished.replace(
                    b"\0", b""
                )  # a hole of NULs stands where another process cut the file
                if len(unfinished) > LINE_BYTES:
                    skipping, is_nixnan, unfinished = True, PREFIX in unfinished, unfinished[-len(PREFIX) :]
        if skipping:
            self._drop(is_nixnan)
        elif unfinished:
            self.unfinished = unfinished
            yield unfinished + b"\n"

    def _drop(self, is_nixnan: bool) -> bool:
        """Count one dropped line; returns False: skipping is over."""
        self.long_torn += is_nixnan
        self.long_foreign += not is_nixnan
        return False

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while chunk := file.read(BLOCK_BYTES):
            yield chunk

    def _inflated(self, file: BinaryIO, path: Path) -> Iterator[bytes]:
        """The text of a .gz with all its members; of a cut one, what can be read."""
        stream, data = inflater.decompressobj(31), b""
        broken = (zlib.error, getattr(inflater, "IsalError", zlib.error))
        try:
            while data := (stream.unused_data if stream.eof else stream.unconsumed_tail) or file.read(
                BLOCK_BYTES // 4
            ):
                if stream.eof:
                    if not data.strip(b"\0"):
                        break  # zeros pad the end of a tape
                    stream = inflater.decompressobj(31)
                yield stream.decompress(data, BLOCK_BYTES)
        except broken as error:
            raise BadDataError(
                f"the compressed log is broken: {error}",
                location=path,
                fix="copy it again, or inflate what can be with zcat",
            ) from error
        if not stream.eof:
            self.cut = "the compressed file is cut"
            yield stream.flush()
