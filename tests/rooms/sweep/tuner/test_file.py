"""The rows of a tuner's file, read back as written, and whether a run under them did what they say."""

from __future__ import annotations

from collections import Counter

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.ranks.costs import Class
from lab.rooms.sweep.effective import Choice, LogChoices
from lab.rooms.sweep.tuner.file import LARGEST, LONGEST_LINE, Row, bounds_of, read_rows, text_of
from lab.rooms.sweep.tuner.write import REFUTED, TOOK_EFFECT, UNPROVEN, prove

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


RING = Choice("ring", "simple")
NAME = Class("all_reduce", 1 << 24, 2)
PROVEN_ROW = Row("allreduce", 1 << 23, 1 << 25, "ring", "simple", 28, -1, 2)


def _proof(grid: Counter[int], *, choice: Choice | None = RING, applied: Choice | None = RING):
    key = "allreduce", 1 << 24
    said = LogChoices(choices={key: Counter([choice])} if choice else {})
    if applied:
        said.applied[key] = Counter([applied])
    (proof,) = prove([PROVEN_ROW], {NAME: grid}, said)
    return proof


def test_channels_choice_and_the_tuners_own_line_prove_an_effect():
    proof = _proof(Counter({28: 12}))
    assert proof.verdict == TOOK_EFFECT and "12 kernels on 28 blocks, ring simple" in proof.text


def test_kernels_on_other_blocks_refute_it():
    proof = _proof(Counter({28: 6, 24: 6}))
    assert proof.verdict == REFUTED and "6 on 24, 6 on 28 blocks" in proof.text


def test_another_algorithm_in_the_log_refutes_it():
    assert "the log says nvls simple" in _proof(Counter({28: 6}), choice=Choice("nvls", "simple")).text


@pytest.mark.parametrize("applied", [None, Choice("tree", "simple")])
def test_equal_blocks_without_the_tuners_line_may_be_chance(applied):
    proof = _proof(Counter({28: 6}), applied=applied)
    assert proof.verdict == UNPROVEN and "no line of the log says that a tuner applied it" in proof.text


def test_a_log_without_choices_and_kernels_without_grids_prove_nothing():
    assert _proof(Counter({28: 6}), choice=None).verdict == UNPROVEN
    assert "no grid" in _proof(Counter({-1: 6})).text


def test_a_range_that_the_run_never_used_is_not_proven():
    (proof,) = prove([PROVEN_ROW], {Class("all_reduce", 64, 2): Counter({1: 3})}, LogChoices())
    assert proof.verdict == UNPROVEN and "in its range" in proof.text


def test_a_part_as_large_as_another_call_is_not_taken_for_that_call():
    small, large = Class("reduce_scatter", 1 << 20, 2), Class("reduce_scatter", 1 << 21, 2)
    row = Row("reducescatter", 0, 1 << 40, "ring", "simple", 8, -1, 2)
    applied = Counter([Choice("ring", "simple")])
    said = LogChoices(
        choices={("reducescatter", 1 << 20): Counter([Choice("tree", "ll")])},  # of the large one
        applied={("reducescatter", 1 << 20): applied, ("reducescatter", 1 << 21): applied},
    )
    (proof,) = prove([row], {small: Counter({8: 1}), large: Counter({8: 1})}, said)
    assert (
        proof.verdict == REFUTED
        and "2 MiB over 2 ranks: ring simple is set, the log says tree ll" in proof.text
    )
    assert "1 MiB" not in proof.text
