"""A recording handed over to Perfetto's page, as its documentation says."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs lab[serve]")
pytest.importorskip("playwright", reason="needs playwright")

from tests.serve.web.browser import served, visited
from tests.serve.web.test_journeys import launches

pytestmark = pytest.mark.browser
# Answers as Perfetto's page does, and shows what it was given.
STUB = """addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", "*");
  else if (event.data.perfetto) {
    const { buffer, title, fileName } = event.data.perfetto, kind = new Uint8Array(buffer).slice(0, 2);
    const shown = document.body.appendChild(document.createElement("p"));
    shown.id = "got";
    const zipped = kind[0] === 0x1f && kind[1] === 0x8b;
    shown.textContent = [title, fileName, buffer.byteLength > 1000, zipped].join(" ");
  }
});"""


def test_a_click_hands_the_recording_to_perfettos_page(tmp_path):
    launches().write(tmp_path / "trace.json")
    with served(tmp_path, tmp_path / "cache") as url, visited(url) as page:
        body = f"<!doctype html><body><script>{STUB}</script>"
        page.context.route(
            "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        page.goto(f"{page.base}/timeline?file=trace.json")
        with page.expect_popup() as popup:
            page.click("text=open in Perfetto")
        got = popup.value.locator("#got").inner_text()
        assert got == "trace.json trace.json.gz true true", "a gzip file"
        page.wait_for_selector("text=given to Perfetto")
