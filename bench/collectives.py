"""The collective report of 8 ranks x 4,000 collectives against TraceLens.

Bars: at most 1/40 of its CPU time, with Excel 1/8; and linear growth.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.measure import cost, side_by_side
from bench.peers import TRACELENS, peer
from bench.table import Row, at_least, measured

RANKS, CALLS = 8, 4000
GROWTH = (4000, 16000)
ROUNDS = int(os.environ.get("LAB_BENCH_ROUNDS", "3"))
BARS = {"figures": 40.0, "with Excel": 8.0}
OURS = """
    import sys; from pathlib import Path
    from lab.recordings import views
    from lab.recordings.kineto import read_kineto
    from lab.recordings.pairing import pair_collectives
    ranks = {r: Path(sys.argv[1]) / f"rank{r}" / "trace.json" for r in range(8)}
    pair_collectives({rank: views.collective_instances(read_kineto(path)) for rank, path in ranks.items()})
"""
PAIRING = """
    import sys, time; from pathlib import Path
    from lab.recordings import views
    from lab.recordings.kineto import read_kineto
    from lab.recordings.pairing import pair_collectives
    ranks = {r: Path(sys.argv[1]) / f"rank{r}" / "trace.json" for r in range(8)}
    tables = {rank: views.collective_instances(read_kineto(path)) for rank, path in ranks.items()}
    start = time.process_time()
    found = pair_collectives(tables).collectives
    assert len(found) == int(sys.argv[2]) and found.complete.all()
    Path(sys.argv[3]).write_text(str(time.process_time() - start))
"""
ACCOUNT = """
    import sys, time; from pathlib import Path
    from lab.recordings.kineto import read_kineto
    from lab.recordings.ranks import account_of, work_of
    from lab.recordings.ranks.explain import explain
    ranks = {r: Path(sys.argv[1]) / f"rank{r}" / "trace.json" for r in range(8)}
    works = {rank: work_of(read_kineto(path)) for rank, path in ranks.items()}
    start = time.process_time()
    (found,) = explain([account_of(works)])
    assert found.account.num_complete == int(sys.argv[2])
    Path(sys.argv[3]).write_text(str(time.process_time() - start))
"""
THEIRS = """
    import sys; from pathlib import Path
    from TraceLens.Reporting.generate_multi_rank_collective_report_pytorch import generate_collective_report
    pattern = sys.argv[1] + "/rank*/trace.json"
    generate_collective_report(trace_pattern=pattern, world_size=8, output_csvs_dir=sys.argv[2])
"""


OURS_EXCEL = """
    import sys; from pathlib import Path
    from lab.rooms.sweep.gemm.reading.data import read_sweep
    from lab.rooms.sweep.gemm.workbooks.write import write_reports
    import shutil; shutil.rmtree(sys.argv[2], ignore_errors=True)
    out = Path(sys.argv[2])
    write_reports(read_sweep(Path(sys.argv[1]), workers=1, workbooks=out), out)
"""
THEIRS_EXCEL = """
    import sys; from pathlib import Path
    from TraceLens.Reporting.generate_multi_rank_collective_report_pytorch import generate_collective_report
    pattern, out = sys.argv[1] + "/rank*/trace.json", Path(sys.argv[2])
    out.mkdir(exist_ok=True)
    generate_collective_report(trace_pattern=pattern, world_size=8, output_xlsx_path=str(out / "all.xlsx"))
"""


def main() -> None:
    tracelens = peer(TRACELENS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for calls in GROWTH:
            grown(made(folder / str(calls), calls), calls)
        place = str(folder / str(CALLS))
        compare("figures", OURS, THEIRS, (place, str(folder / "out")), tracelens)
        compare("with Excel", OURS_EXCEL, THEIRS_EXCEL, (place, str(folder / "excel")), tracelens)


def compare(kind: str, our_code: str, their_code: str, words: tuple[str, str], tracelens: str | None) -> None:
    programs = [partial(cost, our_code, *words)]
    if tracelens:
        programs.append(partial(cost, their_code, *words, python=tracelens))
    ours, *others = side_by_side(ROUNDS, *programs)
    row = Row(
        f"collectives of all ranks, reading included, {kind}",
        size=f"{RANKS} x {CALLS:,}",
        cost=f"{ours.cpu_s:.2f} CPU s",
        memory_mb=ours.peak_mb,
        absent=f"no peer: {TRACELENS} names none",
    )
    for theirs in others:
        ratio = theirs.cpu_s / ours.cpu_s
        limit, met = at_least(ratio, BARS[kind])
        peer_words = f"TraceLens {theirs.cpu_s:.1f} CPU s, {theirs.peak_mb:.0f} MB"
        row = replace(row, peer=peer_words, ratio=ratio, limit=limit, met=met)
    measured(row)


def grown(folder: Path, calls: int) -> None:
    """The pairing, and the account of every rank, without reading."""
    seconds = folder / "seconds"
    for what, code in (("pairing", PAIRING), ("account of every rank, with replays", ACCOUNT)):
        whole = cost(code, str(folder), str(calls), str(seconds))
        words = f"{float(seconds.read_text()):.2f} CPU s"
        measured(Row(what, size=f"{RANKS} x {calls:,}", cost=words, memory_mb=whole.peak_mb))


def made(folder: Path, calls: int) -> Path:
    """8 traces of alternating all-gathers and reduce-scatters, ended by all ranks together."""
    random = np.random.default_rng(2025)
    starts = np.arange(calls) * 1000.0 + random.integers(0, 400_000, (RANKS, calls)) / 1000
    ends = starts.max(axis=0) + 150
    for rank in range(RANKS):
        path = folder / f"rank{rank}" / "trace.json"
        path.parent.mkdir(parents=True)
        with path.open("w") as file:
            file.write(json.dumps(_head(rank))[:-2])
            file.write(
                ",\n".join(json.dumps(e) for n in range(calls) for e in _events(n, starts[rank, n], ends[n]))
            )
            file.write("]}")
    return folder


def _head(rank: int) -> dict[str, object]:
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": RANKS, "ranks": list(range(RANKS))}
    info = {"backend": "nccl", "rank": rank, "world_size": RANKS, "pg_count": 1, "pg_config": [group]}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "deviceProperties": [{"id": rank, "name": "NVIDIA H200"}],
        "traceEvents": [],
    }


def _events(n: int, start: float, end: float) -> list[dict[str, object]]:
    gather, at = n % 2 == 0, {"pid": 7, "tid": 7}
    told = {
        "Collective name": "_allgather_base" if gather else "_reduce_scatter_base",
        "In msg nelems": 1 << 19,
        "Out msg nelems": 1 << 22 if gather else 1 << 16,
        "Group size": RANKS,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(RANKS))),
    }
    kernel = {
        "External id": n + 1,
        "device": 0,
        "context": 1,
        "stream": 28,
        "correlation": n + 1,
        "grid": [28, 1, 1],
        "block": [288, 1, 1],
        **told,
    }
    name = (
        "ncclDevKernel_AllGather_RING_LL(x)" if gather else "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)"
    )
    ts = round(start, 3)
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            **at,
            "ts": round(ts - 20, 3),
            "dur": 15.5,
            "args": {"External id": n + 1, **told},
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernelExC",
            **at,
            "ts": round(ts - 15, 3),
            "dur": 4.25,
            "args": {"External id": n + 1, "correlation": n + 1},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 28,
            "ts": ts,
            "dur": round(end - ts, 3),
            "args": kernel,
        },
    ]
