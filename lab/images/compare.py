"""What a built image contains, compared with what it promises: image.toml, its lock and its labels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from lab.core.manifest import Lab
from lab.images.probe import Contents
from lab.images.spec import Image
from lab.images.targets import ROOT, Target, is_tree

TEST_LABEL, WHEEL_LABEL = "lab.test", "lab.wheel.sha256"


def differences(
    image: Image, target: Target, labels: Mapping[str, str], contents: Contents, lock: str
) -> tuple[list[str], list[str]]:
    """-> problems, and notes: an image on another base than its own may lack what its own base provides."""
    problems, notes = _own_problems(target, labels, contents), list[str]()
    own_base = labels.get("org.opencontainers.image.base.name", "").split("@")[0] == target.base
    from_base = _base_problems(image, target, contents)
    if labels.get("lab.nsys") == "" and "no nsys" in from_base:
        from_base.remove("no nsys")
        notes.append("built without Nsight Systems (NSYS_PACKAGE=)")
    (problems if own_base else notes).extend(from_base)
    if target.ref == (image.workload_ref or image.ref):
        unserved = [arch for arch in image.archs if contents.torch and not serves(contents.archs, arch)]
        problems += [f"torch has no code for {arch}" for arch in unserved]
    built_from = labels.get("lab.lock.sha256")
    if built_from == hashlib.sha256(lock.encode()).hexdigest():
        problems += _lock_problems(contents, lock)
    elif built_from:
        notes.append("older than its lock: build it again")
    return problems, notes


def lab_difference(
    target: Target, labels: Mapping[str, str], version: str | None, sha256: str | None, host_lab: Lab
) -> str | None:
    """Say how the lab in an image differs from this host's, and what to type; None if they are the same.

    version, sha256: of the lab that the image's Python imports. An image that was never lab's holds none, and
    runs mount this host's lab into it.
    """
    cure = f"lab images build {target.name}" if is_tree(ROOT) else f"lab setup {target.image}"
    if TEST_LABEL in labels and TEST_LABEL not in target.labels:
        return f"{target.ref} was built by lab's own tests: {cure}"
    if sha256 == host_lab.sha256 or (sha256 is None and WHEEL_LABEL not in labels):
        return None
    inside = f"lab {version} ({sha256[:12]})" if sha256 else "no lab"
    outside = f"lab {host_lab.version} ({str(host_lab.sha256)[:12]})"
    return f"{target.ref} holds {inside}, this host runs {outside}: {cure}"


def serves(have: Sequence[str], wanted: str) -> bool:
    """Whether code for one of `have` runs on `wanted`.

    On NVIDIA it runs on later minor versions of the same major one, on AMD on the same architecture only.
    """
    if wanted in have:
        return True
    match = re.fullmatch(r"sm_(\d+)(\d)", wanted)
    matches = [re.fullmatch(r"sm_(\d+)(\d)", arch) for arch in have]
    return bool(match) and any(o and match and o[1] == match[1] and o[2] <= match[2] for o in matches)


def _own_problems(target: Target, labels: Mapping[str, str], contents: Contents) -> list[str]:
    problems = []
    if contents.wheel != labels.get(WHEEL_LABEL):
        problems.append("its wheel is not the one that its label names")
    if not contents.command:
        problems.append("lab is not on PATH")
    if contents.uid == 0:
        problems.append("runs as root")
    if contents.root_writable:
        problems.append("the root file system is writable")
    if target.name == "cpu" and contents.torch:
        problems.append("contains torch, which analysis does not need")
    if target.name != "cpu" and not contents.torch:
        problems.append("contains no torch")
    return problems


def _base_problems(image: Image, target: Target, contents: Contents) -> list[str]:
    problems = []
    if contents.python != target.python_version:
        problems.append(f"python {contents.python}, image.toml says {target.python_version}")
    if target.ref == (image.workload_ref or image.ref):
        needs = {word for tool in image.tools.values() for word in tool.needs}
        problems += [f"no {name}" for name in sorted(needs) if not contents.tools.get(name)]
    if image.vendor == "amd" and contents.torch and not contents.hip:
        problems.append("its torch is not a ROCm build")
    return problems


def _lock_problems(contents: Contents, lock: str) -> list[str]:
    """A lock for several Pythons may name a package more than once; each of those versions is right."""
    named: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", lock, re.MULTILINE):
        named.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    return [
        f"{name} {have}, its lock says {' or '.join(sorted(named[name]))}"
        for name, have in sorted(contents.packages.items())
        if name in named and have not in named[name]
    ]
