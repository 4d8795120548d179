"""The rules of Dockerfiles and locks; each function returns what breaks one."""

from __future__ import annotations

import re
from pathlib import Path

from lab.images.targets import Target

NOT_ON_ROCM = re.compile(r"torch|torchvision|torchaudio|triton|pytorch-triton.*|nvidia-.*|cuda-.*")
NOT_ON_CPU = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
FORBIDDEN = {"rocm70": NOT_ON_ROCM, "cpu": NOT_ON_CPU, "cpu-torch": NOT_ON_CPU}
INDEX_LINE = re.compile(r"^\s*--(?:extra-)?index-url.*|^\s*--find-links.*", re.MULTILINE)
INEXACT_LINE = re.compile(r"^(?![\w.\[\]-]+==|#|\s|--|$).*", re.MULTILINE)
FROM = re.compile(r"^FROM\s+(?:--\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.MULTILINE | re.IGNORECASE)
# What Docker 20.10's own BuildKit refuses, and a `# syntax` line, which needs a registry.
TOO_NEW = (
    (r"<<-?\s*[\"']?\w+", "a heredoc"),
    (r"^\s*(COPY|ADD)\b.*--(link|parents|exclude|checksum)\b", "a COPY or ADD option that is too new"),
    (r"^\s*RUN\b.*--network=", "RUN --network"),
    (r"--start-interval", "HEALTHCHECK --start-interval"),
    (r"\A\s*#\s*syntax\s*=", "a # syntax line"),
)
# Users bring nixnan and NVBit themselves: nothing here fetches or builds them.
FOREIGN = (
    (r"nvbit", "names NVBit"),
    (r"git\s+clone", "clones a repository"),
    (r"nixnan[^\n]*(https?://|\bmake\b)|(https?://|\bmake\b)[^\n]*nixnan", "fetches or builds nixnan"),
)


def dockerfile_rules(target: Target, root: Path) -> list[str]:
    try:
        text = (root / target.dockerfile).read_text(encoding="utf-8")
    except OSError as error:
        return [f"{target.dockerfile}: {error.strerror}"]
    flags = re.IGNORECASE | re.MULTILINE
    problems = [f"uses {word}" for pattern, word in TOO_NEW if re.search(pattern, text, flags)]
    problems += [word for pattern, word in FOREIGN if re.search(pattern, text, flags)]
    return problems + _froms(text) + _base(text, target)


def _froms(text: str) -> list[str]:
    """Every FROM is the base argument or an earlier stage, so that any image builds on any base."""
    stages: set[str] = set()
    problems = []
    for source, stage in FROM.findall(text):
        if source not in ("${BASE_IMAGE}", *stages):
            problems.append(f"FROM {source} is not an argument")
        stages.add(stage)
    return problems


def _base(text: str, target: Target) -> list[str]:
    default = re.search(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    if default is None or default[1] != target.base:
        return [f"BASE_IMAGE is {default[1] if default else 'not set'}, image.toml says {target.base}"]
    return []


def lock_rules(target: Target, root: Path) -> list[str]:
    try:
        text = (root / target.lock).read_text(encoding="utf-8")
    except OSError as error:
        return [f"{target.lock}: {error.strerror}"]
    packages = locked(text)
    problems = [f"{name} has no hash" for name, hashes in packages.items() if not hashes]
    problems += [f"names an index: {line}" for line in INDEX_LINE.findall(text)]
    problems += [f"is not an exact version: {line}" for line in INEXACT_LINE.findall(text)]
    if forbidden := FORBIDDEN.get(target.name):
        problems += [f"must not name {name}" for name in packages if forbidden.fullmatch(name)]
    return problems if packages else [*problems, "names no package"]


def locked(text: str) -> dict[str, int]:
    """Package -> how many hashes it has; the fewest if it is named for several Pythons."""
    fewest_hashes: dict[str, int] = {}
    for name, body in re.findall(r"^([A-Za-z0-9][\w.-]*)==((?:.*\\\n)*.*)", text, re.MULTILINE):
        hashes = body.count("--hash=sha256:")
        fewest_hashes[name.lower()] = min(hashes, fewest_hashes.get(name.lower(), hashes))
    return fewest_hashes
