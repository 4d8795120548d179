"""Equal rows are one group whatever the columns hold, and unequal ones never are."""

from __future__ import annotations

import numpy as np
import pytest

from lab.rooms.kernels.catalogue.groups import group_rows, number_values


def by_tuples(columns):
    """The plain form: the rows as tuples."""
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return {row: [at for at, other in enumerate(rows) if other == row] for row in rows}


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_the_rows_as_tuples(seed):
    draw = np.random.default_rng(seed)
    wide = [-(2**63), -1, 0, 2**31, 2**62, 2**63 - 1]  # so wide that they cannot be put side by side
    columns = [
        draw.integers(-1, 3, 40),
        draw.choice(wide, 40),
        draw.integers(0, 2, 40),
        draw.choice(wide, 40),
    ]
    first, which = group_rows(columns)
    expected = by_tuples(columns)
    assert len(first) == len(expected)
    for row, members in expected.items():
        group = which[members[0]]
        assert np.flatnonzero(which == group).tolist() == members
        assert first[group] == members[0] and tuple(c[first[group]] for c in columns) == row


def test_no_rows_are_no_groups():
    first, which = group_rows([np.empty(0, dtype=np.int64)])
    assert len(first) == len(which) == 0


def test_32_bit_columns_do_not_overflow():
    columns = [np.array([-(2**31), 2**31 - 1, -(2**31)], dtype=np.int32)] * 3
    first, which = group_rows(columns)
    assert len(first) == 2 and which[0] == which[2] != which[1]


def test_values_are_numbered_by_appearance():
    ids, values = number_values(["b", None, "b", "a"])
    assert ids.tolist() == [0, 1, 0, 2] and values == ["b", None, "a"]
