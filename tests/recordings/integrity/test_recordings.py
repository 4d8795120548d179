"""Every shared recording judged as it is, and damaged copies of them named by what was taken out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.calls import COPY, GRAPH_LAUNCH, LAUNCH, call_kinds
from lab.recordings.integrity import integrity_of
from lab.recordings.lacks import verdict_of
from lab.recordings.load import load_capture
from lab.recordings.tables import KERNEL, MEMCPY, MEMSET, Table
from tests.recordings.integrity.made import judged, keep, loaded

pytestmark = pytest.mark.data

GRAPHS = "captures/graphs"
COMPLETE = [
    "kernels_h200/bloom560m_generate.json.gz",
    "kernels_h200/cs336_small_training.json.gz",
    f"{GRAPHS}/torch_compile_triton/trace.json.gz",
    f"{GRAPHS}/sglang_decode/capture_traces/bs_32_rank0.json.gz",
    f"{GRAPHS}/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
    "captures/h200_decoder/infer_eager.json.gz",
    "captures/h200_decoder/infer_eager_modules.json.gz",
    "captures/h200_decoder/infer_graph_capture.json.gz",
    "captures/h200_decoder/nsys_graph_nodes.sqlite.gz",
    "nsys_h200/transformer_2layer.sqlite.gz",
    *(f"serve/a_{name}01.json.gz" for name in ("base", "slow", "swap", "idle")),
    "serve/falconsai_h100.json.gz",
    "serve/falconsai_mi300.json.gz",
]
# (axis, place, rule) -> n, of
LOSSY = {
    "rocm/mi300_qwen1.5_0.5b.json.gz": {("host", "head", "H"): (463, 1517)},
    "rocm/mi300_resnet_ddp_rank0of8.json.gz": {("host", "head", "H"): (968, 3653)},
    "serve/qwen_h100.json.gz": {("host", "head", "H"): (509, 1707)},
    f"{GRAPHS}/flux1_one_file/capture_and_replay.json.gz": {("gpu", "hole", "R"): (1, 994)},
}
SHARES = {"rocm/mi300_qwen1.5_0.5b.json.gz": 0.309, "rocm/mi300_resnet_ddp_rank0of8.json.gz": 0.318}


@pytest.mark.parametrize("name", COMPLETE)
def test_an_intact_recording_is_complete(shared_data, name):
    assert loaded(shared_data / name).lacks == ()


def test_equal_replays_without_their_capture_are_unknown(shared_data):
    (lack,) = loaded(shared_data / "captures/h200_decoder/infer_graph.json.gz").lacks
    assert (lack.rule, lack.place, lack.n, lack.unknown) == ("R", "all", 141, True)


def test_every_rank_of_the_sweep_is_complete(shared_data):
    traces = sorted((shared_data / "sweep_h200").glob("*/*/torch_profiler/rank[07]/*.json.gz"))
    assert len(traces) == 8 and all(load_capture(path).lacks == () for path in traces)


@pytest.mark.parametrize("name", LOSSY)
def test_a_recording_that_its_window_cut_is_lossy_by_what_is_missing(shared_data, name):
    capture = loaded(shared_data / name)
    found = {(one.axis, one.place, one.rule): one for one in capture.lacks}
    assert {key: (one.n, one.of) for key, one in found.items()} == LOSSY[name]
    assert capture.verdict == "lossy"
    if name in SHARES:
        (one,) = capture.lacks
        assert one.share == pytest.approx(SHARES[name], abs=0.0005)


def test_a_window_of_one_second_lacks_its_edges_in_either_process(shared_data):
    capture = loaded(shared_data / "nsys_public/h100_2gpu_1s.sqlite.gz")
    found = {(one.process, one.axis, one.place): one for one in capture.lacks if not one.unknown}
    assert set(found) == {(p, *key) for p in (0, 1) for key in (("gpu", "tail"), ("host", "head"))}
    assert sum(found[p, "host", "head"].n for p in (0, 1)) == 2276
    assert [found[p, "host", "head"].share for p in (0, 1)] == pytest.approx([0.438, 0.438], abs=0.001)
    # 2,280 of 4,372 with memsets, of which nobody knows whether they owe a row.
    assert [(found[p, "gpu", "tail"].n, found[p, "gpu", "tail"].of) for p in (0, 1)] == [(1095, 2130)] * 2
    assert [one.axis for one in capture.lacks if one.rule == "N" and one.unknown] == ["gpu"]


@pytest.mark.parametrize(
    ("name", "share"),
    [("sglang_decode/sglang_Qwen3-8B_decode", 0.9875), ("vllm_decode_full/graph_execution", 0.9693)],
)
def test_one_replay_alone_is_unknown_and_its_thinned_operators_are_an_edge(shared_data, name, share):
    capture = loaded(shared_data / GRAPHS / f"{name}.json.gz")
    found = {(one.axis, one.place, one.rule): one for one in capture.lacks}
    assert set(found) == {("gpu", "all", "R"), ("ops", "head", "C"), ("ops", "tail", "C")}
    assert found["gpu", "all", "R"].unknown
    assert found["gpu", "all", "R"].share == pytest.approx(share, abs=0.0001)


DAMAGED = [
    "kernels_h200/cs336_small_training.json.gz",
    "kernels_h200/bloom560m_generate.json.gz",
    "nsys_h200/transformer_2layer.sqlite.gz",
    "serve/falconsai_mi300.json.gz",
    "sweep_h200/512thread/nccl_28channels/torch_profiler/rank3/trace_step7.json.gz",
]


def lost_rows(capture, how: str) -> np.ndarray:
    """Mask (n,) of the rows of `ops` that the damage takes away."""
    ops = capture.ops
    kernels = np.flatnonzero(ops.kind == KERNEL)
    kernels = kernels[np.argsort(ops.start_ns[kernels], kind="stable")]
    by_time = np.argsort(ops.start_ns, kind="stable")
    few = max(len(ops) // 50, 3)
    random = np.random.default_rng(5).permutation(kernels)
    streams, counts = np.unique(ops.stream[kernels], return_counts=True)
    one_stream = kernels[ops.stream[kernels] == streams[counts.argmin()]]
    chosen = {
        "head": by_time[:few],
        "tail": by_time[-few:],
        "at random": random[: len(kernels) // 20],
        "a third": random[: len(kernels) // 3],
        "one stream": one_stream if len(streams) > 1 else kernels[10:20],
        "all": kernels,
        "a copy": np.flatnonzero(ops.kind == MEMCPY)[1:2],
    }[how]
    lost = np.zeros(len(ops), dtype=bool)
    lost[chosen] = True
    return lost


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("how", ["head", "tail", "at random", "a third", "one stream", "all", "a copy"])
def test_lost_gpu_rows_are_counted_to_the_row(shared_data, name, how):
    capture = loaded(shared_data / name)
    lost = lost_rows(capture, how)
    if not lost.any():
        pytest.skip("nothing of that kind in this recording")
    damaged = keep(capture, ops=~lost)
    found = [one for one in integrity_of(damaged) if one.axis == "gpu"]
    due = np.isin(call_kinds(capture), (LAUNCH, COPY, GRAPH_LAUNCH))
    owing = (lost & (capture.ops.kind != MEMSET)).sum()
    assert verdict_of(found) == "lossy"
    assert sum(one.n for one in found) == owing
    assert sum(one.share for one in found) == pytest.approx(owing / due.sum(), abs=1e-9)
    if how in ("at random", "a third", "one stream"):
        assert any(one.place == "hole" for one in found)
    if how in ("head", "tail"):
        assert {how} <= {one.place for one in found}


@pytest.mark.parametrize("name", DAMAGED)
def test_cut_correlations_are_holes_on_both_axes(shared_data, name):
    capture = loaded(shared_data / name)
    cut = np.random.default_rng(6).random(len(capture.ops)) < 0.1
    corr = np.where(cut, -1, capture.ops.corr)
    damaged = replace(capture, ops=Table(capture.ops.as_dict() | {"corr": corr}), lacks=())
    found = judged(damaged)
    ns = capture.ops.end_ns - capture.ops.start_ns
    assert found["host", "hole", "H"].n == cut.sum()
    assert found["host", "hole", "H"].share == pytest.approx(ns[cut].sum() / ns.sum(), abs=1e-9)
    owing = cut & (capture.ops.kind != MEMSET)
    assert sum(one.n for key, one in found.items() if key[0] == "gpu") == owing.sum()


@pytest.mark.parametrize("name", DAMAGED)
def test_lost_api_rows_leave_gpu_rows_without_a_call(shared_data, name):
    capture = loaded(shared_data / name)
    gone = np.random.default_rng(7).random(len(capture.api)) < 0.05
    found = judged(keep(capture, api=~gone))
    orphans = np.isin(capture.ops.corr, capture.api.corr[gone])
    ns = capture.ops.end_ns - capture.ops.start_ns
    on_host = [one for key, one in found.items() if key[0] == "host"]
    assert sum(one.n for one in on_host) == orphans.sum()
    assert sum(one.share for one in on_host) == pytest.approx(ns[orphans].sum() / ns.sum(), abs=1e-9)
    assert verdict_of(on_host) == "lossy"
    assert verdict_of(integrity_of(keep(capture, api=np.zeros(len(capture.api), dtype=bool)))) == "unknown"


@pytest.mark.parametrize("lost", [5, 60, 128])
def test_a_replay_that_lost_one_of_its_rows_is_found_though_every_launch_has_rows(shared_data, lost):
    capture = loaded(shared_data / "captures/h200_decoder/infer_graph.json.gz")
    graph = np.isin(capture.ops.corr, capture.api.corr[call_kinds(capture) == GRAPH_LAUNCH])
    rows = np.flatnonzero(graph)
    assert len(rows) == 141 and capture.kernels[rows].sum() == 129
    rows = rows[np.argsort(capture.ops.start_ns[rows], kind="stable")]
    mask = np.ones(len(capture.ops), dtype=bool)
    mask[rows[lost]] = False
    found = integrity_of(keep(capture, ops=mask))
    (one,) = found
    assert (one.rule, one.n, one.of, one.unknown) == ("R", 1, 141, False)
