"""A server in a process of its own and a real Chromium that looks at it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.conftest import BROWSERS, ROOT

PATIENCE_MS = 180_000  # of a page that shows in a second on a machine with nothing else to do


@contextlib.contextmanager
def served(folder: Path, cache: Path, *, where: tuple[str, ...] = ()) -> Iterator[str]:
    """`lab serve` on a free port; yields the address with its token, ends the process afterwards.

    where: options in place of a free port.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab", "serve", str(folder), *(where or ("--port", "0"))],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)},
        )
        try:
            assert process.stdout is not None
            address = next((line.strip() for line in process.stdout if line.startswith("http")), None)
            assert address, f"lab serve ended: {_read(said)}"
            yield address
        finally:
            process.terminate()
            process.wait(300)


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def visited(url: str, *args: str, **options: Any) -> Iterator[Any]:
    """A page that has been opened with the token; at the end nothing may have gone elsewhere or failed.

    args: of the browser.
    """
    from playwright.sync_api import expect, sync_playwright

    base = address_of(url)
    asked: list[str] = []
    wrong: list[str] = []
    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", *args]
        )
        context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page = context.new_page()
        page.on("request", lambda one: asked.append(one.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.base, page.wrong, page.asked = base, wrong, asked
        page.goto(url)
        yield page
        browser.close()
    assert [one for one in asked if not one.startswith((base, "data:", "blob:"))] == []
    assert wrong == []


def address_of(url: str) -> str:
    found = re.match(r"http://[^/]+", url)
    assert found
    return found[0]
