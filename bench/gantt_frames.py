"""How long one frame of the Gantt chart takes in a browser: a made capture of 10^6 launches on 16 rows.

Bar: 95 % of frames under 16.7 ms of drawing, at every zoom, while panning, and with a search on. The page is
the one that `lab analyze` writes; a copy without its content policy reports its own times.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from bench.table import Row, at_most, measured
from lab.recordings.gantt.bars import Span, assemble, packed
from lab.report.page import write_page
from lab.report.parts import Page, Section, Timeline

LAUNCHES, ROWS, KINDS = 1_000_000, 16, 400
CHROMIUM = (
    "chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --window-size=1600,1000"
)
PROBE = """<script>addEventListener("load", async () => {
  const holder = document.querySelector(".timeline"), began = performance.now();
  while (!holder.dataset.ready) await new Promise((done) => setTimeout(done, 20));
  const chart = window.chart, ready = performance.now() - began, times = {};
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const measure = async (name, moves) => {
    times[name] = [];
    for (const move of moves) {
      move(); await frame(); await frame();
      times[name].push(Number(holder.dataset.drawMs));
    }
  };
  const [from, to] = chart.whole, span = to - from;
  await measure("whole", Array.from({ length: 30 }, () => () => chart.show(from, to)));
  await measure("zoom", Array.from({ length: 80 }, (_, k) => () => chart.zoom(from + 0.4 * span, 1 / 1.2)));
  for (const part of [2, 8, 32, 128, 1024]) {
    chart.show(from, from + span / part);
    await measure(`pan 1/${part}`, Array.from({ length: 40 }, () => () => chart.pan(span / part / 20)));
  }
  chart.show(from, to);
  const look = performance.now();
  chart.box.value = "kernel_39"; chart.find(); await frame();
  const found = performance.now() - look;
  await measure("search", Array.from({ length: 30 }, () => () => chart.show(from, to)));
  await fetch("/times", { method: "POST", body: JSON.stringify({ ready, found, times }) });
});</script></body>"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        began = time.perf_counter()
        write_page(made_page(), page)
        print(
            f"page of {LAUNCHES} launches: {page.stat().st_size / 1e6:.1f} MB, made in "
            f"{time.perf_counter() - began:.1f} s"
        )
        found = times_of(probed(page.read_text()), Path(folder))
    print(f"ready {found['ready'] / 1000:.2f} s after load, a search {found['found']:.0f} ms")
    slow = False
    for name, times in found["times"].items():
        middle, most = np.percentile(times, [50, 95])
        slow |= bool(most >= 16.7)
        limit, met = at_most(float(most), 16.7, "ms")
        words = f"{middle:.2f} ms a frame, 95 % under {most:.2f} ms ({len(times)} frames)"
        size = f"{LAUNCHES:,} launches"
        measured(Row(f"a frame of the Gantt chart, {name}", size=size, cost=words, limit=limit, met=met))
    sys.exit(1 if slow else 0)


def made_page() -> Page:
    """Launches without gaps of note, of KINDS names with ops and shapes, two forwards."""
    generator = np.random.default_rng(0)
    each = LAUNCHES // ROWS
    dur = generator.exponential(8.0, (ROWS, each)) + 0.5
    start = np.cumsum(dur + generator.exponential(2.0, (ROWS, each)), axis=1) - dur
    kind = generator.integers(0, KINDS, LAUNCHES)
    names = np.array([f"kernel_{index}<float, {index % 7}>" for index in range(KINDS)], dtype=object)
    ops = np.array([f"aten::op_{index % 60}" for index in range(KINDS)], dtype=object)
    frame = pd.DataFrame(
        {
            "rank": np.repeat(np.arange(ROWS) // 8, each),
            "device": np.repeat(np.arange(ROWS) % 8 // 4, each),
            "stream": np.repeat(np.arange(ROWS), each),
            "start_us": start.ravel(),
            "dur_us": dur.ravel(),
            "family": (kind % 4).astype(np.int8),
            "name": names[kind],
            "op": ops[kind],
            "shapes": np.array([f"[[{index},64],[64,{index}]]" for index in range(KINDS)], dtype=object)[
                kind
            ],
        }
    )
    half = float(start.max()) / 2
    bars = assemble(frame, [Span("step_0", 0.0, half), Span("step_1", half, 2 * half)])
    chart = Timeline("gantt", packed(bars), "made", "bars.csv")
    return Page("Gantt", "How fast?", ["made"], "ok", sections=[Section("Chart", [chart])])


def probed(text: str) -> str:
    start = text.index('<meta http-equiv="Content-Security-Policy"')
    text = text[:start] + text[text.index(">", start) + 1 :]
    text = text.replace("new Timeline(holder);", "window.chart = new Timeline(holder);")
    return text.replace("</body>", PROBE)


def times_of(page: str, folder: Path) -> dict:
    """Serve the page to a browser and wait for the times that it sends back."""
    answer: list[bytes] = []
    done = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode() if self.path == "/" else b"")

        def do_POST(self) -> None:
            answer.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            done.set()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        # Without a port to be asked on, a headless browser ends with the load.
        command = [
            *CHROMIUM.split(),
            "--remote-debugging-port=0",
            f"--user-data-dir={folder / 'profile'}",
            url,
        ]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not done.wait(300):
                sys.exit("the browser sent no times within 300 s")
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    return json.loads(answer[0])


if __name__ == "__main__":
    main()
