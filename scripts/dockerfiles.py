"""The Dockerfiles and locks of docker/ and images/: their shared sections, and the rules that they keep.

python scripts/dockerfiles.py            write the shared sections of every Dockerfile anew
python scripts/dockerfiles.py --check    say what breaks a rule; exit code 1 if anything does

A Dockerfile is an image's own text with these sections between `# shared: NAME` and `# end of NAME`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.core.files import write_atomic
from lab.errors import ConfigError
from lab.images.targets import ROOT, Target, targets

SECTION = re.compile(r"^# shared: (\S+)\n(.*?)^# end of \1\n", re.MULTILINE | re.DOTALL)
NETWORK = """\
# The certificate is optional, for networks whose proxy has its own certificate authority.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_DEFAULT_TIMEOUT=60
"""
# The image's own text goes on with `&& ...`, in the same layer: what it removes takes no space.
LOCK = """\
{pip_mount} --mount=type=cache,target=/root/.cache/pip \\
    --mount=type=secret,id=ca,target=/run/secrets/ca \\
    --mount=type=bind,source={lock},target=/mnt/requirements.lock \\
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \\
{venv}    && {pip} install --progress-bar off --require-hashes --no-deps -r /mnt/requirements.lock \\
"""
WHEEL = """\
# Last, so that an edit of lab rebuilds only this.
# hadolint ignore=DL3003
{pip_mount} --mount=type=bind,source=build/images/dist,target=/mnt/dist \\
    cd /mnt/dist && sha256sum -c SHA256SUMS \\
    && {pip} install --no-deps --no-index --no-cache-dir ./*.whl \\
    && install -D -m 644 SHA256SUMS /usr/share/lab/SHA256SUMS
WORKDIR /out
USER 1000:1000
CMD ["lab", "--help"]
"""
LABELS = """\
ARG LAB_VERSION
ARG LAB_REVISION
ARG LAB_SOURCE
ARG LAB_CREATED
ARG BASE_IMAGE
ARG LAB_WHEEL_SHA256
ARG LAB_LOCK_SHA256
LABEL org.opencontainers.image.title="{title}" \\
      org.opencontainers.image.version="${LAB_VERSION}" \\
      org.opencontainers.image.revision="${LAB_REVISION}" \\
      org.opencontainers.image.source="${LAB_SOURCE}" \\
      org.opencontainers.image.created="${LAB_CREATED}" \\
      org.opencontainers.image.licenses="{licences}" \\
      org.opencontainers.image.base.name="${BASE_IMAGE}" \\
      lab.wheel.sha256="${LAB_WHEEL_SHA256}" \\
      lab.lock.sha256="${LAB_LOCK_SHA256}"
"""
SECTIONS = {"lock": NETWORK + LOCK, "wheel": WHEEL, "labels": LABELS}
# lab in an environment of its own, installed by the pip of a stage that is left behind.
OWN_VENV = {
    "pip": "/opt/pip/bin/pip --python /opt/lab/bin/python",
    "pip_mount": "RUN --mount=type=bind,from=pip,source=/opt/pip,target=/opt/pip \\\n   ",
    "venv": "    && python3 -m venv --without-pip /opt/lab \\\n",
}
# lab beside the packages of the base.
BASE_PYTHON = {"pip": "python3 -m pip", "pip_mount": "RUN", "venv": ""}


def render(target: Target, text: str) -> str:
    """The Dockerfile of `target` with its shared sections as they must be."""
    pip = OWN_VENV if re.search(r"^FROM \S+ AS pip$", text, re.MULTILINE) else BASE_PYTHON
    values = {
        **pip,
        "lock": str(target.lock),
        "title": f"lab/{target.name}",
        "licences": target.licences,
    }

    def section(match: re.Match[str]) -> str:
        name = match[1]
        if name not in SECTIONS:
            names = ", ".join(SECTIONS)
            raise ConfigError(
                f"unknown shared section {name!r}", location=target.dockerfile, fix=f"one of: {names}"
            )
        filled = re.sub(r"(?<!\$)\{(\w+)\}", lambda field: values[field[1]], SECTIONS[name])
        return f"# shared: {name}\n{filled}# end of {name}\n"

    return SECTION.sub(section, text)


def shared_sections(target: Target, root: Path) -> list[str]:
    """What is wrong with the shared sections of this Dockerfile."""
    path = root / target.dockerfile
    if not path.is_file():
        return [f"{target.dockerfile}: no such file"]
    text = path.read_text(encoding="utf-8")
    missing = sorted(set(SECTIONS) - {name for name, _ in SECTION.findall(text)})
    problems = [f"has no shared section {name}" for name in missing]
    return problems + (
        [] if render(target, text) == text else ["a shared section was edited by hand: make dockerfiles"]
    )


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


def hadolint(target: Target, root: Path) -> list[str]:
    """What the linter of Dockerfiles finds; nothing where it is not installed."""
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        return []
    argv = [program, "--no-color", str(root / target.dockerfile)]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (process.stdout + process.stderr).strip().splitlines() or ["failed"] * (process.returncode != 0)


def problems(root: Path = ROOT) -> Iterator[str]:
    for target in targets():
        for check in (dockerfile_rules, shared_sections, lock_rules, hadolint):
            yield from (f"{target.name}: {text}" for text in check(target, root))


def main() -> None:
    if "--check" in sys.argv[1:]:
        broken = list(problems())
        print("\n".join(broken) or "Dockerfiles and locks keep their rules")
        sys.exit(bool(broken))
    for target in targets():
        path = ROOT / target.dockerfile
        write_atomic(path, render(target, path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
