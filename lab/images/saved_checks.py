"""What was found in an image: by `lab images check`, for the manifests of its runs, and by looks inside it.

Each result is stored in lab's cache under the image's content id, so it never applies to other content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from lab.core.files import Document, cache_folder, make_folder, read_or_none, write_atomic
from lab.core.manifest import ImageCheck
from lab.errors import writing
from lab.images.probe import Contents

CHECK = "json"
VERSIONS = ("torch", "triton", "transformers", "numpy", "pandas", "pyarrow", "bitsandbytes", "accelerate")


def save_check(image_id: str, contents: Contents, *, ok: bool) -> ImageCheck:
    """Keep what was found, for runs of this very image."""
    check = ImageCheck(
        ok=ok,
        checked_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        python=contents.python,
        archs=contents.archs,
        cuda=contents.cuda,
        hip=contents.hip,
        versions={name: contents.packages[name] for name in VERSIONS if name in contents.packages},
        tools=tuple(sorted(name for name, path in contents.tools.items() if path)),
    )
    _save(_path(image_id, CHECK), check)
    return check


def load_check(image_id: str) -> ImageCheck | None:
    """What `lab images check` found in the image of this id; None without a readable result."""
    return read_or_none(_path(image_id, CHECK), ImageCheck)


def looked_once(image_id: str, ending: str, kind: type[Document], look: Callable[[], Document]) -> Document:
    """What `look` finds in the image, kept under its content id: what an id stands for never changes."""
    path = _path(image_id, ending)
    document = read_or_none(path, kind)
    if document is None:
        document = look()
        _save(path, document)
    return document


def _save(path: Path, document: object) -> None:
    with writing(path):
        make_folder(path.parent)
        write_atomic(path, msgspec.json.encode(document))


def _path(image_id: str, ending: str) -> Path:
    return cache_folder() / "images" / f"{re.sub(r'[^0-9a-z]', '_', image_id)}.{ending}"
