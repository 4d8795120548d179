"""The hash of a lab package's content, and the check that a process imports the lab that its run names.

Standard library only, and complete in itself: run as a program (`python -c` with this text) it prints which
lab this Python would import. That is how the lab inside an image is read, with the same code on both sides.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

EXPECTED = "LAB_CODE_SHA256"  # set by an engine: the lab that every process of a step must import
REPORT = "LAB_CODE_REPORT"  # set by an engine: the file in which a step says what it imported
# Bytecode; the images' data, which no step reads; the compiled libraries of a platform wheel, which a
# checkout lacks: each is named by the hash of its source, which counts, and used only beside that source.
LEFT_OUT = ("__pycache__", "_images", "_native")


def content_sha256(package: Path) -> str:
    """One hash over every file's path and bytes: equal for a checkout, its wheel and a copy of either."""
    total = hashlib.sha256()
    for name in sorted(_files(package)):
        with open(os.path.join(package, name), "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        total.update(f"{name}\0{digest}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def is_left_out(name: str) -> bool:
    return name in LEFT_OUT or name.startswith(".") or name.endswith(".pyc")


def verify(package: Path) -> None:
    """Report what this process imports; end it where that is not what its run names."""
    sha256, expected = content_sha256(package), os.environ[EXPECTED]
    if sha256 != expected:
        raise SystemExit(
            "lab: this process imports another lab than the one that its run names\n"
            f"  where: {package}: content {sha256[:12]}, expected {expected[:12]}\n"
            "  fix:   see what puts this lab first on sys.path: PYTHONPATH, a folder named lab, a .pth file"
        )
    if report := os.environ.get(REPORT):
        Path(report).write_text(sha256)


def found_lab() -> dict[str, str | None]:
    """The lab that this Python would import, without importing it."""
    spec = importlib.util.find_spec("lab")
    if spec is None or spec.origin is None:
        return {"sha256": None, "version": None}
    init = Path(spec.origin)
    version = re.search(r'^__version__ = "(.*)"$', init.read_text(encoding="utf-8"), re.MULTILINE)
    return {"sha256": content_sha256(init.parent), "version": version[1] if version else None}


def _files(package: Path) -> Iterator[str]:
    """Every file that counts, by its name below `package`."""
    for folder, folders, files in os.walk(str(package), followlinks=True):  # Python imports through links too
        folders[:] = [name for name in folders if not is_left_out(name)]
        below = folder[len(str(package)) + 1 :]
        yield from (os.path.join(below, name) for name in files if not is_left_out(name))


if __name__ == "__main__":
    json.dump(found_lab(), sys.stdout)
