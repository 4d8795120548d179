"""A capture under a name that lab itself writes is found as the cell that it was written for."""

from __future__ import annotations

import itertools

import pytest

from lab.rooms.nsys.config import Cell
from lab.rooms.nsys.layout import cell_of_name, published_name

TYPES_OF_PART = {
    "a": ("forward",),
    "b": ("forward", "forward_backward", "training"),
    "d": ("training", "forward_backward", "forward"),
    "e": ("forward",),
}


@pytest.mark.parametrize("part", TYPES_OF_PART)
def test_every_name_that_lab_writes_is_read_back(part):
    for kind, context in itertools.product(TYPES_OF_PART[part], (128, 512, 1024)):
        cell = Cell(size="small", context=context, type=kind)
        _, base = published_name(cell, part)
        assert cell_of_name(base) == cell, base
