"""What to do about a build that failed, by the words in its output."""

from __future__ import annotations

from collections.abc import Sequence

from lab.errors import EngineError
from lab.images.targets import Target

SHOWN_LINES = 15
_NO_REGISTRY = "the base is not here and its registry does not answer: --base REF, scripts/base-image.sh"
_NO_NSYS = "NVIDIA's packages cannot be reached: --build-arg NSYS_PACKAGE= leaves Nsight Systems out"
FIXES = {
    "CERTIFICATE_VERIFY_FAILED": "a proxy uses its own certificate authority: name its file in SSL_CERT_FILE",
    "urlopen error": _NO_NSYS,
    "Unable to locate package nsight": _NO_NSYS,
    "DO NOT MATCH THE HASHES": "the index and the lock differ: `make locks`, or another PIP_INDEX_URL",
    "no space left on device": "free some space: docker system df shows what uses it",
    "pull access denied": "the base is not here: --base REF names another, scripts/base-image.sh makes one",
    "failed to do request": _NO_REGISTRY,
    "no such host": _NO_REGISTRY,
    "i/o timeout": _NO_REGISTRY,
    "Cannot connect to the Docker daemon": "start the Docker engine, or scripts/docker-engine.sh for tests",
    "not found: manifest unknown": "the base's tag does not exist: --base REF",
    "Could not find a version": "the index has no file for the base's Python, or a build cannot reach it",
}


def build_error(target: Target, base: str, tail: Sequence[str]) -> EngineError:
    text = "\n".join(tail).lower()
    fix = next((fix for words, fix in FIXES.items() if words.lower() in text), None)
    excerpt = "\n".join(f"      | {line}" for line in tail[-SHOWN_LINES:])
    return EngineError(
        f"cannot build {target.ref}:\n{excerpt}", location=f"{target.dockerfile} on {base}", fix=fix
    )
