"""A sweep over algorithms and protocols: each request stands beside what log and kernels say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.rooms.sweep.gemm.data import read_sweep
from lab.rooms.sweep.report import report
from lab.rooms.sweep.tables import SweepTables
from tests.rooms.sweep.gemm.recorded import read_tables
from tests.rooms.sweep.tuner.made import tuning
from tests.tracegen import TraceWriter, training_step

SIZE = 4096  # of training_step's all-reduces of 1,024 floats
INIT = "host:1:1 [0] NCCL INFO 28 coll channels, 28 collnet channels, 0 nvls channels\n"


def _record(root: Path, how: str, log: str = "", *, repeat: int = 1, step_us: float = 50) -> None:
    folder = root / f"256thread/nccl_28channels{how}" / (f"repeat{repeat}" if repeat > 1 else "")
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        training_step(writer, 5, 1000)
        training_step(writer, 6, 1000 + step_us)
        writer.write(folder / f"torch_profiler/rank{rank}/trace_step6.json.gz")
    (folder / "nccl.host.1.log").write_text(INIT + log)


def _said(tables: SweepTables, out: Path) -> Findings:
    return report(tables, out=out, title="a sweep", provenance={})


def test_what_the_log_confirms_is_honoured_and_nothing_is_lacking(tmp_path):
    _record(tmp_path, "_ring_simple", tuning(SIZE))
    _record(tmp_path, "_tree_ll", tuning(SIZE, "TREE", "LL"))
    tables = read_tables(tmp_path, workers=1)
    assert tables.configs[
        ["algorithm", "protocol", "algorithm_verdict", "protocol_verdict"]
    ].values.tolist() == [
        ["ring", "simple", "honoured", "honoured"],
        ["tree", "ll", "honoured", "honoured"],
    ]
    row = tables.effective.iloc[-1]
    assert (row.requested_algorithm, row.effective_algorithm, row.effective_protocol) == (
        "tree",
        "tree",
        "ll",
    )
    assert set(tables.effective.evidence) == {"log"}
    found = _said(tables, tmp_path / "out")
    assert found.lacking == []
    page = (tmp_path / "out/report.html").read_text()
    assert "256t 28ch tree ll" in page and "Algorithm requested" in page


def test_a_request_that_the_log_refutes_is_said_in_its_cell_and_lacks(tmp_path):
    _record(tmp_path, "_tree_ll128", tuning(SIZE, "RING", "SIMPLE"))
    tables = read_tables(tmp_path, workers=1)
    assert set(tables.effective.algorithm_verdict) == set(tables.effective.protocol_verdict) == {"ignored"}
    found = _said(tables, tmp_path / "out")
    assert found.lacking == [
        "256 threads, 28 channels, tree ll128: algorithm tree is not proven: ring was used at 4 KiB",
        "256 threads, 28 channels, tree ll128: protocol ll128 is not proven: simple was used at 4 KiB",
    ]
    assert found.status == "warn" and read_sweep(tmp_path, workers=1).missing == found.lacking


def test_without_lines_in_the_log_only_the_block_can_prove_it(tmp_path):
    _record(tmp_path, "_ring_simple")  # a block of 288: the ring's simple protocol
    _record(tmp_path, "_ring_ll")
    tables = read_tables(tmp_path, workers=1)
    by_protocol = tables.configs.set_index("protocol")
    assert by_protocol.loc["simple", "protocol_verdict"] == "honoured"
    assert by_protocol.loc["ll", "protocol_verdict"] == "ignored"
    assert set(tables.effective.evidence) == {"block"}


def test_a_request_that_reaches_no_collective_of_the_trace_is_no_all_clear(tmp_path):
    _record(tmp_path, "_pat", tuning(SIZE))  # serves all-gathers, of which there are none
    tables = read_tables(tmp_path, workers=1)
    assert set(tables.effective.requested_algorithm) == {""}
    (text,) = _said(tables, tmp_path / "out").lacking
    assert text.endswith("algorithm pat is not proven: no collective that it could reach is in the traces")


def test_nothing_requested_asks_for_no_proof(tmp_path):
    _record(tmp_path, "")
    tables = read_tables(tmp_path, workers=1)
    assert tables.configs[["algorithm", "algorithm_verdict", "protocol_verdict"]].values.tolist() == [
        ["", "", ""]
    ]
    found = _said(tables, tmp_path / "out")
    assert found.lacking == [] and "algorithm" not in found.terminal


def test_settings_that_differ_in_the_algorithm_alone_are_two_in_every_ranking(tmp_path):
    for repeat in (1, 2, 3):
        _record(tmp_path, "_ring", tuning(SIZE), repeat=repeat, step_us=50 + repeat)
        _record(tmp_path, "_tree", tuning(SIZE, "TREE"), repeat=repeat, step_us=90 + repeat)
    tables = read_tables(tmp_path, workers=1)
    found = _said(tables, tmp_path / "out")
    assert found.verdict[0].startswith("256 threads, 28 channels, ring is fastest: ")
    kept = pd.read_csv(tmp_path / "out/tables/configs.csv")
    assert kept.groupby("algorithm").size().to_dict() == {"ring": 3, "tree": 3}
