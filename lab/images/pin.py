"""`lab images pin`: the content behind each base's tag, asked of its registry and written into image.toml.

A tag can be moved to other content overnight; a build from a digest cannot change under its name.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.core.files import write_atomic
from lab.errors import EngineError
from lab.images import spec as images
from lab.images.build import docker_programs, refuse_unknown

TIMEOUT_S = 120


def pin(names: Sequence[str], root: Path | None = None) -> Iterator[tuple[str, str]]:
    """-> (image, digest) as they are written; the images before one that cannot be asked stay written."""
    folder = root or images.images_root()
    known = images.names(folder)
    refuse_unknown(names, known)
    for name in names or known:
        digest = ask(images.load(name, folder).base)
        path = folder / name / "image.toml"
        write_atomic(path, with_digest(path.read_text(encoding="utf-8"), digest))
        images.load(name, folder)  # what was written is what will be read
        yield name, digest


def ask(base: str) -> str:
    """The digest of `base` in its registry. Raises EngineError with the registry's own words."""
    complaint = "there is no docker program on PATH"
    for docker in docker_programs():
        argv = [docker, "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", base]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            complaint = f"no answer in {TIMEOUT_S} s"
            continue
        digest = done.stdout.strip()
        if done.returncode == 0 and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            return digest
        complaint = (done.stderr.strip().splitlines() or [digest or "no answer"])[-1]
    raise EngineError(
        f"the digest of {base} cannot be learnt: {complaint}",
        fix="needs docker buildx and a way to the registry; builds go by the tag meanwhile",
    )


def with_digest(text: str, digest: str) -> str:
    """The text of an image.toml with this digest behind its base, an older one replaced."""
    text = re.sub(r"^base_digest = .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^(base = .*\n)", rf'\1base_digest = "{digest}"\n', text, count=1, flags=re.MULTILINE)
