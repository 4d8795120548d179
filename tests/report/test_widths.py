"""Pages on screens of several widths: nothing is wider than the screen, and no figure or cell is cut off."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.report.figures import Cell, cell_grid, ranges, save, stacked_panels, timeline, waterfall
from lab.report.page import write_page
from lab.report.parts import Card, Figure, Files, Page, Section, Table
from tests.conftest import BROWSERS

pytest.importorskip("playwright", reason="needs playwright")
pytestmark = pytest.mark.browser

LONG = "idle GPU, before operations whose launch was not recorded"
DEEP = "tracelens_analysis/top5_gemm_kernels_time_variance_with_collective_overlap"
# What of a figure, a table or the page lies outside of the part that is seen without scrolling.
CUT = """() => {
  const width = document.documentElement.clientWidth, found = [];
  const seen = (one) => one.getClientRects().length > 0;
  if (document.documentElement.scrollWidth > width) found.push("the page");
  for (const one of document.querySelectorAll(".scroll"))
    if (seen(one) && one.scrollWidth > one.clientWidth) found.push(one.className + " " + one.id);
  for (const one of document.querySelectorAll("svg text")) {
    const box = one.getBoundingClientRect(), frame = one.closest("svg").getBoundingClientRect();
    if (seen(one) && (box.left < frame.left - 1 || box.right > frame.right + 1)) found.push(one.textContent);
  }
  return found;
}"""


@pytest.fixture
def page(tmp_path: Path):
    parts = {"computation": np.array([30.0, 40.0]), "idle": np.array([9.0, 2.0])}
    bars = {("compute", "computation"): np.array([[0.0, 0.0, 3.0, 1.0], [1.0, 2.0, 3.0, 1.0]])}
    spans = [(1.0, 2.0, 3.0), (2.0, 4.0, 9.0)]
    named = ["a cell of no special name", "flash_off+tf32_off+deterministic_strict+one_queue"]
    draw = {
        "waterfall": partial(
            waterfall, ("A", 1e4), [(LONG, 480.0), ("less", -90.0)], "B: span of a step", axis="µs"
        ),
        "panels": partial(stacked_panels, ["s 5", "s 6"], [["r0", "r1"]] * 2, [parts] * 2, axis="ms"),
        "timeline": partial(
            timeline, ["rank 0", "rank 1"], bars, span=(0, 5), bands=(), shades=(), axis="ms"
        ),
        "ranges": partial(ranges, named, spans, axis="%", reference=2.0, roles=["ok", "fail"]),
        "grid": partial(cell_grid, named, list("0123456789"), lambda *_: Cell("F", "fail", 1.0), legend={}),
    }
    figures = [Figure(save(one, tmp_path, name), name, f"{DEEP}.png", "x.csv") for name, one in draw.items()]
    wide = pd.DataFrame(
        {
            "kernel": [
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor>" * 3,
                "b",
            ]
        }
        | {"what": ["zz top", "aa"], "change_us": [1.5, 20.0]}
        | {f"count_{n}": [100_000 + n] * 2 for n in range(8)}
    )
    small = pd.DataFrame({"class": ["sum"], "ms": [1.0]})
    tables = [Table(small, "small", "x.csv"), Table(wide, "wide", "x.csv", open_rows=0)]
    return write_page(
        Page(
            title="t" * 80,
            question="q",
            verdict=["v" * 300],
            status="ok",
            cards=[Card("shown by repeats", "0 of 4", f"{DEEP}.csv")] * 4,
            sections=[Section("s", [*figures, *tables, Files("files", [(f"{DEEP}.csv", "rows")])])],
            provenance={"run": {"sha256": "0" * 64}},
            footnotes=[],
            room="diff",
            kind="measured",
        ),
        tmp_path / "page.html",
    )


def test_nothing_is_cut_on_a_phone_a_tablet_and_a_desk(page):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for width in (400, 768, 1280):
            seen = browser.new_page(viewport={"width": width, "height": 900})
            seen.goto(page.as_uri())
            assert seen.locator(".plot .narrow").first.is_visible() == (width == 400)
            seen.locator("summary").click()
            # A table of eleven columns scrolls in its own box on a tablet; a phone has it row by row.
            assert seen.evaluate(CUT) == (["scroll "] if width == 768 else []), width
            stacked = seen.locator("table.stacked")
            assert stacked.count() == (width == 400)
            if width != 400:
                seen.close()
                continue
            first = stacked.locator("tbody tr").first
            labels = first.locator("td").evaluate_all("all => all.map((one) => one.dataset.label)")
            assert labels[:3] == ["kernel", "what", "change µs"] and len(labels) == 11
            stacked.locator("th button").nth(1).click()
            assert first.locator("td").nth(1).text_content() == "aa", "sorted in this form, too"
            seen.locator("details input.filter").fill("zz")
            assert [stacked.locator("tbody tr").nth(n).is_visible() for n in (0, 1)] == [False, True]
            seen.set_viewport_size({"width": 1280, "height": 900})
            stacked.wait_for(state="detached")  # not a string of script: the page's policy forbids eval
        browser.close()
