"""`lab serve` and `lab query` on 2,000 runs, a timeline of 10^6 slices in a browser, and 100,000 requests.

Bars: home within 300 ms, a query within 1 s, start within 1 s, 200 MB; first paint of the timeline within 2 s
of its request, 95 % of frames while panning and zooming within 33 ms.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bench.table import Row, at_most, measured

RUNS, SLICES, REQUESTS = 2000, 1_000_000, int(os.environ.get("LAB_BENCH_REQUESTS", "100000"))
CHROMIUM = os.environ.get("LAB_BENCH_CHROMIUM", "/usr/bin/chromium")
QUERIES = {
    "figures by room": "select room, count(*), avg(value) from figures group by room",
    "a room's tables": "select run, step_ms from sweep_configs order by step_ms limit 10",
}
PROBE = """async () => {
  const holder = document.querySelector(".timeline"), chart = holder.timeline, found = {};
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const measure = async (name, moves) => {
    const times = [];
    for (const move of moves) {
      const began = performance.now();
      move(); await frame(); await frame();
      times.push([Number(holder.dataset.drawMs), performance.now() - began]);
    }
    found[name] = times;
  };
  const [from, to] = chart.whole, span = to - from;
  await measure("whole", Array.from({ length: 20 }, () => () => chart.show(from, to)));
  await measure("zoom", Array.from({ length: 60 }, () => () => chart.zoom(from + 0.4 * span, 1 / 1.2)));
  for (const part of [2, 32, 1024]) {
    chart.show(from, from + span / part);
    await measure(`pan 1/${part}`, Array.from({ length: 40 }, () => () => chart.pan(span / part / 20)));
  }
  return found;
}"""


def main() -> None:
    needed = ("uvicorn", "starlette", "duckdb", "playwright")
    if lacking := [name for name in needed if find_spec(name) is None]:
        what = f"{RUNS:,} runs, {SLICES:,} slices"
        measured(Row("`lab serve`", size=what, absent=f"not installed: {', '.join(lacking)}"))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        met = all([*of_runs(folder), *of_timeline(folder)])
    sys.exit(0 if met else 1)


def of_runs(folder: Path) -> Iterator[bool]:
    from tests.serve.made import write_runs

    root = write_runs(folder / "runs", RUNS)
    with served(root) as (base, cookie, first_s, process):
        print(f"first start, {RUNS} runs indexed: {first_s:.2f} s")
    with served(root) as (base, cookie, start_s, process):
        print(f"start with a cache: {cpu_of(process):.2f} s CPU")
        yield told("start with a cache", start_s, 1.0)
        for path in ("/", "/?sort=figure&group=model", "/rows?q=room:nan+verdict:warn"):
            times = [timed(base, path, cookie) for _ in range(12)][2:]
            yield told(f"GET {path}", float(np.median(times)), 0.3)
        began = time.perf_counter()
        for at in range(REQUESTS):  # a hundredth asks for the list, the others are strangers
            timed(base, "/rows?q=zzz", cookie if at % 100 == 0 else "", wanted=(200, 403))
        spent = time.perf_counter() - began
        print(f"{REQUESTS:,} requests: {REQUESTS / spent:.0f} a second")
        yield told("resident memory, MB", resident_mb(process), 200)
    for words, sql in QUERIES.items():
        times, before = [], cpu_s()
        for _ in range(5):
            began = time.perf_counter()
            command = [sys.executable, "-m", "lab", "query", sql, str(root)]
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        print(f"lab query, {words}: {(cpu_s() - before) / 5:.2f} s CPU")
        yield told(f"lab query, {words}", float(np.median(times)), 1.0)


def of_timeline(folder: Path) -> Iterator[bool]:
    from playwright.sync_api import sync_playwright

    root = folder / "traces"
    write_trace(root / "big.trace.json")
    with served(root) as (base, cookie, _, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1600, "height": 1000})
        name, _, value = cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": base}])
        page = context.new_page()
        page.set_default_timeout(600_000)
        for words, bar in (("first sight, recording read", None), ("first paint, columns kept", 2.0)):
            began = time.perf_counter()
            page.goto(f"{base}/timeline?file=big.trace.json")
            page.wait_for_selector(".timeline[data-ready]")
            spent = time.perf_counter() - began
            if bar:
                yield told(f"{SLICES:,} slices: {words}", spent, bar)
            else:
                print(f"{SLICES:,} slices: {words}: {spent:.2f} s")
        for words, times in page.evaluate(PROBE).items():
            draw, whole = np.percentile(np.array(times), 95, axis=0)
            yield told(f"{words}: 95 % of frames, ms drawing", float(draw), 33.0)
            print(f"    with the browser's two frames {whole:.1f} ms")
        browser.close()


def write_trace(path: Path) -> None:
    """Kernels and their launches, half of SLICES each, of 400 names on 8 streams."""
    path.parent.mkdir(parents=True)
    generator = np.random.default_rng(0)
    count, streams = SLICES // 2, 8
    dur = np.round(generator.exponential(8.0, count) + 0.5, 3)
    stream = generator.integers(0, streams, count)
    kind = generator.integers(0, 400, count)
    start = np.zeros(count)
    for one in range(streams):
        mine = stream == one
        start[mine] = np.cumsum(dur[mine] + 1) - dur[mine]
    call = np.sort(generator.uniform(0, start.max(), count))
    with path.open("w") as file:
        file.write('{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H200"}],"traceEvents":[\n')
        for at in range(count):
            file.write(
                f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{call[at]:.3f},'
                f'"dur":1.5,"args":{{"correlation":{at + 1}}}}},\n'
                f'{{"ph":"X","cat":"kernel","name":"kernel_{kind[at]}<float>","pid":0,"tid":{stream[at]},'
                f'"ts":{start[at] + 5:.3f},"dur":{dur[at]},"args":{{"device":0,"stream":{stream[at]},'
                f'"correlation":{at + 1},"grid":[8,1,1],"block":[256,1,1]}}}}'
                f"{'' if at == count - 1 else ','}\n"
            )
        file.write("]}\n")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, str, float, subprocess.Popen]]:
    """(address, cookie, seconds until the first page, process) of `lab serve`."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "lab", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next(line.strip() for line in process.stdout if line.startswith("http"))
        spent = time.perf_counter() - began
        found = re.match(r"http://([^/]+)(/.*)", url)
        assert found
        connection = http.client.HTTPConnection(found[1], timeout=120)
        connection.request("GET", found[2])
        cookie = (connection.getresponse().headers["set-cookie"] or "").split(";")[0]
        connection.close()
        yield f"http://{found[1]}", cookie, spent, process
    finally:
        _connections.clear()
        process.terminate()
        process.wait(30)


_connections: dict[str, http.client.HTTPConnection] = {}


def timed(base: str, path: str, cookie: str, *, wanted: tuple[int, ...] = (200,)) -> float:
    connection = _connections.setdefault(base, http.client.HTTPConnection(base[7:], timeout=120))
    began = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    answer.read()
    if answer.status not in wanted:
        sys.exit(f"{path}: {answer.status}")
    return time.perf_counter() - began


def cpu_s() -> float:
    """Of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_of(process: subprocess.Popen) -> float:
    words = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(process: subprocess.Popen) -> float:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1000 for line in text.splitlines() if line.startswith("VmHWM"))


def told(words: str, value: float, bar: float) -> bool:
    unit = "MB" if words.endswith(", MB") else "ms" if "ms drawing" in words else "s"
    limit, met = at_most(value, bar, unit)
    measured(
        Row(f"`lab serve`, {words}", size=f"{RUNS:,} runs", cost=f"{value:.3f} {unit}", limit=limit, met=met)
    )
    return met


if __name__ == "__main__":
    main()
