"""Which rank a recording is of: of the process group, else as a launcher says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lab.same import part_offset
from lab.workload.recorder.recorder import plain_name, ranks

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("rank", "world", "expected"),
    [("1", "2", (1, 2)), ("0", "1", (0, 1)), ("1", None, (0, 1)), ("x", "2", (0, 1)), ("2", "2", (0, 1))],
)
def test_a_launcher_says_the_rank_before_there_is_a_group(monkeypatch, rank, world, expected):
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert ranks() == expected


@pytest.mark.parametrize(
    ("placements", "mesh", "coordinate", "offset"),
    [
        (["S0"], [2], [1], [4, 0]),
        (["S1"], [2], [1], [0, 3]),  # 5 columns: 3 and 2
        (["R"], [2], [1], [0, 0]),
        (["P"], [2], [1], [0, 0]),
        (["S0", "S0"], [2, 2], [1, 1], [6, 0]),  # the second divides what the first has left
        (["S0", "S1"], [2, 2], [1, 1], [4, 3]),
        (["_StridedShard(dim=0)"], [2], [1], None),
    ],
)
def test_parts_begin_where_torch_chunk_says(placements, mesh, coordinate, offset):
    assert part_offset([7, 5], placements, mesh, coordinate) == offset


def test_names_are_without_wrappers():
    class DistributedDataParallel:
        pass

    assert plain_name("module.blocks.0._orig_mod.up", DistributedDataParallel()) == "blocks.0.up"
    assert plain_name("module.x", object()) == "module.x"
    assert plain_name("_fsdp_wrapped_module.a._checkpoint_wrapped_module.b", object()) == "a.b"
