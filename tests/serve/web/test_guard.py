"""Who may look: the token once, then the cookie; this host and origin, GET, and no way out of a run."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("starlette", reason="needs lab[serve]")

from lab.core.run import LOCK
from lab.serve.index import Index, key_of
from lab.serve.web.guard import LOCAL
from lab.serve.web.server import made_app
from tests.serve.made import write_run, write_steps
from tests.serve.web.asgi import HOST, get

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    write_run(root, "sweep_a")
    write_run(root, "sweep_b")
    (root / "secret.txt").write_text("a secret")
    index = Index(root, rest_s=0)
    spent: list[str] = []
    app = made_app(index, cookie="lab_8000", hosts=LOCAL, spent=spent.append)
    app.spent = spent
    app.index = index
    return app


def signed(app) -> dict[str, str]:
    return {"cookie": f"lab_8000={app.secret}"}


def files(app, name: str, run: str = "sweep_a") -> str:
    key = key_of(app.index.find(run))
    return f"/files/{key}/{app.capability(key)}/{name}"


def test_the_token_opens_once_and_leaves_the_address(site):
    token = site.token
    first = get(site, f"/plot?figure=Step&token={token}")
    assert first.status == 303 and first.headers["location"] == "/plot?figure=Step"
    cookie = first.headers["set-cookie"]
    assert cookie == f"lab_8000={site.secret}; HttpOnly; SameSite=Lax; Path=/" and token not in cookie
    assert get(site, f"/?token={token}").status == 403, "it is spent"
    assert site.spent == [site.token] and get(site, f"/?token={site.spent[0]}").status == 303
    assert get(site, "/", cookie=cookie.split(";")[0]).status == 200


@pytest.mark.parametrize(
    "cookie", ["", "lab_8000=", "lab_8000=wrong", "lab_9000={secret}", "{secret}", 'lab_8000="{secret}x"']
)
def test_without_the_cookie_nothing_is_shown(site, cookie):
    paths = ("/", "/rows", "/ask", "/plot", "/static/lab.css", "/columns")
    for path in (*paths, f"/run/{key_of(site.index.find('sweep_a'))}"):
        answer = get(site, path, cookie=cookie.format(secret=site.secret))
        assert answer.status == 403 and b"sweep_a" not in answer.body


def test_a_wrong_token_is_no_token(site):
    for token in ("", "x", site.token[:-1], site.token + "x", "%00", "é"):
        assert get(site, f"/?token={token}").status == 403


OTHER_HOSTS = ["evil.com", "127.0.0.1.evil.com", "127.0.0.1:8000@evil.com", "[::1].evil.com"]


@pytest.mark.parametrize("host", [*OTHER_HOSTS, "", None, "0.0.0.0:8000", "127.0.0.2"])
def test_a_name_that_was_rebound_is_refused(site, host):
    assert get(site, "/", host=host, **signed(site)).status == 400
    assert get(site, f"/?token={site.token}", host=host).status == 400 and not site.spent


def test_two_names_are_no_name(site):
    asked = signed(site)
    assert get(site, "/", host="evil.com", **asked, Host="127.0.0.1:8000").status == 400
    assert get(site, "/", host="127.0.0.1:8000", **asked, HOST="evil.com").status == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:8000", "[::1]"])
def test_names_of_this_machine_pass(site, host):
    assert get(site, "/", host=host, **signed(site)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FOO"])
def test_only_looking_is_possible(site, method):
    for path in ("/", "/ask", "/rows", files(site, "manifest.json")):
        assert get(site, path, method=method, **signed(site)).status == 405


def test_head_is_answered_like_get(site):
    assert get(site, "/", method="HEAD", **signed(site)).status == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.com", "null", "https://127.0.0.1:8000", "http://127.0.0.1:9000", "http://localhost:8000"],
)
def test_another_origin_is_refused(site, origin):
    assert get(site, "/rows", origin=origin, **signed(site)).status == 403
    assert get(site, files(site, "manifest.json"), origin=origin).status == 403


def test_our_own_origin_passes_and_no_answer_is_for_others(site):
    answer = get(site, "/rows", origin=f"http://{HOST}", **signed(site))
    assert answer.status == 200 and not any(name.startswith("access-control") for name in answer.headers)


def test_another_site_may_link_here_but_not_load_from_here(site):
    visit = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert get(site, "/", **visit, **signed(site)).status == 200
    for mode in ("no-cors", "cors", "websocket"):
        assert (
            get(site, "/rows", sec_fetch_site="cross-site", sec_fetch_mode=mode, **signed(site)).status == 403
        )


def test_every_answer_carries_the_policy(site):
    pages = {"/": 200, "/absent": 404, "/run/0": 404, "/static/lab.css": 200, "/compare": 400}
    for path, status in pages.items():
        answer = get(site, path, **signed(site))
        policy = answer.headers["content-security-policy"]
        assert answer.status == status, path
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer" and "server" not in answer.headers
    assert get(site, "/").headers["content-security-policy"] == policy


def test_no_page_holds_a_script_or_style_of_its_own(site):
    for path in ("/", "/plot", "/ask", f"/run/{key_of(site.index.find('sweep_a'))}"):
        text = get(site, path, **signed(site)).text
        assert [word for word in ("<script>", "<style", " style=", " onclick") if word in text] == []
        assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_a_report_is_foreign_code_in_a_sandbox(site):
    answer = get(site, files(site, "report.html"))
    policy = answer.headers["content-security-policy"]
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    assert policy.startswith("sandbox allow-scripts allow-downloads;") and "allow-same-origin" not in policy
    assert "default-src 'none'" in policy and "frame-ancestors 'self'" in policy
    assert "connect-src" not in policy


def test_types_come_from_a_table_and_all_else_is_a_download(site):
    folder = site.index.root / "sweep_a"
    for name in ("x.svg", "x.xml", "x.js", "x.htm", "x.HTML", "x.bin", "x.html.gz", "x"):
        (folder / name).write_text("<script>alert(1)</script>")
        answer = get(site, files(site, name))
        assert answer.headers["content-type"] == "application/octet-stream", name
        assert answer.headers["content-disposition"] == "attachment"
    assert get(site, files(site, "tables/configs.csv")).headers["content-disposition"] == "attachment"
    assert (
        get(site, files(site, "steps/step0/run_output.log")).headers["content-type"]
        == "text/plain; charset=utf-8"
    )


def test_no_path_leaves_a_run(site, monkeypatch):
    monkeypatch.setattr("lab.serve.jobs.Jobs.run", lambda *_: pytest.fail("a job was begun"))
    folder, root = site.index.root / "sweep_a", site.index.root
    (folder / "link.txt").symlink_to(root / "secret.txt")
    (folder / "up").symlink_to(root)
    (root / "sweep_ab").mkdir()
    (root / "sweep_ab" / "x.txt").write_text("a secret")
    (folder / LOCK).write_text("1")
    os.mkfifo(folder / "pipe")
    tries = (
        *("../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "%2e%2e%2fsecret.txt", "..%5csecret.txt"),
        *("steps/../../secret.txt", "/etc/passwd", "//etc/passwd", "%2fetc/passwd", "file:///etc/passwd"),
        *("..%252fsecret.txt", "....//secret.txt", "./../secret.txt", "~/secret.txt", "../sweep_ab/x.txt"),
        *("link.txt", "up/secret.txt", "up/sweep_b/manifest.json", LOCK, "", "%00", "manifest.json%00.txt"),
        *("pipe", "%ff%fe", "a" * 4000),
    )
    for name in tries:
        answer = get(site, files(site, name))
        assert answer.status in (404, 414), name
        assert b"secret" not in answer.body.replace(b"secret.txt", b"") and b"root:" not in answer.body
        for page in ("columns", "perfetto", "timeline"):
            key = key_of(site.index.find("sweep_a"))
            found = get(site, f"/{page}?run={key}&file={name}", **signed(site))
            assert found.status in (404, 414), (page, name)
            assert b"root:" not in found.body and b"a secret" not in found.body
        verified = get(site, f"/run/{key_of(site.index.find('sweep_a'))}/verify?file={name}", **signed(site))
        assert verified.status in (404, 414), name


def test_a_folder_of_recordings_with_a_link_in_it_is_not_read(site, monkeypatch):
    monkeypatch.setattr("lab.serve.jobs.Jobs.run", lambda *_: pytest.fail("a job was begun"))
    for name in ("sweep_a", "sweep_b"):
        (site.index.root / name / "step" / "deep").mkdir(parents=True)
        (site.index.root / name / "step" / "deep" / "trace.json").symlink_to("/etc/passwd")
    one, other = (key_of(site.index.find(name)) for name in ("sweep_a", "sweep_b"))
    assert get(site, f"/diff?run={one}&run={other}&part=step", **signed(site)).status == 404
    assert get(site, f"/columns?run={one}&file=step", **signed(site)).status == 404


def test_the_comparison_of_two_recordings_is_the_page_of_lab_diff(site):
    """In a sandbox, as a report: under a capability, with its tables beside it, and nothing else."""
    write_steps(site.index.root, sweep_a=10, sweep_b=30)
    one, other = (key_of(site.index.find(name)) for name in ("sweep_a", "sweep_b"))
    page = get(site, f"/diff?run={one}&run={other}&part=trace.json", **signed(site))
    address = re.search(rb'src="(/files/diff-[0-9a-f]{32}/[0-9a-f]{40}/)diff\.html" sandbox', page.body)
    base = address[1].decode()
    diff = get(site, f"{base}diff.html")
    assert diff.status == 200 and "sandbox" in diff.headers["content-security-policy"]
    assert b"What changed from A to B" in diff.body
    assert b"change_us" in get(site, f"{base}tables/rows.csv").body
    assert get(site, f"{base}../../timelines").status == 404
    assert get(site, base.replace("diff-", "diff-0") + "diff.html").status == 404


def test_a_capability_opens_one_run_only(site):
    one, other = (key_of(site.index.find(name)) for name in ("sweep_a", "sweep_b"))
    assert get(site, f"/files/{one}/{site.capability(one)}/manifest.json").status == 200
    assert get(site, f"/files/{other}/{site.capability(one)}/manifest.json").status == 404
    assert get(site, f"/files/{one}/{'0' * 40}/manifest.json", **signed(site)).status == 404
    assert get(site, f"/files/{one}/é/manifest.json").status == 404


def test_hostile_names_and_texts_are_escaped_everywhere(site, tmp_path):
    root = site.index.root
    texts = {"lead": EVIL, "versions": {EVIL: EVIL}, "driver": EVIL, "host": EVIL, "cells": {EVIL: EVIL}}
    write_run(root, f"run {EVIL}", config={EVIL: EVIL, "model": EVIL}, **texts)
    folder = root / f"run {EVIL}"
    (folder / EVIL).write_text(EVIL)
    (folder / "steps" / "step0" / "run_output.log").write_text(EVIL)
    row = site.index.find(f"run {EVIL}")
    other = key_of(site.index.find("sweep_a"))
    pages = ("/", f"/?q={EVIL}", f"/run/{key_of(row)}", f"/compare?run={key_of(row)}&run={other}", "/plot")
    pages += (f"/plot?figure={EVIL}", f"/ask?sql={EVIL}", f"/run/{EVIL}")
    for path in (*pages, f"/timeline?run={key_of(row)}&file={EVIL}"):
        answer = get(site, path, **signed(site))
        assert b"<img src=x" not in answer.body, path
    assert b"&lt;img src=x" in get(site, f"/run/{key_of(row)}", **signed(site)).body


def test_requests_are_bounded(site):
    assert get(site, "/?q=" + "x" * 40_000, **signed(site)).status == 414
    assert get(site, "/ask?sql=" + "x" * 20_000, **signed(site)).status == 400
    keys = "&".join(f"run={at}" for at in range(13))
    assert get(site, f"/compare?{keys}", **signed(site)).status == 400
    assert get(site, "/columns?" + "&".join(["file=x"] * 65), **signed(site)).status == 400
    assert get(site, "/?page=99999999999999999999&sort=%00&group=x&desc=x", **signed(site)).status == 200


def test_a_broken_manifest_gives_a_page_and_no_error(site):
    (site.index.root / "sweep_b" / "manifest.json").write_text("{")
    key = key_of(site.index.find("sweep_b"))
    answer = get(site, f"/run/{key}", **signed(site))
    assert answer.status == 200 and "cannot read the manifest" in answer.text
    assert "cannot read the manifest" in get(site, "/", **signed(site)).text


def test_the_socket_is_its_owners_alone_and_leaves_nothing(tmp_path):
    from lab.serve.web.server import _listening

    path = tmp_path / "sock"
    with _listening("127.0.0.1", None, path):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
