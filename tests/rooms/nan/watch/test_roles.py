"""Who made the first bad number, from calls and leaves alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lab.rooms.nan.watch.roles import IN, OUT, Call, Leaf, births, first_birth, roles


def story(*parts: tuple[int, str, int, bool | None]) -> tuple[list[Call], list[Leaf]]:
    """Parts in order of time: (call, module, side, bad). Call 0 is the model, all others are made in it."""
    calls: dict[int, Call] = {}
    leaves = []
    for seq, (number, module, side, bad) in enumerate(parts):
        if number not in calls:
            calls[number] = Call(module, 0 if number else -1)
            if number:
                calls[0].children.append(number)
        leaves.append(Leaf(seq, number, side, "x", bad))
    return [calls[number] for number in sorted(calls)], leaves


def test_a_bad_input_that_no_module_put_out_was_made_by_the_parent():
    forward = story(
        (0, "m", IN, False),
        (1, "m.a", IN, False),
        (1, "m.a", OUT, False),
        (2, "m.b", IN, True),
        (2, "m.b", OUT, True),
        (0, "m", OUT, True),
    )
    first = first_birth(*forward)
    assert first.place == "in m, after a, before b"
    assert roles(*forward) == ["producer", "clean", "propagator"]


def test_the_last_code_of_a_parent_shows_in_its_own_output_only():
    forward = story((0, "m", IN, False), (1, "m.a", IN, False), (1, "m.a", OUT, False), (0, "m", OUT, True))
    assert first_birth(*forward).place == "in m, after a"


def test_bad_inputs_of_the_whole_model_are_given():
    forward = story((0, "m", IN, True), (1, "m.a", IN, True), (1, "m.a", OUT, False))
    assert first_birth(*forward).kind == "given" and roles(*forward)[1] == "absorber"


def test_two_births_are_two_and_the_first_in_time_comes_first():
    forward = story(
        (0, "m", IN, False),
        (1, "m.a", IN, False),
        (1, "m.a", OUT, True),
        (2, "m.b", IN, False),
        (2, "m.b", OUT, True),
    )
    assert [birth.module for birth in births(*forward)] == ["m.a", "m.b"]


def test_what_was_overwritten_is_unknown_and_not_clean():
    forward = story((0, "m", IN, False), (1, "m.a", IN, None), (1, "m.a", OUT, False))
    assert roles(*forward)[1] == "unknown"


@given(st.lists(st.booleans(), min_size=2, max_size=12))
def test_there_is_a_first_birth_exactly_if_something_is_bad(bad):
    parts = [(number // 2 + 1, f"m.{number // 2}", number % 2, flag) for number, flag in enumerate(bad)]
    calls, leaves = story((0, "m", IN, False), *parts)
    first = first_birth(calls, leaves)
    assert (first is not None) == any(bad)
    if first is not None:
        assert births(calls, leaves)[0] == first
