"""One rank's report against TraceLens and HTA: read + timeline + GEMM + collectives, and with Excel.

Bars: figures of 200 MB in at most 1/55 of the CPU time and 1/25 of the memory; with Excel 1/18, on real
traces repeated to 55-60 MB 1/14.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import Cost, cost, side_by_side
from bench.peers import HTA, TRACELENS, peer
from bench.table import Row, at_least, measured

# lab's side imports as every command of lab does: `needs` keeps OpenBLAS from starting a thread per CPU.
OURS = """
    import sys; from lab.errors import needs
    with needs("analysis"):
        from lab.recordings import views; from lab.recordings.kineto import read_kineto
    trace = read_kineto(sys.argv[1])
    views.gpu_timeline(trace), views.gemm_instances(trace), views.collective_instances(trace)
"""
OURS_EXCEL = """
    import sys; from pathlib import Path; from lab.errors import needs
    with needs("analysis"):
        from lab.rooms.sweep.gemm.reading.data import read_sweep
        from lab.rooms.sweep.gemm.workbooks.write import write_reports
    import shutil; shutil.rmtree(sys.argv[2], ignore_errors=True)
    out = Path(sys.argv[2])
    write_reports(read_sweep(Path(sys.argv[1]), workers=1, workbooks=out), out)
"""
THEIRS = """
    import sys; from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
    generate_perf_report_pytorch(sys.argv[1], output_csvs_dir=sys.argv[2])
"""
THEIRS_EXCEL = """
    import sys; from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
    generate_perf_report_pytorch(sys.argv[1], output_xlsx_path=sys.argv[2] + "/report.xlsx")
"""
BY_HTA = """
    import sys; from hta.trace_analysis import TraceAnalysis
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
    analysis.get_temporal_breakdown(visualize=False), analysis.get_gpu_kernel_breakdown(visualize=False)
"""
ROUNDS = int(os.environ.get("LAB_BENCH_ROUNDS", "3"))
BARS = {"figures, 200 MB": 55.0, "with Excel, 200 MB": 18.0, "with Excel, 56 MB": 14.0}
LEANER = 25.0


def main() -> None:
    tracelens, hta = peer(TRACELENS), peer(HTA)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (*traces.real(folder), traces.big(folder, 200)):
            without_excel(path, folder, tracelens, hta)
            with_excel(path, folder, tracelens)
            path.unlink()


def without_excel(path: Path, folder: Path, tracelens: str | None, hta: str | None) -> None:
    programs = {"lab": partial(cost, OURS, str(path))}
    if tracelens:
        programs["TraceLens"] = partial(cost, THEIRS, str(path), str(folder), python=tracelens)
    if hta:
        programs["HTA"] = partial(cost, BY_HTA, str(path), python=hta)
    compare(path, "figures", programs)


def with_excel(path: Path, folder: Path, tracelens: str | None) -> None:
    rank = folder / "ranks" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    place = rank / path.name
    place.symlink_to(path)
    programs = {"lab": partial(cost, OURS_EXCEL, str(rank.parent), str(folder / "out"))}
    if tracelens:
        programs["TraceLens"] = partial(cost, THEIRS_EXCEL, str(path), str(folder), python=tracelens)
    compare(path, "with Excel", programs)
    shutil.rmtree(rank.parent)


def compare(path: Path, kind: str, programs: dict[str, partial[Cost]]) -> None:
    """One line per peer, or one without."""
    costs = dict(zip(programs, side_by_side(ROUNDS, *programs.values()), strict=True))
    ours, megabytes = costs.pop("lab"), path.stat().st_size / 1e6
    size = 200 if megabytes > 150 else 56
    for name, theirs in costs.items() or [("", None)]:
        row = Row(
            f"one rank, {kind}: {path.stem}",
            size=f"{megabytes:.0f} MB",
            cost=f"{ours.cpu_s:.2f} CPU s",
            memory_mb=ours.peak_mb,
            absent="no peer: LAB_BENCH_TRACELENS and LAB_BENCH_HTA name none",
        )
        if theirs is None:
            measured(row)
            continue
        ratio, leaner = theirs.cpu_s / ours.cpu_s, theirs.peak_mb / ours.peak_mb
        bar = BARS.get(f"{kind}, {size} MB") if name == "TraceLens" else None
        limit, met = at_least(ratio, bar) if bar else ("", None)
        peer = f"{name} {theirs.cpu_s:.1f} CPU s, {theirs.peak_mb:.0f} MB"
        measured(replace(row, peer=peer, ratio=ratio, limit=limit, met=met))
        if bar == BARS["figures, 200 MB"]:
            limit, met = at_least(leaner, LEANER)
            cost = f"{ours.peak_mb:.0f} MB"
            memory = f"one rank, {kind}, memory: {path.stem}"
            measured(replace(row, what=memory, cost=cost, peer=peer, ratio=leaner, limit=limit, met=met))
