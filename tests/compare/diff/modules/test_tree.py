"""Trees of modules are matched in order; nothing is forced, and every launch stays in one line."""

from __future__ import annotations

import random

import pytest

from lab.compare.diff.modules.tree import BOTH, ONLY_A, ONLY_B, RENAMED, Node, lines, match


def node(name, ops=(), parts=(), ns=10.0):
    own = Node(name, n=float(len(ops)), ns=ns * len(ops), ops={op: float(ops.count(op)) for op in ops})
    own.parts = {part.name: part for part in parts}
    return own


def block(number, *, extra=(), ns=10.0):
    parts = [node(f"Norm_{number}", ["norm"]), node(f"Linear_{number}", ["mm"], ns=ns)]
    return node(f"Block_{number}", ["add", *extra], parts)


def model(blocks, *, name="Model_0"):
    return node("", parts=[node(name, ["embed"], blocks)])


def found(a, b):
    """(path, state, times) of every line but the root, after checking that nothing got lost."""
    every = lines(match(a, b))
    for side, root in (("a", a), ("b", b)):
        nodes = walk(root)
        assert sum(getattr(one, f"n_{side}") for one in every) == pytest.approx(sum(one.n for one in nodes))
        assert sum(getattr(one, f"ns_{side}") for one in every) == pytest.approx(sum(one.ns for one in nodes))
        assert getattr(every[0], f"whole_ns_{side}") == pytest.approx(sum(one.ns for one in nodes))
    return {" / ".join(one.path): (one.state, one.times) for one in every if one.path}


def walk(root):
    return [root, *(one for part in root.parts.values() for one in walk(part))]


def test_equal_layers_are_one_line_with_their_sums():
    a, b = model([block(i) for i in range(12)]), model([block(i, ns=12.0) for i in range(12)])
    assert found(a, b)["Model / Block x12 / Linear"] == (BOTH, 12)
    (line,) = [one for one in lines(match(a, b)) if one.path[-1:] == ("Linear",)]
    assert (line.n_a, line.ns_a, line.ns_b) == (12, 120, 144)


def test_a_layer_more_is_inserted_and_the_others_match_whatever_their_numbers():
    a, b = model([block(i) for i in range(3)]), model([block(i) for i in range(4)])
    lines_of = found(a, b)
    assert lines_of["Model / Block [1] x3"] == (BOTH, 3) and lines_of["Model / Block [2]"] == (ONLY_B, 1)
    assert found(b, a)["Model / Block [2]"] == (ONLY_A, 1)


def test_a_layer_with_another_op_is_matched_and_the_equal_ones_stay_together():
    a = model([block(i) for i in range(6)])
    b = model([block(i, extra=["copy"] if i == 2 else ()) for i in range(6)])
    lines_of = found(a, b)
    assert lines_of["Model / Block [1] x2"] == (BOTH, 2)
    assert lines_of["Model / Block [2]"] == (BOTH, 1) and lines_of["Model / Block [3] x3"] == (BOTH, 3)


def test_a_module_of_another_name_with_the_same_work_is_renamed_and_one_with_other_work_is_not():
    a = node("", parts=[node("Model_0", [], [node("Old_0", ["mm", "add"]), node("Head_0", ["mm"])])])
    b = node("", parts=[node("Model_0", [], [node("New_0", ["mm", "add"]), node("Tail_0", ["softmax"])])])
    lines_of = found(a, b)
    assert lines_of["Model / Old -> New"] == (RENAMED, 1)
    assert lines_of["Model / Head"] == (ONLY_A, 1) and lines_of["Model / Tail"] == (ONLY_B, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_wrapper_is_seen_through_around_the_model_and_around_each_layer(turned):
    blocks = [block(i) for i in range(4)]
    bare = model([block(i) for i in range(4)])
    whole = node("", parts=[node("DistributedDataParallel_0", [], [node("Model_0", ["embed"], blocks)])])
    each = model([node(f"Checkpoint_{i}", [], [block(i)]) for i in range(4)])
    state = ONLY_A if turned else ONLY_B
    around = found(whole, bare) if turned else found(bare, whole)
    assert around["DistributedDataParallel"] == (state, 1)
    assert around["DistributedDataParallel / Model / Block x4 / Linear"] == (BOTH, 4)
    inside = found(each, bare) if turned else found(bare, each)
    assert inside["Model / Checkpoint x4"] == (state, 4)
    assert inside["Model / Checkpoint x4 / Block / Norm"] == (BOTH, 4)


def test_different_programs_have_nothing_in_common():
    a, b = model([block(0)]), node("", parts=[node("Convs_0", [], [node("Conv_0", ["conv"])])])
    assert {state for state, _ in found(a, b).values()} == {ONLY_A, ONLY_B}


def test_of_random_trees_no_launch_gets_lost_or_counted_twice():
    draw = random.Random(11)

    def tree(depth, number=[0]):  # noqa: B006
        number[0] += 1
        ops = draw.choices(["mm", "add", "norm"], k=draw.randrange(3))
        parts = [tree(depth - 1) for _ in range(draw.randrange(4))] if depth else []
        return node(f"{draw.choice('ABC')}_{number[0]}", ops, parts, ns=draw.uniform(1, 9))

    for _ in range(200):
        found(node("", parts=[tree(3) for _ in range(2)]), node("", parts=[tree(3) for _ in range(3)]))
