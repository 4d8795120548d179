"""One rank's report against TraceLens and HTA: read + timeline + GEMM + collectives, and with Excel.

Bars: on 200 MB at most 1/20 of the CPU time and 1/15 of the memory; on real traces of 55-60 MB 1/8; with
Excel 1/8.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import Cost, cost, side_by_side
from bench.peers import HTA, TRACELENS, peer

OURS = """
    import sys; from lab.recordings import views; from lab.recordings.kineto import read_kineto
    trace = read_kineto(sys.argv[1])
    views.gpu_timeline(trace), views.gemm_instances(trace), views.collective_instances(trace)
"""
OURS_EXCEL = """
    import sys; from pathlib import Path
    from lab.rooms.sweep.gemm.data import read_sweep
    from lab.rooms.sweep.gemm.workbooks.write import write_reports
    import shutil; shutil.rmtree(sys.argv[2], ignore_errors=True)  # with it goes the cache
    out = Path(sys.argv[2])
    cache = out / ".cache" / "traces"
    write_reports(read_sweep(Path(sys.argv[1]), cache=cache, workers=1, workbooks=out), out)
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
ROUNDS = 3


def main() -> None:
    tracelens, hta = peer(TRACELENS), peer(HTA)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in [*traces.recorded().values(), traces.big(folder, 200)]:
            without_excel(path, folder, tracelens, hta)
            with_excel(path, folder, tracelens)


def without_excel(path: Path, folder: Path, tracelens: str | None, hta: str | None) -> None:
    programs = {"lab": partial(cost, OURS, str(path))}
    if tracelens:
        programs["TraceLens"] = partial(cost, THEIRS, str(path), str(folder), python=tracelens)
    if hta:
        programs["HTA"] = partial(cost, BY_HTA, str(path), python=hta)
    compare(f"{path.name}, figures", programs)


def with_excel(path: Path, folder: Path, tracelens: str | None) -> None:
    rank = folder / "ranks" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    place = rank / path.name
    place.symlink_to(path)
    programs = {"lab": partial(cost, OURS_EXCEL, str(rank.parent), str(folder / "out"))}
    if tracelens:
        programs["TraceLens"] = partial(cost, THEIRS_EXCEL, str(path), str(folder), python=tracelens)
    compare(f"{path.name}, with Excel", programs)
    shutil.rmtree(rank.parent)


def compare(title: str, programs: dict[str, partial[Cost]]) -> None:
    costs = dict(zip(programs, side_by_side(ROUNDS, *programs.values()), strict=True))
    ours = costs.pop("lab")
    print(f"{title}: lab {ours.cpu_s:.2f} s {ours.peak_mb:.0f} MB")
    for name, theirs in costs.items():
        print(
            f"    {name} {theirs.cpu_s:.2f} s {theirs.peak_mb:.0f} MB: "
            f"{theirs.cpu_s / ours.cpu_s:.1f}x the time, {theirs.peak_mb / ours.peak_mb:.1f}x the memory"
        )
