"""`lab images pin`: the digest behind each base's tag, as its registry has it, written into image.toml.

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
from lab.images.docker_cli import docker_programs
from lab.images.targets import refuse_unknown

TIMEOUT_S = 120


def pin(names: Sequence[str], root: Path | None = None) -> Iterator[tuple[str, str]]:
    """-> (image, digest) as they are written. If one fails, those written before it stay."""
    folder = root or images.images_root()
    known = images.names(folder)
    refuse_unknown(names, known)
    for name in names or known:
        digest = query_digest(images.load(name, folder).base)
        path = folder / name / "image.toml"
        write_atomic(path, with_digest(path.read_text(encoding="utf-8"), digest))
        images.load(name, folder)  # the written file must be readable
        yield name, digest


def query_digest(base: str) -> str:
    """The digest of `base` in its registry. Raises EngineError with the registry's own message."""
    problem = "there is no docker program on PATH"
    for docker in docker_programs():
        argv = [docker, "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", base]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            problem = f"no answer in {TIMEOUT_S} s"
            continue
        digest = done.stdout.strip()
        if done.returncode == 0 and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            return digest
        said = done.stderr.strip().splitlines() or [digest or "no answer"]
        # A registry's answer is the last ERROR; without buildx the first line says so, and hints follow.
        problem = next((line for line in reversed(said) if line.upper().startswith("ERROR")), said[0])
    raise EngineError(
        f"cannot get the digest of {base}: {problem}",
        fix="install docker buildx and give it access to the registry; until then builds use the tag",
    )


def with_digest(text: str, digest: str) -> str:
    """The text of an image.toml with this digest after its base; an older one is replaced."""
    text = re.sub(r"^base_digest = .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^(base = .*\n)", rf'\1base_digest = "{digest}"\n', text, count=1, flags=re.MULTILINE)
