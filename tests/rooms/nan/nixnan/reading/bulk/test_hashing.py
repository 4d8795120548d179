"""Hashes of texts."""

from __future__ import annotations

from lab.rooms.nan.nixnan.reading.bulk import hashing


def test_hashes_do_not_hang_on_where_the_text_stands():
    texts = [b"", b"a", b"abcdefgh", b"abcdefghi", b"x" * 700, b"x" * 701, b"x" * 699 + b"y"]
    assert len({int(one) for one in hashing.hashes_of(texts)}) == len(texts)
    assert [int(one) for one in hashing.hashes_of(texts)] == [
        int(hashing.hashes_of([one])[0]) for one in texts
    ]
