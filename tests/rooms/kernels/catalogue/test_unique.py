"""Distinct launches as a table, with and without arguments in the key."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.signatures import bucketed


def test_a_growing_cache_is_one_signature_per_step_and_one_bucket(made):
    cats = made.unique[(made.unique["op"] == "aten::cat") & (made.unique["phase"] == "decode")]
    assert cats["bytes"].tolist() == [16, 24] or cats["bytes"].tolist() == [24, 16]
    rows = bucketed(made.unique)
    row = rows[(rows["op"] == "aten::cat") & (rows["phase"] == "decode")]
    assert row["signatures"].item() == 2 and row["count"].item() == 2


def test_a_bucket_is_a_bound_where_its_signatures_are(made):
    assert set(bucketed(made.unique)["bound"]) == {""}
    assert set(bucketed(made.unique.assign(bound="at least"))["bound"]) == {"at least"}
