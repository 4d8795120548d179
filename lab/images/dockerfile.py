"""What every Dockerfile says in the same words: its arguments, the install of lock and wheel, the labels.

A Dockerfile is an image's own text with these sections between `# shared: NAME` and `# end of NAME`.
`make dockerfiles` writes the sections anew; `lab images check` says when one was edited by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.core.files import write_atomic
from lab.errors import ConfigError
from lab.images.targets import Target, targets
from lab.images.tree import ROOT

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


def main() -> None:
    """Write the shared sections of every Dockerfile anew."""
    for target in targets():
        path = ROOT / target.dockerfile
        write_atomic(path, render(target, path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
