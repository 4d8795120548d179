"""Which files are captures of which cell."""

from __future__ import annotations

import itertools

import pytest

from lab.rooms.nsys.config import Cell
from lab.rooms.nsys.layout import cell_of_name, published_name


def test_published_names_and_back():
    assert published_name(Cell(size="small", context=512, type="forward"), "a") == (
        "part_a",
        "small_forward_ctx512",
    )
    assert published_name(Cell(size="xl", context=512, type="training"), "d") == (
        "part_d",
        "xl_training_step",
    )
    for name, size, context, kind in [
        ("2.7B_forward_ctx1024", "2.7B", 1024, "forward"),
        ("small_forward_backward_annotated", "small", 512, "forward_backward"),
        ("large_training_step", "large", 512, "training"),
        ("medium_attention_analysis", "medium", 512, "forward"),
        ("xl_ctx128_training", "xl", 128, "training"),
    ]:
        cell = cell_of_name(name)
        assert (cell.size, cell.context, cell.type) == (size, context, kind)
    assert cell_of_name("report1") is None and cell_of_name("huge_training_step") is None


TYPES_OF_PART = {
    "a": ("forward",),
    "b": ("forward", "forward_backward", "training"),
    "d": ("training", "forward_backward", "forward"),
    "e": ("forward",),
}


@pytest.mark.parametrize("part", TYPES_OF_PART)
def test_every_name_that_lab_writes_is_read_back(part):
    for kind, context in itertools.product(TYPES_OF_PART[part], (128, 512, 1024)):
        _, base = published_name(Cell(size="small", context=context, type=kind), part)
        cell = cell_of_name(base)
        assert (cell.size, cell.context, cell.type) == ("small", context, kind), base
