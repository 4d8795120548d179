"""Uneven ranks, launches without an op and operators that stand in for launches are reported."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.cli import unique
from lab.rooms.kernels.trails import trails
from tests.compare.made import edited, layer, trace
from tests.rooms.kernels.catalogue.traces import catalogue_of
from tests.rooms.kernels.made import generation

LOST = (
    "no GPU row was recorded: operators on the CPU stand in for its launches, and their times are the CPU's"
)


def test_ranks_that_launched_unequal_numbers_are_named(tmp_path):
    generation(forwards=3, rank=0, world_size=2).write(tmp_path / "trace_rank0.json")
    short = generation(forwards=3, rank=1, world_size=2)
    short.events = [e for e in short.events if not (e["name"] == "nvjet_gemm" and e["ts"] > 3200)]
    short.write(tmp_path / "trace_rank1.json")
    found = read_catalogue(trails(tmp_path))
    assert any("different counts on different ranks" in text and "0:4 1:2" in text for text in found.problems)


def test_a_launch_without_an_op_is_counted_and_reported(tmp_path):
    writer = generation(forwards=1)
    writer.kernel("orphan", 5000, 20)
    found = catalogue_of(writer.write(tmp_path / "t.json"))
    assert found.launches[-1].op_id == -1 and found.launches[-1].name == "orphan"
    assert any("1 of 5 launches" in text and "have no op" in text for text in found.problems)


def without(*categories):
    return lambda events: [one for one in events if one["cat"] not in categories]


@pytest.mark.parametrize(
    ("lost", "code", "said", "time"),
    [
        ((), 0, False, "launches, 0.165 ms in all"),
        (("kernel",), 5, False, ""),
        (("kernel", "cuda_runtime"), 0, False, "launches, 0.036 ms of CPU time in all"),
    ],
    ids=["on a GPU", "rows lost", "on a CPU"],
)
def test_times_of_operators_are_said_to_be_the_cpus(tmp_path, lost, code, said, time):
    path = edited(trace(tmp_path / "a.json", [layer()] * 3), without(*lost))
    done = CliRunner().invoke(unique, [str(path), "-o", str(tmp_path / "out")], standalone_mode=False)
    assert getattr(done.exception, "exit_code", 0) == code
    assert (f"! a.json: {LOST}" in done.output) is said and time in done.output
