"""Which range owns which operation."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from lab.recordings.load import load_capture
from lab.recordings.projection import RULES, project
from tests.recordings.projection.made import paths, rules, sums
from tests.recordings.projection.test_plain import capture_of
from tests.recordings.sqlgen import PREFIX, Export, training_step


def test_backward_owns_what_another_thread_launched_within_it(loaded):
    found = sums(project(loaded(training_step(Export()))))
    for step in ("warmup", "step_0", "step_1"):
        assert found[step] == (8, 660)
        assert found[f"{step}/forward"] == (2, 200)
        assert found[f"{step}/backward"] == (5, 410)
        assert found[f"{step}/optimizer_step"] == (1, 50)


def test_nsys_own_rule_leaves_backward_with_what_its_own_thread_launched(loaded):
    projection = project(loaded(training_step(Export())), "nsys")
    assert sums(projection)["step_0/backward"] == (1, 10)
    assert sums(projection)["step_0"] == (4, 260)
    assert rules(projection).count("outside") == 12


def test_operator_ranges_on_the_worker_stand_below_the_inherited_phase(loaded):
    projection = project(loaded(training_step(Export(), op_ranges=True)))
    assert sums(projection)["step_1/backward/MmBackward0"] == (4, 400)
    assert rules(projection).count("cross") == 12


def test_measured_steps_leave_the_warm_up_out(loaded):
    capture = loaded(training_step(Export()))
    projection = project(capture)
    assert capture.text(capture.ranges.name_id[projection.steps]).tolist() == ["step_0", "step_1"]
    owners = projection.owners(projection.steps)
    assert np.bincount(owners[owners >= 0]).tolist() == [8, 8]


def test_ranges_of_two_domains_that_cross_both_count(loaded):
    export = Export()
    export.range("one", (1, 1), 0, 60)
    export.range("two", (1, 1), 30, 100, domain=1)
    export.launch("k", (1, 1), (40, 50), (110, 120))
    projection = project(loaded(export))
    assert projection.instances.num_kernels.tolist() == [1, 1]
    assert paths(projection) == ["one"]
    assert any("1 range only partly inside another" in said for said in projection.problems)


def test_the_sequence_number_links_a_backward_kernel_to_its_forward_range(loaded):
    export = Export()
    export.range("forward", (1, 1), 0, 100)
    export.range("computing_softmax", (1, 1), 10, 90)
    export.range("aten::softmax, seq = 7, op_id = 3", (1, 1), 20, 80)
    export.launch("softmax", (1, 1), (30, 40), (50, 60))
    export.range("backward", (1, 1), 200, 900)
    export.range("SoftmaxBackward0, seq = 7, op_id = 9", (1, 2), 300, 400)
    export.launch("softmax_backward", (1, 2), (310, 320), (330, 360))
    projection = project(loaded(export))
    assert paths(projection)[1] == "backward/SoftmaxBackward0"
    assert "/".join(projection.path(int(projection.ops.origin[1]))) == "forward/computing_softmax"


def test_ranges_nested_by_the_thousands_are_counted_to_the_innermost():
    depth = 4_000
    ranges = [(i, 2 * depth - i, 1, 1, "block") for i in range(depth)]
    projection = project(capture_of(ranges, [(depth, depth, 1, 1, 0)], [(depth, depth + 5, 1, 0)]))
    assert projection.instances.level.tolist() == list(range(depth))
    assert set(projection.instances.num_ops.tolist()) == {1}
    assert len(projection.path(int(projection.ops.path[0]))) == depth


def test_an_empty_capture_projects_to_nothing(loaded):
    projection = project(loaded(Export()))
    assert (len(projection.ops), len(projection.instances), len(projection.steps)) == (0, 0, 0)
    assert sums(projection) == {"": (0, 0)}


@pytest.mark.data
def test_the_recorded_backward_owns_its_kernels_and_steps_add_up(unpacked):
    capture = load_capture(unpacked("nsys_h200/transformer_2layer.sqlite.gz"))
    full, own = sums(project(capture)), sums(project(capture, "nsys"))
    for step in ("step_0", "step_1", "step_2"):
        assert full[step][0] == 118
        assert [full[f"{step}/{phase}"][0] for phase in ("forward", "backward", "optimizer_step")] == [
            46,
            64,
            8,
        ]
        assert own[f"{step}/backward"][0] == 1
        parts = [full[f"{step}/{phase}"] for phase in ("forward", "backward", "optimizer_step")]
        assert tuple(map(sum, zip(*parts, strict=True))) == full[step]


@pytest.mark.data
def test_a_kineto_trace_fills_the_same_hole_and_links_backward_to_forward(shared_data):
    capture = load_capture(shared_data / "kernels_h200" / "cs336_small_training.json.gz")
    full, own = project(capture), project(capture, "nsys")
    assert sums(full)["step_0/backward"][0] == 394
    assert sums(own)["step_0/backward"][0] == 1
    backward = sum(
        sums(own)[path][0] for path in ("warmup/warmup_step/backward", "step_0/backward", "step_1/backward")
    )
    assert backward == 3
    assert ((full.ops.origin >= 0) & capture.kernels).sum() == 1179


@pytest.mark.data
def test_a_trimmed_capture_agrees_with_the_join_in_sql(unpacked):
    path = unpacked("nsys_public/h100_2gpu_1s.sqlite.gz")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE INDEX a ON {PREFIX}RUNTIME (globalTid, start)")
        connection.execute(f"CREATE INDEX b ON {PREFIX}KERNEL (correlationId)")
        wanted = dict(
            connection.execute(
                f"""SELECT n.rowid, COUNT(*) FROM NVTX_EVENTS n JOIN {PREFIX}RUNTIME r
                ON r.globalTid = n.globalTid AND r.start BETWEEN n.start AND n.end AND n.end >= r.end
                JOIN {PREFIX}KERNEL k ON k.correlationId = r.correlationId
                AND k.globalPid = r.globalTid & ~0xFFFFFF GROUP BY n.rowid"""
            )
        )
    projection = project(load_capture(path), "nsys")
    rows, counts = projection.capture.ranges.row, projection.instances.num_kernels
    assert dict(zip(rows[counts > 0].tolist(), counts[counts > 0].tolist(), strict=True)) == wanted
    assert projection.coverage.num_kernels[RULES.index("unattributed")] == 1810
