"""Which API call launched which operation, and what a projection says of the odd ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lab.recordings.capture import GRAPH
from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named, paths, rules


def test_an_operation_finds_the_call_of_its_process_and_number_or_none():
    calls = [call(5, 0, 1), call(0, 2, 3), call(5, 4, 5, pid=2), call(-1, 6, 7), call(3, 8, 9, pid=2)]
    numbers = [(0, 1), (5, 1), (5, 2), (3, 1), (3, 2), (4, 1), (99, 2), (-1, 1), (-1, 2), (5, 3)]
    projection = project(made(calls=calls, ops=[kernel(corr, pid=pid) for corr, pid in numbers]))
    assert projection.ops.api.tolist() == [1, 0, 2, -1, 4, -1, -1, -1, -1, -1]
    assert projection.problems == []


def test_of_many_calls_with_one_number_the_first_counts_and_the_operations_are_reported():
    numbers = np.random.default_rng(1).integers(0, 3, 300).tolist()
    calls = [call(number, i, i + 1) for i, number in enumerate(numbers)] + [call(7, 0, 1), call(8, 0, 1)]
    ops = [kernel(number) for number in (0, 1, 2, 7, 8, 9, -1)]
    projection = project(made(calls=calls, ops=ops))
    assert projection.ops.api.tolist() == [*(numbers.index(n) for n in (0, 1, 2)), 300, 301, -1, -1]
    assert [re.findall("^3 operations .* first call", said) != [] for said in projection.problems] == [True]


def test_large_correlation_ids_are_told_apart_to_the_last_digit():
    large = 2**63 - 4
    calls = [call(large + i, i, i + 1, pid=pid) for i in range(3) for pid in (1, 2)]
    ops = [kernel(large + i, pid=pid) for pid in (1, 2) for i in range(3)]
    assert project(made(calls=calls, ops=ops)).ops.api.tolist() == [0, 2, 4, 1, 3, 5]


def test_a_node_number_above_0_or_a_whole_replay_is_a_graph_launch():
    ops = [kernel(1, graph_node=node) for node in (-1, 0, 1)] + [kernel(1, kind=GRAPH)]
    own = project(made([named("forward", 0, 100)], [call(1, 10, 20)], ops))
    assert rules(own) == ["same", "same", "graph", "graph"]
    inherited = project(made([named("forward", 0, 100)], [call(1, 10, 20, tid=2)], ops))
    assert rules(inherited) == ["cross", "cross", "graph", "graph"]
    outside = project(made([named("forward", 0, 5)], [call(1, 10, 20)], ops))
    assert rules(outside) == ["outside"] * 4


@pytest.mark.parametrize(("count", "words"), [(1, "1 operation launched"), (2, "2 operations launched")])
def test_operations_below_two_phases_at_once_are_counted_in_the_problem(count, words):
    ranges = [named("backward", 0, 100, tid=tid) for tid in (1, 3)]
    problems = project(made(ranges, [call(1, 10, 20, tid=2)], [kernel(1)] * count)).problems
    assert [said.startswith(words) for said in problems] == [True]


def test_a_projection_says_by_which_rule_it_was_made():
    capture = made([named("forward", 0, 100)], [call(1, 10, 20, tid=2)], [kernel(1)])
    assert [project(capture, rule).attribution for rule in ("full", "nsys")] == ["full", "nsys"]
    assert [paths(project(capture, rule)) for rule in ("full", "nsys")] == [["forward"], [""]]
    with pytest.raises(ValueError, match="Full"):
        project(capture, "Full")
