"""A signature is kernel, geometry, op, arguments and phase, with its counts; distinct launches as a table."""

from __future__ import annotations

import numpy as np
import pytest

from lab.rooms.kernels.catalogue.signatures import bucketed, spread


def test_counts_are_per_forward_of_their_phase_and_of_what_ran(made):
    assert made.signatures.forwards == {"prefill": 1, "decode": 2}
    mm = made.unique[made.unique["op"] == "aten::mm"].set_index("phase")
    assert mm["count"].to_dict() == {"prefill": 2, "decode": 4}
    assert mm["count_per_forward"].tolist() == [2.0, 2.0]


def test_a_signature_holds_kernel_geometry_op_and_arguments(made):
    one = next(one for one in made.signatures.signatures if one.op == "aten::mm" and one.phase == "decode")
    assert (one.grid, one.block, one.smem_bytes, one.regs) == ((8, 1, 1), (256, 1, 1), 512, 90)
    assert (one.class_, one.kernel, [arg.shape for arg in one.args]) == (
        "gemm",
        "nvjet_gemm",
        [[4, 8], [8, 8]],
    )
    assert one.dur_us.sum == 40.0 and one.dur_us.median == 10.0
    assert {made.launches[line].sig_id for line in one.launches} == {one.sig_id}


def test_percentiles_are_numpys():
    values = np.array([4.0, 1.0, 3.0, 2.0, 10.0])
    found = spread(values)
    assert (found.sum, found.min, found.max, found.median) == (20.0, 1.0, 10.0, 3.0)
    assert found.p95 == pytest.approx(np.percentile(values, 95))


def test_a_growing_cache_is_one_signature_per_step_and_one_bucket(made):
    cats = made.unique[(made.unique["op"] == "aten::cat") & (made.unique["phase"] == "decode")]
    assert cats["bytes"].tolist() == [16, 24] or cats["bytes"].tolist() == [24, 16]
    rows = bucketed(made.unique)
    row = rows[(rows["op"] == "aten::cat") & (rows["phase"] == "decode")]
    assert row["signatures"].item() == 2 and row["count"].item() == 2


def test_a_bucket_is_a_bound_where_its_signatures_are(made):
    assert set(bucketed(made.unique)["bound"]) == {""}
    assert set(bucketed(made.unique.assign(bound="at least"))["bound"]) == {"at least"}
