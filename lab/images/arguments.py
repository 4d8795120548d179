"""The build arguments of an image: its base, the network's settings, and where the image comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lab import __version__
from lab.core.provenance import git, lab_identity
from lab.errors import UsageError
from lab.images.targets import Target
from lab.images.tree import file_hash
from lab.images.wheel import Wheel

CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
PIP_VARIABLES = (*INDEX_VARIABLES, "PIP_DEFAULT_TIMEOUT")
# Docker predefines these arguments and keeps them out of the image's history.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
LOCK_HASH = "LAB_LOCK_SHA256"
Given = Mapping[str, str]  # what the user sets: --build-arg NAME=VALUE
PROVENANCE = ("LAB_VERSION", "LAB_REVISION", "LAB_SOURCE", "LAB_CREATED", "LAB_WHEEL_SHA256", LOCK_HASH)
OWN_ARGUMENTS = ("BASE_IMAGE", *PROVENANCE)


def build_arguments(
    target: Target, wheel: Wheel, *, base: str | None, user_arguments: Given, root: Path
) -> dict[str, str]:
    """Every argument of one build; of the user's own, those that this Dockerfile declares."""
    text = (root / target.dockerfile).read_text(encoding="utf-8") if user_arguments else ""
    declared = {name: value for name, value in user_arguments.items() if declares(text, name)}
    return {
        "BASE_IMAGE": base or target.base_ref,
        **_network_settings(os.environ),
        **shared_provenance(wheel, root),
        LOCK_HASH: file_hash(root / target.lock),
        **declared,
    }


def declares(dockerfile: str, name: str) -> bool:
    return re.search(rf"^ARG {re.escape(name)}\b", dockerfile, re.MULTILINE) is not None


def parse_given(words: Sequence[str], wanted: Sequence[Target], root: Path) -> dict[str, str]:
    """The user's NAME=VALUE pairs. Raises UsageError for one that no wanted Dockerfile reads."""
    texts = [(root / target.dockerfile).read_text(encoding="utf-8") for target in wanted if words]
    arguments = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--build-arg {word!r} is not NAME=VALUE")
        if name in OWN_ARGUMENTS:
            raise UsageError(f"lab sets {name} itself", fix="--base REF sets BASE_IMAGE")
        if not any(declares(text, name) for text in texts):
            files = ", ".join(str(target.dockerfile) for target in wanted)
            raise UsageError(f"no Dockerfile of this build has an argument {name!r}", location=files)
        arguments[name] = value
    return arguments


def shared_provenance(wheel: Wheel, root: Path) -> dict[str, str]:
    """Where every image of this tree comes from.

    LAB_CREATED is the time of the commit, so that the same tree gives the same image.
    """
    identity = lab_identity()
    return {
        "LAB_VERSION": __version__,
        "LAB_REVISION": (identity.commit or "") + ("-dirty" if identity.dirty else ""),
        "LAB_SOURCE": _source_url(root),
        "LAB_CREATED": git(root, "log", "-1", "--format=%cI") or "",
        "LAB_WHEEL_SHA256": wheel.sha256,
    }


def certificate_secret() -> list[str]:
    """The certificate file of a proxy, as a build secret, if the environment names one."""
    paths = (os.environ.get(name, "") for name in CA_VARIABLES)
    certificate = next((path for path in paths if Path(path).is_file()), None)
    return ["--secret", f"id=ca,src={certificate}"] if certificate else []


def _network_settings(env: Mapping[str, str]) -> dict[str, str]:
    """pip's index and the proxies. An index with a password would stay readable in the image's history."""
    for name in INDEX_VARIABLES:
        for url in env.get(name, "").split():
            if "@" in urlsplit(url).netloc:
                raise UsageError(
                    f"{name} contains a password, which would stay in the image's history",
                    fix="use an index that needs none, or a proxy that adds it",
                )
    return {name: env[name] for name in (*PIP_VARIABLES, *PROXY_VARIABLES) if env.get(name)}


def _source_url(root: Path) -> str:
    """Where this tree was cloned from, if the URL contains nothing private."""
    url = git(root, "remote", "get-url", "origin") or ""
    return url if urlsplit(url).scheme == "https" and "@" not in urlsplit(url).netloc else ""
