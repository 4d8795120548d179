"""Ways out of `lab serve`: a Unix socket behind a forwarded port, a recording given to Perfetto's page."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs lab[serve]")
pytest.importorskip("playwright", reason="needs playwright")

from tests.serve.made import write_run
from tests.serve.web.browser import served, visited
from tests.serve.web.test_journeys import launches
from tests.wire import Wire

pytestmark = pytest.mark.browser
REBOUND = "--host-resolver-rules=MAP evil.test 127.0.0.1"


@contextlib.contextmanager
def forwarded(path: Path) -> Iterator[int]:
    """A port of 127.0.0.1 whose connections go to the socket at `path`."""
    wire = Wire(socket.create_server(("127.0.0.1", 0)), str(path))
    try:
        yield wire.server.getsockname()[1]
    finally:
        wire.cut()


def test_two_sockets_are_read_side_by_side_and_rebound_names_are_refused(tmp_path):
    with contextlib.ExitStack() as stack:
        urls = []
        for name in ("one", "two"):
            write_run(tmp_path / name, f"sweep_{name}")
            path = tmp_path / f"{name}.sock"
            url = stack.enter_context(served(tmp_path / name, tmp_path / "cache", where=("--uds", str(path))))
            assert url.startswith("http://localhost:8000/?token="), "what ssh -L 8000:… forwards"
            assert path.stat().st_mode & 0o777 == 0o600
            port = stack.enter_context(forwarded(path))
            urls.append(url.replace(":8000", f":{port}"))
        page = stack.enter_context(visited(urls[0], REBOUND))
        assert page.locator("td.name a").all_inner_texts() == ["sweep_one"]
        other = page.context.new_page()
        other.goto(urls[1])
        assert other.locator("td.name a").all_inner_texts() == ["sweep_two"]
        page.reload()
        assert page.locator("td.name a").all_inner_texts() == ["sweep_one"], "its cookie is still its own"
        page.fill("#q", "zzz")
        page.wait_for_selector("text=No run fits")  # the list asks by fetch, with its Origin checked
        page.locator("text=show all").first.click()
        page.locator("td.name a").click()
        assert page.frame_locator("iframe.report").locator("p").first.inner_text() == "A report."
        answer = other.goto(page.base.replace("localhost", "evil.test"))
        assert answer.status == 400 and "not a name of this server" in other.content()
    assert not (tmp_path / "one.sock").exists()


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
