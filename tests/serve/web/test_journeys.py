"""Ten things that a person does with `lab serve`, in a real browser."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("starlette", reason="needs lab[serve]")
pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from lab.core import manifest
from lab.core.run import LOCK, MANIFEST
from lab.core.step import Outcome, Status
from tests.recordings.merge.made import read
from tests.serve.made import write_run
from tests.serve.web.browser import served, visited
from tests.tracegen import TraceWriter

pytestmark = pytest.mark.browser
NOW = datetime.now(timezone.utc)
HOSTILE = """<!doctype html><title>report</title><p id="said">nothing</p>
<a id="csv" href="tables/births.csv">csv</a>
<script>
const said = [];
try { document.cookie; said.push("cookie read"); } catch (error) { said.push("no cookie"); }
try { top.location = "https://example.com/"; said.push("top left"); } catch (error) { said.push("no top"); }
fetch("/rows", { credentials: "include" })
  .then((answer) => said.push("read " + answer.status), () => said.push("no fetch"))
  .then(() => { document.getElementById("said").textContent = said.join(", "); });
</script>"""
HOLD = """import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(1, flush=True)
sys.stdin.read()"""
UNNAMED = """Array.from(document.querySelectorAll('input, select, button, textarea, svg[role], canvas'))
  .filter((one) => !one.getAttribute('aria-label') && !(one.labels && one.labels.length))
  .filter((one) => !one.textContent.trim()).map((one) => one.outerHTML)"""


def launches(slow: float = 1.0, rank: int = 0) -> TraceWriter:
    """Two steps of three GEMMs and an all-reduce; `slow` stretches the second GEMM of each."""
    trace = TraceWriter(rank=rank, world_size=2)
    for step in range(2):
        at = 1000 + 1000 * step
        trace.step(step, at, 900)
        for gemm, took in enumerate((10, 20 * slow, 30)):
            trace.gemm(64, 64, 32 * (gemm + 1), at + 100 + 100 * gemm, took)
        trace.all_reduce(1024, at + 500, 40)
    return trace


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of runs, and a browser that has opened the pages once."""
    folder = tmp_path_factory.mktemp("serve")
    root = folder / "runs"
    for at, value in enumerate([12.0, 9.0, 11.0]):
        driver = "590.0" if at == 0 else "580.1"
        write_run(root, f"sweep_{at}", step_ms=value, at=NOW - timedelta(days=at), driver=driver)
    write_run(root, "sweep_old", step_ms=1.0, at=NOW - timedelta(days=60))
    write_run(
        root, "nan_1", room="nan", table="births", verdict="fail", lead="layers.3.mlp gave the first NaN."
    )
    write_run(root, "broken")
    (root / "broken" / MANIFEST).write_text("{")
    (root / "nan_1" / "report.html").write_text(HOSTILE)
    for name, slow in (("sweep_0", 1.5), ("sweep_1", 1.0)):
        for rank in range(2):
            there = root / name / "256thread" / "torch_profiler" / f"rank{rank}"
            there.mkdir(parents=True)
            launches(slow, rank).write(there / "trace.json")
    with served(root, folder / "cache") as url, visited(url) as first:
        yield root, first


@pytest.fixture
def page(site):
    root, first = site
    page = first.context.new_page()
    page.on("pageerror", lambda error: first.wrong.append(str(error)))
    page.on("request", lambda one: first.asked.append(one.url))
    page.base, page.root = first.base, root
    page.goto(first.base)
    yield page
    page.close()


def names(page) -> list[str]:
    return page.locator("td.name a").all_inner_texts()


def open_run(page, name: str) -> None:
    page.locator("td.name a", has_text=name).first.click()
    page.wait_for_selector("#manifest")
    page.wait_for_load_state()  # before it a browser may drop a click into the report's frame


def test_find_the_fastest_sweep_of_last_week(page):
    page.fill("#q", "room:sweep")
    page.select_option("select[name=sort]", "figure")
    page.select_option("select[name=desc]", "0")
    expect(page.locator("td.name a").first).to_have_text("sweep_old")
    assert names(page)[:2] == ["sweep_old", "sweep_1"]
    page.goto(f"{page.base}/ask")
    page.select_option("#saved", label="fastest sweeps of a week")
    page.locator("button[type=submit]").click()
    page.wait_for_selector("table.data")
    assert page.locator("tbody tr").first.inner_text().split()[0] == "sweep_1", "sweep_old is two months old"
    page.locator("tbody a").first.click()
    assert page.locator("h1").inner_text() == "sweep_1"


def test_why_is_this_run_slower_than_that(page):
    for name in ("sweep_1", "sweep_0"):
        page.get_by_label(f"compare {name}", exact=True).check()
    page.click("text=compare the ticked runs")
    text = page.locator("main").inner_text()
    assert "580.1" in text and "590.0" in text
    assert page.locator("tr.equal").first.is_hidden(), "what is equal is folded away"
    page.click("text=show what is equal too")
    assert page.locator("tr.equal").first.is_visible()
    page.locator("#diff a", has_text="256thread/torch_profiler/rank0/trace.json").click()
    inner = page.frame_locator("iframe.report")
    change = inner.locator("main").inner_text()
    assert "nvjet_gemm" in change and ("+10.0" in change or "-10.0" in change), "the second GEMM, 20 to 30 µs"


def test_names_of_kernels_and_cells_are_text_wherever_they_are_shown(page):
    evil = "<img src=x onerror=document.title='hacked'>"
    for name in ("sweep_0", "sweep_1"):
        trace = launches()
        trace.kernel(evil, 1700, 20)
        trace.step(2, 3000, 900)
        trace.kernel(f"{evil}{name}", 3100, 20)
        trace.write(page.root / name / "evil.trace.json")
    try:
        page.goto(f"{page.base}/timeline?file=sweep_0/evil.trace.json")
        page.wait_for_selector(".timeline[data-ready]")
        page.fill(".search", "onerror")
        page.locator(".search").press("Enter")
        assert page.locator(".told dd").first.inner_text() == evil
        page.click("text=highlight this kernel")
        keys = [hashlib.sha256(name.encode()).hexdigest()[:16] for name in ("sweep_0", "sweep_1")]
        page.goto(f"{page.base}/diff?run={keys[0]}&run={keys[1]}&part=evil.trace.json")
        inner = page.frame_locator("iframe.report")
        assert "onerror" in inner.locator("main").inner_text() and inner.locator("img").count() == 0
        page.goto(f"{page.base}/ask?sql=select '{evil.replace(chr(39), chr(39) * 2)}' as x")
        assert page.locator("tbody td").inner_text() == evil
        assert page.locator("main img").count() == 0 and page.title() != "hacked"
    finally:
        for name in ("sweep_0", "sweep_1"):
            (page.root / name / "evil.trace.json").unlink()


def test_nothing_is_wider_than_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 800})
    runs = [one.get_attribute("href").rsplit("/", 1)[1] for one in page.locator("td.name a").all()[:2]]
    sides = f"/compare?run={runs[0]}&run={runs[1]}"
    for path in ("/", "/?group=room", f"/run/{runs[0]}", sides, "/ask?sql=select+*+from+runs"):
        page.goto(f"{page.base}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_open_the_nan_runs_first_producer_and_its_page_is_in_a_sandbox(page):
    page.fill("#q", "verdict:fail")
    expect(page.locator("td.name a")).to_have_count(1)
    open_run(page, "nan_1")
    assert "layers.3.mlp gave the first NaN." in page.locator(".lead").inner_text()
    frame = page.frame_locator("iframe.report")
    frame.locator("#said", has_text="fetch").wait_for()
    said = frame.locator("#said").inner_text()
    assert "no cookie" in said and "no fetch" in said and "read" not in said
    assert page.url.startswith(page.base), "the page could not leave"
    with page.expect_download() as download:
        frame.locator("#csv").click()
    assert Path(download.value.path()).read_text().startswith("channels,")


def test_zoom_to_a_kernel_and_find_its_siblings_and_its_call(page):
    open_run(page, "sweep_0")
    page.locator("#recordings tr", has_text="256thread").get_by_text("rank0/trace.json").click()
    page.wait_for_selector(".timeline[data-ready]")
    page.fill(".search", "^nvjet_g.mm$")
    page.check(".regex input")
    assert page.locator(".said").inner_text().startswith("6 of ")
    page.locator(".search").press("Enter")
    told = page.locator(".told dd").all_inner_texts()
    assert told[0] == "nvjet_gemm" and told[2] == "aten::mm" and told[3].startswith("[[64")
    times = "6, shortest 10.00 µs, median 30.00 µs, 95 % below 30.00 µs, longest 30.00 µs"
    assert told[11] == f"{times}; 4 take longer than this one"
    page.click("text=go to the call that launched it")
    assert page.locator(".told dd").first.inner_text() == "cudaLaunchKernel"
    page.locator("canvas").focus()
    page.keyboard.press("f")
    assert page.locator(".told dd").first.inner_text() == "nvjet_gemm"
    address = page.url
    page.reload()
    page.wait_for_selector(".told dd")
    assert "#bar=" in address and page.locator(".told dd").first.inner_text() == "nvjet_gemm"


def test_measure_between_two_cursors(page):
    open_run(page, "sweep_1")
    page.locator("#recordings tr", has_text="256thread").get_by_text("rank0/trace.json").click()
    page.wait_for_selector(".timeline[data-ready]")
    page.fill(".search", "nvjet_gemm")
    page.locator(".search").press("Enter")
    page.locator("canvas").focus()
    page.keyboard.press("m")
    page.keyboard.press("m")
    assert (
        page.locator(".said")
        .inner_text()
        .startswith("10.00 µs between the cursors; 1 bar reaches into it, 10.00 µs")
    )


def test_ranks_lie_under_each_other_and_open_in_perfetto_by_download(page, tmp_path):
    open_run(page, "sweep_0")
    page.locator("#recordings a", has_text="2 ranks together").click()
    page.wait_for_selector(".timeline[data-ready]")
    page.fill(".search", "nvjet_gemm")
    assert page.locator(".said").inner_text().startswith("12 of ")
    with page.expect_download() as download:
        page.click("text=download all ranks for Perfetto")
    download.value.save_as(tmp_path / "all.json.gz")
    events = read(tmp_path / "all.json.gz")["traceEvents"]
    assert sum(event.get("cat") in ("kernel", "gpu_memcpy") for event in events) == 16


def test_a_live_run_appears_and_ends_and_the_list_follows(page):
    folder = write_run(
        page.root,
        "live_1",
        statuses=("ok", None),
        at=NOW + timedelta(minutes=1),
        host=socket.gethostname(),
        verdict=None,
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"1\n"
        page.wait_for_selector("section.live")
        live = page.locator("section.live")
        assert "live_1" in live.inner_text() and "1 of 2 steps done" in live.inner_text()
        (folder / "steps/step1/run_output.log").write_text("step 2/4  loss <b>0.5</b>\n")
        page.wait_for_selector("text=loss <b>0.5</b>")
        page.get_by_label("compare sweep_1", exact=True).check()
        other = page.context.new_page()
        other.goto(f"{page.base}{page.locator('section.live a').get_attribute('href')}")
        assert "running" in other.locator(".question").inner_text()
        (folder / "steps/step1/run_output.log").write_text("step 3/4  loss 0.4\n")
        other.wait_for_selector("text=loss 0.4")
        whole = manifest.load(folder / MANIFEST)
        outcome = Outcome(status=Status.ok, seconds=3.0, started_utc=NOW.isoformat())
        whole.steps[1] = msgspec.structs.replace(whole.steps[1], outcome=outcome)
        manifest.save(whole, folder / MANIFEST)
        holder.communicate()
        page.wait_for_selector("section.live", state="detached")
        row = page.locator("tr", has_text="live_1").inner_text()
        assert "2/2" in row and "no findings" in row
        expect(other.locator(".question")).not_to_contain_text("running")
        assert other.locator("#steps .pill").all_inner_texts() == ["ok", "ok"], "its own page follows too"
        assert page.get_by_label("compare sweep_1", exact=True).is_checked(), (
            "a refresh keeps what was ticked"
        )
    finally:
        holder.kill()
        shutil.rmtree(folder)


def test_check_the_files_of_a_run_against_its_manifest(page):
    log = page.root / "sweep_1" / "steps" / "step0" / "run_output.log"
    before = log.read_bytes()
    log.write_bytes(before.replace(b"0.7", b"0.8"))
    try:
        open_run(page, "sweep_1")
        page.click("#verify-all")
        page.wait_for_selector("text=1 of 2 files are as the manifest records them, 1 NOT")
        row = page.locator("#files tbody tr", has_text="steps/step0/run_output.log")
        assert "NOT the file that the manifest records" in row.inner_text()
    finally:
        log.write_bytes(before)


def test_tick_a_run_by_keyboard_and_read_the_list_in_the_dark_and_on_paper(page):
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 29)"
    page.get_by_label("compare sweep_1", exact=True).focus()
    page.keyboard.press("Space")
    assert page.locator("input:checked").count() == 1
    assert page.evaluate(UNNAMED) == [], "every control has a name for screen readers"
    page.emulate_media(media="print")
    assert page.locator("nav.top").is_hidden() and page.locator("table.runs").is_visible()
