"""Groups by columns against pandas' groupby, which is the plain form: a real rank's collectives and GEMMs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.pairing import pair_collectives
from lab.rooms.sweep.gemm.reading.rank import RankTables
from lab.rooms.sweep.gemm.sheets.workbook import coll_analysis
from lab.rooms.sweep.gemm.workbooks.collectives import collective_sheets
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.rank import figures_of
from lab.rooms.sweep.tables import GEMM_KEY
from tests.conftest import SHARED

CONFIG = "sweep_h200/256thread/nccl_28channels"
SYNC_KEY = ["Collective name", "dtype", "In msg nelems", "Process Group Name", "Group size"]


@cache
def traces():
    paths = sorted((SHARED / CONFIG).rglob("*.json.gz"))[:2]
    return [read_kineto(path) for path in paths]


def frame(table) -> pd.DataFrame:
    return pd.DataFrame(table.as_dict())


@pytest.mark.data
def test_a_ranks_figures_are_a_groupby_of_its_calls_and_gemms(tmp_path):
    trace = traces()[0]
    figures = figures_of(TraceFile(0, tmp_path / "t.json", None), trace)
    calls = frame(views.collective_instances(trace))
    keys = ["collective", "in_nelems", "dtype", "msg_bytes", "grid_x", "block_x"]
    plain = calls.groupby(keys).agg(
        count=("kernel", "size"), kernel=("kernel", "first"), group_size=("group_size", "max")
    )
    found = pd.DataFrame(figures.collectives)
    assert found[["count", "kernel", "group_size"]].to_numpy().tolist() == plain.to_numpy().tolist()
    names = ["in_nelems", "dtype", "msg_bytes", "effective_channels", "effective_threads"]
    assert found[names].to_numpy().tolist() == plain.reset_index()[keys[1:]].to_numpy().tolist()
    gemms = frame(views.gemm_instances(trace)).groupby([*GEMM_KEY, "strides"])["dur_ns"]
    rows = pd.DataFrame(figures.gemm)
    assert list(map(tuple, rows[[*GEMM_KEY, "strides"]].to_numpy())) == list(gemms.groups)
    assert rows["n"].tolist() == gemms.size().tolist()
    assert rows["max_us"].tolist() == (gemms.max() / 1000).tolist()
    np.testing.assert_allclose(rows["median_us"], gemms.median() / 1000, rtol=1e-12)
    np.testing.assert_allclose(rows["sum_us"], gemms.sum() / 1000, rtol=1e-12)


@pytest.mark.data
def test_the_summary_over_ranks_is_a_groupby_that_skips_what_is_not_known(tmp_path):
    ranks = {}
    for rank, trace in enumerate(traces()):
        calls = views.collective_instances(trace)
        figures = figures_of(TraceFile(rank, tmp_path / "t.json", None), trace)
        sheet = coll_analysis(calls, rank)
        ranks[rank] = RankTables(figures, collectives=calls, num_devices=8, sheets={"coll_analysis": sheet})
    pairs = pair_collectives({rank: one.collectives for rank, one in ranks.items()})
    sheets = {name: frame(sheet) for name, sheet in collective_sheets(pairs, ranks).items()}
    sync, summary = sheets["nccl_implicit_sync"], sheets["nccl_summary_implicit_sync"]
    plain = sync.groupby(SYNC_KEY)
    found = summary.set_index(SYNC_KEY).sort_index()
    assert found["count"].tolist() == plain.size().tolist()
    for what in ("comm_latency", "skew in start time", "bus bw (GB/s)"):
        for how in ("mean", "median", "min", "max"):
            np.testing.assert_allclose(found[f"{what}_{how}"], plain[what].agg(how), rtol=1e-12)
    np.testing.assert_array_equal(found["Full msg size (MB)"], plain["Full msg size (MB)"].first())
    assert summary["Total comm latency (ms)"].is_monotonic_decreasing
    long = sheets["nccl_long"]
    assert len(long) == sum(len(one.collectives) for one in ranks.values())
    assert long.sort_values(["ts", "rank"], kind="stable").index.tolist() == list(range(len(long)))
