"""Files as blocks of whole lines: compressed, cut, broken, and with lines without an end."""

from __future__ import annotations

import gzip
import random

import pytest

from lab.errors import BadDataError
from lab.rooms.nan.nixnan.reading import reader
from lab.rooms.nan.nixnan.reading.parse import as_json, parse
from tests.rooms.nan.nixnan import nixgen


@pytest.mark.parametrize("members", [1, 3])
def test_a_compressed_log_reads_as_the_log(tmp_path, members):
    lines = nixgen.log(*[nixgen.varied(random.Random(n), 4) for n in range(300)])
    whole, packed = nixgen.write(tmp_path / "a.nixnan", lines), tmp_path / "a.nixnan.gz"
    text = whole.read_bytes()
    step = len(text) // members + 1
    packed.write_bytes(
        b"".join(gzip.compress(text[at : at + step]) for at in range(0, len(text), step)) + bytes(512)
    )
    want, found = as_json(parse(whole)), as_json(parse(packed))
    for name in ("file", "size_bytes", "torn"):
        want.pop(name), found.pop(name)
    assert found == want


def test_a_cut_compressed_log_is_read_as_far_as_it_goes(tmp_path):
    lines = nixgen.log(*[nixgen.varied(random.Random(n), 256) for n in range(2000)])
    packed = gzip.compress("\n".join(lines).encode())
    (tmp_path / "a.gz").write_bytes(packed[: len(packed) // 2])
    found = parse(tmp_path / "a.gz")
    assert (
        found.integrity == "truncated" and "compressed" in found.reasons[0] and 500 < found.error_lines < 2000
    )


def test_a_broken_compressed_log_is_an_error(tmp_path):
    packed = bytearray(gzip.compress("\n".join(nixgen.varied(random.Random(n)) for n in range(500)).encode()))
    packed[200:240] = bytes(40)
    (tmp_path / "a.gz").write_bytes(bytes(packed))
    with pytest.raises(BadDataError, match="broken"):
        parse(tmp_path / "a.gz")


def test_a_line_without_end_is_dropped_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "LINE_BYTES", 5000)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 1000)
    path = tmp_path / "a"
    path.write_bytes(
        b"x" * 20_000
        + b"\n"
        + nixgen.error().encode()
        + b"\n"
        + b"y" * 8000
        + b"#nixnan: z"
        + b"z" * 8000
        + b"\n"
        + bytes(30_000)
        + nixgen.error().encode()
        + b"\n"
        + b"end" * 5000
    )
    found = parse(path)
    assert (found.error_lines, found.torn_lines, found.foreign_lines, found.lines) == (2, 1, 2, 5)


def test_a_hole_of_nuls_before_a_line_is_no_part_of_it(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(3_000_000) + "\n".join(nixgen.log(nixgen.error())).encode())
    assert parse(path).integrity == "complete"
