"""The page in a real browser: no console error, sorting sorts, both widths draw."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.rooms.sweep.report import report
from tests.rooms.sweep.made import sweep

pytestmark = pytest.mark.browser


@pytest.fixture
def page(tmp_path: Path) -> Path:
    tables = sweep(
        {(256, 28): [110.0], (256, 42): [100.0]}, failed={(512, 28): "<img src=x onerror=alert(1)>"}
    )
    report(tables, out=tmp_path / "out", title="a sweep", provenance={})
    return tmp_path / "out" / "report.html"


@pytest.mark.parametrize("width", [420, 1280])
def test_the_page_draws_without_a_console_error(browse, page: Path, tmp_path: Path, width: int) -> None:
    shot = tmp_path / "shot.png"
    _, errors = browse(page, f"--screenshot={shot}", f"--window-size={width},2400")
    assert "CONSOLE" not in errors
    assert shot.stat().st_size > 20_000


def test_a_click_on_a_header_sorts_by_value(browse, page: Path) -> None:
    html = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())  # let the test's own click run
    header = "b => b.textContent.startsWith('total time')"
    click = f"[...document.querySelectorAll('th button')].findLast({header}).click()"
    page.write_text(html.replace("</body>", f"<script>{click}</script></body>"))
    dom, errors = browse(page, "--dump-dom")
    assert "CONSOLE" not in errors
    table = dom[dom.index('aria-sort="ascending"') :]
    assert re.findall(r'data-v="(100|110)"', table) == ["100", "110"]
    assert re.findall(r'class="pill \w+">(ok|failed)<', table) == [
        "ok",
        "ok",
        "failed",
    ]  # no value: last either way
