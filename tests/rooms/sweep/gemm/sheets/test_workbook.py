"""Every sheet of one rank's workbook, against TraceLens' published tables of an MI300 trace."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.rooms.sweep.gemm.rank import gemm_table
from lab.rooms.sweep.gemm.sheets.launches import launches
from lab.rooms.sweep.gemm.sheets.workbook import coll_analysis, gemm_sheet, perf_sheets
from tests.conftest import SHARED

MI300 = SHARED / "rocm"
REFERENCE = MI300 / "mi300_qwen1.5_0.5b_reference"
# TraceLens identifies an op by its index among all events, lab by its External id.
NOT_COMPARED = ("UID_first", "ex_UID")


@cache
def mi300() -> dict[str, pd.DataFrame]:
    found = launches(read_kineto(MI300 / "mi300_qwen1.5_0.5b.json.gz"))
    collectives = views.collective_instances(found.trace)
    groups = gemm_sheet(found, gemm_table(found, collectives))
    sheets = perf_sheets(found, groups, coll_analysis(collectives, 0))
    return {name: pd.DataFrame(sheet.as_dict()) for name, sheet in sheets.items()}


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        "gpu_timeline",
        "ops_summary_by_category",
        "ops_summary",
        "ops_unique_args",
        "GEMM",
        "kernel_summary",
        "short_kernel_histogram",
        "short_kernels_summary",
    ],
)
def test_every_sheet_of_the_mi300_trace_agrees_with_tracelens_row_by_row(name):
    reference, ours = pd.read_csv(REFERENCE / f"{name}.csv"), mi300()[name]
    assert list(ours)[: reference.shape[1]] == list(reference)
    assert len(ours) == len(reference)
    numbers = [c for c in reference if pd.api.types.is_numeric_dtype(reference[c]) and c not in NOT_COMPARED]
    texts = [c for c in reference if c not in numbers and c not in NOT_COMPARED and "details" not in c]
    order = [*texts, *numbers[:1]]
    ours, reference = (
        frame.assign(**{c: frame[c].fillna("").astype(str) for c in texts}).sort_values(order, kind="stable")
        for frame in (ours[list(reference)], reference)
    )
    for column in texts:
        assert ours[column].tolist() == reference[column].tolist()
    for column in (c for c in numbers if "Cumulative" not in c):
        assert ours[column].to_numpy(float) == pytest.approx(
            reference[column].to_numpy(float), rel=1e-3, abs=1e-5, nan_ok=True
        )


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    ["unified_perf_summary", "SDPA_fwd", "UnaryElementwise", "BinaryElementwise", "Reduce_fwd"],
)
def test_sheets_of_modelled_ops_agree_with_tracelens_row_by_row(name):
    """TraceLens has no model of sin, cos, index_select; a mean over an axis is one over everything there."""
    reference, ours = pd.read_csv(REFERENCE / f"{name}.csv"), mi300()[name]
    assert list(ours)[: reference.shape[1]] == list(reference)
    only_ours = ours["name"].isin(["aten::sin", "aten::cos", "aten::index_select"])
    ours = ours[~only_ours]
    reference = reference[~reference["name"].isin(["aten::sin", "aten::cos", "aten::index_select"])]
    assert len(ours) == len(reference) and only_ours.sum() == {"u": 3, "U": 2}.get(name[0], 0)
    key = ["name", *(c for c in reference if c.startswith(("Input Dims", "Input type", "Input Strides")))]
    ours, reference = (frame.sort_values(key, kind="stable") for frame in (ours, reference))
    assert ours[key].astype(str).to_numpy().tolist() == reference[key].astype(str).to_numpy().tolist()
    mean = (reference["name"] == "aten::mean").to_numpy()
    for column in reference:
        if column in NOT_COMPARED or "details" in column or "Cumulative" in column or column == "perf_params":
            continue
        if pd.api.types.is_numeric_dtype(reference[column]) and not pd.api.types.is_bool_dtype(
            reference[column]
        ):
            got, known = (frame[column].to_numpy(float) for frame in (ours, reference))
            if column == "param: num_output_elems":
                assert got.tolist() == [16 * 559] and known.tolist() == [1]
                continue
            assert got[~mean] == pytest.approx(known[~mean], rel=1e-3, abs=1e-5, nan_ok=True), column
            assert got[mean] == pytest.approx(known[mean], rel=2e-3, abs=1e-5, nan_ok=True), column
        else:
            texts = [frame[column].fillna("").astype(str).tolist() for frame in (ours, reference)]
            none = [["" if text == "None" else text for text in column_texts] for column_texts in texts]
            assert none[0] == none[1], column


@pytest.mark.data
def test_the_difference_to_tracelens_timeline_is_the_kernels_launched_before_the_window():
    timeline, kernels = mi300()["gpu_timeline"].set_index("type"), mi300()["kernel_summary"]
    unlinked = kernels[kernels["Parent cpu_op"] == ""]
    assert unlinked["Kernel duration (µs)_count"].sum() == 463
    more_ms = (timeline["time ms (all kernels)"] - timeline["time ms"])["computation_time"]
    assert more_ms == pytest.approx(unlinked["Kernel duration (µs)_sum"].sum() / 1000, rel=1e-6)
    assert unlinked.loc[unlinked["family"] != "", "Kernel duration (µs)_count"].sum() == 74


CONFIG = "sweep_h200/256thread/nccl_28channels"


def frame(table) -> pd.DataFrame:
    return pd.DataFrame(table.as_dict())
