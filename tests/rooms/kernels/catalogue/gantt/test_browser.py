"""The timeline in a browser."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.trails import trails
from tests.rooms.kernels.made import generation

CHROMIUM = """
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --virtual-time-budget=4000
"""


@pytest.mark.browser
def test_the_timeline_draws_zooms_and_shows_tips_in_a_browser(tmp_path):
    import subprocess

    from lab.rooms.kernels.catalogue.gantt.page import write_gantt_page
    from lab.rooms.kernels.catalogue.rank import read_rank

    trace = generation(forwards=3, comm=True).write(tmp_path / "trace_rank0.json")
    page = write_gantt_page(bars_of([read_rank(trail) for trail in trails(tmp_path)]), tmp_path, [trace])
    # The page's own policy forbids further scripts, so the test looks from a copy without it.
    probe = """<script>addEventListener("load", async () => {
      const canvas = document.querySelector(".timeline canvas"), pen = canvas.getContext("2d");
      const painted = () => new Set(pen.getImageData(0, 0, canvas.width, canvas.height).data).size > 8;
      const wait = (ms) => new Promise((done) => setTimeout(done, ms));
      for (let turn = 0; turn < 10 && !painted(); turn += 1) await wait(100);
      const first = painted(), select = document.querySelector(".timeline select");
      select.value = "1"; select.dispatchEvent(new Event("change"));
      await wait(300);
      const box = canvas.getBoundingClientRect(); let tip = "";
      for (let x = 0; x < box.width && !tip; x += 1) {
        const at = { clientX: box.left + x, clientY: box.top + 42, bubbles: true };
        canvas.dispatchEvent(new PointerEvent("pointermove", at));
        tip = canvas.dataset.tip || "";
      }
      document.title = `${first} ${painted()} ${select.options.length} ${tip}`;
    });</script></body>"""
    text = page.read_text()
    start = text.index('<meta http-equiv="Content-Security-Policy"')
    text = text[:start] + text[text.index(">", start) + 1 :]
    copy = tmp_path / "probe.html"
    copy.write_text(text.replace("</body>", probe))
    done = subprocess.run(
        [
            *CHROMIUM.split(),
            f"--user-data-dir={tmp_path / 'profile_dir'}",
            "--dump-dom",
            f"file://{copy}",
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    title = done.stdout[done.stdout.index("<title>") + 7 : done.stdout.index("</title>")]
    assert title.startswith("true true 4 nvjet_gemm · 10.00 µs at "), title
