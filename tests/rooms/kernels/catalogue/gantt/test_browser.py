"""The timeline in a browser."""

from __future__ import annotations

import shutil

import pytest

from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.trails import trails
from tests.conftest import BROWSERS
from tests.rooms.kernels.made import generation


@pytest.mark.browser
def test_the_timeline_draws_zooms_and_shows_tips_in_a_browser(tmp_path):
    pytest.importorskip("playwright", reason="needs playwright")
    from playwright.sync_api import sync_playwright

    from lab.rooms.kernels.catalogue.gantt.page import write_gantt_page
    from lab.rooms.kernels.catalogue.rank import read_rank

    trace = generation(forwards=3, comm=True).write(tmp_path / "trace_rank0.json")
    page = write_gantt_page(bars_of([read_rank(trail) for trail in trails(tmp_path)]), tmp_path, [trace])
    # The page's own policy forbids further scripts, so the test looks from a copy without it.
    probe = """<script>async function look() {
      const holder = document.querySelector(".timeline"), canvas = holder.querySelector("canvas");
      const wait = (ms) => new Promise((done) => setTimeout(done, ms));
      const until = async (fits) => {
        for (const end = performance.now() + 180000; !fits(); await wait(10))
          if (performance.now() > end) throw new Error(`waited in vain: ${fits}`);
      };
      const said = () => holder.querySelector(".said").textContent;
      await until(() => holder.dataset.ready);
      const pen = canvas.getContext("2d");
      const painted = () => new Set(pen.getImageData(0, 0, canvas.width, canvas.height).data).size > 8;
      await until(painted);
      const select = holder.querySelector("select.marks");
      canvas.width = canvas.width; // empty, until it is drawn again
      select.value = "1"; select.dispatchEvent(new Event("change"));
      await until(painted);
      const box = canvas.getBoundingClientRect();
      const found = { options: select.options.length };
      let bar = 0;
      for (let x = 0; x < box.width && !found.tip; x += 1) {
        const at = { clientX: box.left + x, clientY: box.top + 42, bubbles: true };
        canvas.dispatchEvent(new PointerEvent("pointermove", at));
        found.tip = canvas.dataset.tip || ""; bar = at;
      }
      canvas.dispatchEvent(new PointerEvent("pointerdown", bar));
      canvas.dispatchEvent(new PointerEvent("pointerup", bar));
      found.told = Array.from(holder.querySelectorAll(".told dd"), (one) => one.textContent);
      const search = holder.querySelector(".search"), regex = holder.querySelector(".regex input");
      const input = () => search.dispatchEvent(new Event("input"));
      const look = (text) => { search.value = text; input(); return said(); };
      found.text = look("NVJET"); found.none = look("no such kernel"); regex.checked = true;
      found.regex = look("^nvjet_(g|x)emm$"); found.bad = look("("); look("");
      canvas.focus();
      const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      ["n", "n", "+", "ArrowRight", "Escape", "p"].forEach(press);
      found.keys = holder.querySelectorAll(".told dd").length;
      const by = holder.querySelector("select.by");
      by.value = "op"; by.dispatchEvent(new Event("change"));
      found.legend = Array.from(holder.querySelectorAll(".keys button"), (one) => one.textContent);
      holder.querySelector(".keys button").click();
      found.lit = said();
      return found;
    }</script></body>"""
    text = page.read_text()
    assert "http:" not in text.replace("http://www.w3.org", "") and "https:" not in text, (
        "no external requests"
    )
    start = text.index('<meta http-equiv="Content-Security-Policy"')
    text = text[:start] + text[text.index(">", start) + 1 :]
    copy = tmp_path / "probe.html"
    copy.write_text(text.replace("</body>", probe))
    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        seen = browser.new_page()
        seen.goto(copy.as_uri())
        found = seen.evaluate("look()")
        browser.close()
    assert found["options"] == 4
    assert found["tip"].startswith("nvjet_gemm · 10.00 µs at ") and found["tip"].endswith("aten::mm")
    assert found["told"][:4] == ["nvjet_gemm", "matrix products", "aten::mm", found["told"][3]]
    assert found["told"][3].startswith("[[") and found["told"][7] == "GPU 0 stream 7 compute"
    assert found["text"] == found["regex"].replace("^nvjet_(g|x)emm$", "NVJET")
    assert found["text"].startswith("6 of 15 launches, 60.00 µs")
    assert found["none"].startswith("0 of 15 launches") and "not a valid regular expression" in found["bad"]
    assert found["keys"] == 12, "p chose a launch after escape had forgotten the last one"
    assert "aten::mm" in found["legend"] and "of 15 launches" in found["lit"]
