"""A file took effect only if log and kernels both say so."""

from __future__ import annotations

from collections import Counter

from lab.recordings.ranks.costs import Class
from lab.rooms.sweep.effective import Choice, LogChoices
from lab.rooms.sweep.tuner.file import Row
from lab.rooms.sweep.tuner.write import REFUTED, TOOK_EFFECT, UNPROVEN, prove

RING = Choice("ring", "simple")
NAME = Class("all_reduce", 1 << 24, 2)
ROW = Row("allreduce", 1 << 23, 1 << 25, "ring", "simple", 28, -1, 2)


def _proof(grid: Counter[int], *, choice: Choice | None = RING, applied: bool = True):
    key = "allreduce", 1 << 24
    said = LogChoices(choices={key: Counter([choice])} if choice else {})
    if applied:
        said.applied[key] = Counter([Choice("ring", "simple", 28)])
    (proof,) = prove([ROW], {NAME: grid}, said)
    return proof


def test_channels_choice_and_the_tuners_own_line_prove_an_effect():
    proof = _proof(Counter({28: 12}))
    assert proof.verdict == TOOK_EFFECT and "12 kernels on 28 blocks, ring simple" in proof.text


def test_kernels_on_other_blocks_refute_it():
    proof = _proof(Counter({28: 6, 24: 6}))
    assert proof.verdict == REFUTED and "6 on 24, 6 on 28 blocks" in proof.text


def test_another_algorithm_in_the_log_refutes_it():
    assert "the log says nvls simple" in _proof(Counter({28: 6}), choice=Choice("nvls", "simple")).text


def test_equal_blocks_without_the_tuners_line_may_be_chance():
    proof = _proof(Counter({28: 6}), applied=False)
    assert proof.verdict == UNPROVEN and "no line of the log says that a tuner applied it" in proof.text


def test_a_log_without_choices_and_kernels_without_grids_prove_nothing():
    assert _proof(Counter({28: 6}), choice=None).verdict == UNPROVEN
    assert "no grid" in _proof(Counter({-1: 6})).text


def test_a_range_that_the_run_never_used_is_not_proven():
    (proof,) = prove([ROW], {Class("all_reduce", 64, 2): Counter({1: 3})}, LogChoices())
    assert proof.verdict == UNPROVEN and "in its range" in proof.text


def test_a_part_as_large_as_another_call_is_not_taken_for_that_call():
    small, large = Class("reduce_scatter", 1 << 20, 2), Class("reduce_scatter", 1 << 21, 2)
    row = Row("reducescatter", 0, 1 << 40, "ring", "simple", 8, -1, 2)
    applied = Counter([Choice("ring", "simple", 8)])
    said = LogChoices(
        choices={("reducescatter", 1 << 20): Counter([Choice("tree", "ll", 8)])},  # of the large one
        applied={("reducescatter", 1 << 20): applied, ("reducescatter", 1 << 21): applied},
    )
    (proof,) = prove([row], {small: Counter({8: 1}), large: Counter({8: 1})}, said)
    assert (
        proof.verdict == REFUTED
        and "2 MiB over 2 ranks: ring simple is set, the log says tree ll" in proof.text
    )
    assert "1 MiB" not in proof.text
