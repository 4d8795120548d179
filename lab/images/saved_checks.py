"""What `lab images check` found in an image, kept for the manifests of its runs (`checked` in `image`).

Each result is stored in lab's cache under the image's content id, so it never applies to other content.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from lab.core.files import cache_folder, make_folder, write_atomic
from lab.core.manifest import ImageCheck
from lab.errors import writing
from lab.images.probe import Contents

VERSIONS = ("torch", "triton", "transformers", "numpy", "pandas", "pyarrow", "bitsandbytes", "accelerate")


def save_check(image_id: str, contents: Contents, *, ok: bool, root: Path | None = None) -> ImageCheck:
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
    path = saved_path(image_id, root=root)
    with writing(path):
        make_folder(path.parent)
        write_atomic(path, msgspec.json.encode(check))
    return check


def load_check(image_id: str, root: Path | None = None) -> ImageCheck | None:
    """What `lab images check` found in the image of this id; None without a readable result."""
    try:
        return msgspec.json.decode(saved_path(image_id, root=root).read_bytes(), type=ImageCheck)
    except (OSError, msgspec.DecodeError):
        return None


def saved_path(image_id: str, ending: str = "json", *, root: Path | None = None) -> Path:
    """The file in lab's cache for what is known of an image's content id."""
    return (root or cache_folder() / "images") / f"{re.sub(r'[^0-9a-z]', '_', image_id)}.{ending}"
