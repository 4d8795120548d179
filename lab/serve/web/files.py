"""List the files of a run and check them against its manifest."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from lab.core import manifest as manifests
from lab.core.run import MANIFEST
from lab.core.words import first_few, plural
from lab.errors import LabError
from lab.serve.walk import is_recording, is_text, opened, stamp

MOST_FILES = 3000
SHOWN = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".log": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class FileLine:
    """A file of a run. state: its size against the manifest's; hashes are computed only when asked."""

    name: str
    size_bytes: int | None
    sha256: str
    state: str
    recording: bool


def file_lines(folder: Path) -> tuple[list[FileLine], str]:
    """List every file that may be opened, the manifest's first; with a sentence if some are left out."""
    recorded = _recorded(folder)
    sizes: dict[str, int] = {}
    unseen: list[str] = []
    links = 0
    for parent, folders, names in os.walk(folder, onerror=lambda error: unseen.append(_words(error))):
        links += sum(os.path.islink(os.path.join(parent, name)) for name in (*folders, *names))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and is_text(name))
        for name in sorted(names):
            hidden = name.startswith(".") or not is_text(name)
            if not hidden and (file := stamp(os.path.join(parent, name))):
                sizes[Path(parent, name).relative_to(folder).as_posix()] = file.size
        if len(sizes) > MOST_FILES:
            unseen.append(
                f"more than {MOST_FILES:,} files: of the others only those of the manifest are listed"
            )
            sizes |= {name: file.size for name in recorded if (file := stamp(folder / name))}
            break
    if links:
        unseen.append(f"{plural(links, 'link is', 'links are')} not followed")
    lines = [_line(name, sizes.get(name), recorded.get(name)) for name in {**recorded, **sizes}]
    return sorted(lines, key=lambda line: (line.sha256 == "", line.name)), first_few(unseen, 10, between="; ")


def _words(error: OSError) -> str:
    return f"{os.path.basename(error.filename)} could not be looked at: {error.strerror}"


def _line(name: str, size_bytes: int | None, recorded: tuple[int, str] | None) -> FileLine:
    if recorded is None:
        state = "not in the manifest"
    elif size_bytes is None:
        state = "missing"
    else:
        state = "size as recorded" if size_bytes == recorded[0] else f"size changed from {recorded[0]:,}"
    return FileLine(
        name,
        size_bytes,
        recorded[1] if recorded else "",
        state,
        size_bytes is not None and is_recording(name),
    )


def verified(folder: Path, name: str) -> dict[str, str | bool]:
    """Compute the hash of one file, and say whether it is the manifest's."""
    recorded = _recorded(folder).get(name)
    digest = hashlib.sha256()
    with opened(folder, name) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    sha256 = digest.hexdigest()
    words = (
        "not in the manifest: nothing to compare with"
        if recorded is None
        else "as the manifest records it"
        if recorded[1] == sha256
        else "NOT the file that the manifest records"
    )
    return {"file": name, "sha256": sha256, "ok": bool(recorded and recorded[1] == sha256), "words": words}


def media_type(name: str) -> str:
    """From a fixed table; "" for what is only offered as a download."""
    return SHOWN.get(Path(name).suffix, "")


def _recorded(folder: Path) -> dict[str, tuple[int, str]]:
    try:
        manifest = manifests.load(folder / MANIFEST)
    except (LabError, RecursionError):
        return {}
    return {
        name: (file.size_bytes, file.sha256)
        for record in manifest.steps
        for name, file in record.files.items()
    }
