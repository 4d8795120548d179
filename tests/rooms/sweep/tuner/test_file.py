"""The rows of a tuner's file: what is written can be read, and what cannot be read is never written."""

from __future__ import annotations

import pytest

from lab.errors import BadDataError, MissingError
from lab.rooms.sweep.tuner.file import LARGEST, LONGEST_LINE, Row, bounds_of, read_rows, text_of

ROW = Row("allgather", 4096, 8192, "ring", "simple", 28, -1, 8)


def test_a_row_has_no_blanks_and_reads_back(tmp_path):
    path = tmp_path / "t.conf"
    path.write_text(text_of([ROW], ["why, " * 80], ["left\nat default " * 40]))
    assert "allgather,4096,8192,ring,simple,28,-1,8\n" in path.read_text()
    assert max(map(len, path.read_text().splitlines())) < LONGEST_LINE
    assert read_rows(path) == [ROW]


def test_bounds_lie_at_geometric_means_and_no_size_is_in_two():
    found = bounds_of([1 << 20, 1 << 24])
    assert found == {1 << 20: (1 << 19, 1 << 22), 1 << 24: ((1 << 22) + 1, 1 << 25)}


def test_above_4_gib_the_end_is_that_of_64_bits():
    assert bounds_of([1 << 32])[1 << 32][1] == LARGEST == 18446744073709551615


@pytest.mark.parametrize(
    "changed",
    [
        {"collective": "all_gather"},
        {"algorithm": "Ring"},
        {"protocol": "ll64"},
        {"channels": 0},
        {"min_bytes": 9000},
        {"max_bytes": LARGEST + 1},
    ],
)
def test_a_row_that_a_tuner_would_misread_is_not_written(changed):
    with pytest.raises(BadDataError):
        text_of([Row(**{**vars(ROW), **changed})], [], [])


@pytest.mark.parametrize(
    "line",
    ["allreduce", "allreduce,1,2,ring,simple,x,-1,8", "allgathr,1,2,ring,simple,28,-1,8", "a," * 200],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line):
    (tmp_path / "t.conf").write_text(f"# head\n{line}\n")
    with pytest.raises(BadDataError) as caught:
        read_rows(tmp_path / "t.conf")
    assert str(caught.value.location).endswith("t.conf:2")


def test_no_file_is_missing(tmp_path):
    with pytest.raises(MissingError):
        read_rows(tmp_path / "t.conf")
