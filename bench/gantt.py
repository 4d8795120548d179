"""The Gantt chart of 65,000 launches, trace to picture and page, against one drawing call per launch.

Bar: under 10 s and 1 GB. The peer is matplotlib's own `broken_barh`, called for every launch as simple
scripts do, on the same trace; it draws a tenth of the launches and is scaled up, since all of them would take
minutes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.measure import median_cost
from bench.table import Row, measured
from bench.traces import DATA, repeated

LAUNCHES = 65_000
BLOOM = DATA / "kernels_h200" / "bloom560m_generate.json.gz"
OURS = """
import sys
from pathlib import Path
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.gantt import bars_of, write_gantt, write_gantt_page
from lab.rooms.kernels.trails import Trail
trace, out = Path(sys.argv[1]), Path(sys.argv[2])
catalogue = read_catalogue([Trail(rank=0, trace=trace)])
bars = bars_of(catalogue)
assert len(bars.row) >= int(sys.argv[3]), len(bars.row)
write_gantt(bars, out)
write_gantt_page(bars, catalogue, out)
"""
PEER = """
import json, sys
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
with open(sys.argv[1]) as file:
    events = json.load(file)["traceEvents"]
kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")][: int(sys.argv[3])]
figure = Figure(figsize=(10.6, 2)); FigureCanvasAgg(figure)
ax = figure.subplots()
for event in kernels:
    ax.broken_barh([(event["ts"], event["dur"])], (0, 1))
figure.savefig(sys.argv[2] + "/peer.png", dpi=150)
"""
READ = """
import json, sys
with open(sys.argv[1]) as file:
    json.load(file)
"""


def main() -> None:
    if not BLOOM.exists():
        measured(Row("`lab kernels gantt`", absent=f"no recording at {BLOOM.name}"))
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = big(Path(folder))
        begin = time.perf_counter()
        ours = median_cost(3, OURS, str(trace), folder, str(LAUNCHES))
        wall_s = (time.perf_counter() - begin) / 3
        tenth = median_cost(1, PEER, str(trace), folder, str(LAUNCHES // 10))
        read = median_cost(1, READ, str(trace))
        peer_s = read.cpu_s + 10 * (tenth.cpu_s - read.cpu_s)
        met = ours.cpu_s < 10 and ours.peak_mb < 1000
        measured(
            Row(
                f"Gantt chart of {LAUNCHES:,} launches: picture, CSV and page",
                size=f"{trace.stat().st_size / 1e6:.0f} MB",
                cost=f"{ours.cpu_s:.2f} CPU s ({wall_s:.2f} s wall)",
                memory_mb=ours.peak_mb,
                peer=f"broken_barh, picture only: {peer_s:.0f} CPU s (scaled from {LAUNCHES // 10:,})",
                ratio=peer_s / ours.cpu_s,
                limit="≤ 10 s and 1,000 MB",
                met=met,
            )
        )


def big(folder: Path) -> Path:
    """The BLOOM generation repeated until it has enough launches (2,771 per copy of about 8 MB)."""
    one = repeated(BLOOM, folder / "one.json", 1)
    copies = -(-LAUNCHES // 2771)
    return repeated(BLOOM, folder / "big.json", copies * one.stat().st_size // 1_000_000 + 1)


if __name__ == "__main__":
    main()
