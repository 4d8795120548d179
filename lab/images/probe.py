"""What a built image holds, asked inside it, and held against what it claims: image.toml, its lock and its labels.

`lab images check` keeps each answer under the image's content id in lab's cache, so that the manifest of a run can say what
its image was found to hold (`checked` in `image`). Another content has another id: an answer never outlives its image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from lab.core.files import make_folder, write_atomic
from lab.core.manifest import ImageCheck
from lab.errors import writing
from lab.images.build import Target
from lab.images.spec import Image

# Runs inside, with whatever Python is there: prints one line of JSON. torch is imported, for only it knows its archs.
PROBE = """
import importlib.metadata as m, importlib.util, json, os, re, shutil, sys
import lab
def named(name):
    return re.sub(r"[-_.]+", "-", name).lower()
torch = importlib.util.find_spec("torch") is not None
archs, cuda, hip = [], None, None
if torch:
    import torch as t
    flags = getattr(t._C, "_cuda_getArchFlags", lambda: None)()
    archs, cuda, hip = (flags or "").split(), t.version.cuda, getattr(t.version, "hip", None)
try:
    open("/lab-probe", "w").close()
    writable = True
except OSError:
    writable = False
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2], "lab": lab.__version__,
    "wheel": open("/usr/share/lab/SHA256SUMS").read().split()[0], "command": shutil.which("lab"),
    "torch": torch, "archs": archs, "cuda": cuda, "hip": hip, "uid": os.getuid(), "root_writable": writable,
    "packages": {named(d.metadata["Name"]): d.version for d in m.distributions() if d.metadata["Name"]},
    "tools": {name: shutil.which(name) for name in sys.argv[1:]},
}))
"""
# Beside what the image's tools need: what torch and triton compile with, and what tells about the device.
USUAL_TOOLS = {
    "nvidia": ("nvcc", "gcc", "nvidia-smi"),
    "amd": ("rocm-smi", "amd-smi", "hipcc", "gcc"),
    "none": (),
}
KEPT = ("torch", "triton", "transformers", "numpy", "pandas", "pyarrow", "bitsandbytes", "accelerate")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The probe's answer. `tools`: name -> its path inside, or None."""

    python: str
    lab: str
    wheel: str
    command: str | None
    torch: bool
    uid: int
    root_writable: bool
    archs: tuple[str, ...] = ()
    cuda: str | None = None
    hip: str | None = None
    packages: dict[str, str] = {}
    tools: dict[str, str | None] = {}


def tools_of(image: Image) -> list[str]:
    """The programs to look for inside."""
    needed = [name for tool in image.tools.values() for name in tool.needs]
    return list(dict.fromkeys([*needed, *USUAL_TOOLS[image.vendor]]))


def differences(
    image: Image, target: Target, labels: Mapping[str, str], seen: Seen, lock: str
) -> tuple[list[str], list[str]]:
    """-> what is wrong, and what is only worth saying: an image on another base than its own may lack the base's part."""
    wrong, notes = _itself(target, labels, seen), list[str]()
    own_base = labels.get("org.opencontainers.image.base.name", "").split("@")[0] == target.base
    from_base = _from_base(image, target, seen)
    (wrong if own_base else notes).extend(from_base)
    if target.ref == (image.workload_ref or image.ref):
        wrong += [
            f"torch has no code for {arch}"
            for arch in image.archs
            if seen.torch and not serves(seen.archs, arch)
        ]
    if labels.get("lab.lock.sha256") and not (stale := _stale(labels, lock)):
        wrong += _against_lock(seen, lock)
    elif labels.get("lab.lock.sha256") and stale:
        notes.append("older than its lock: build it again")
    return wrong, notes


def serves(have: Sequence[str], wanted: str) -> bool:
    """Whether code for one of `have` runs on `wanted`: on NVIDIA within a major version upwards, on AMD the same only."""
    if wanted in have:
        return True
    match = re.fullmatch(r"sm_(\d+)(\d)", wanted)
    others = [re.fullmatch(r"sm_(\d+)(\d)", arch) for arch in have]
    return bool(match) and any(o and match and o[1] == match[1] and o[2] <= match[2] for o in others)


def _itself(target: Target, labels: Mapping[str, str], seen: Seen) -> list[str]:
    found = []
    if seen.wheel != labels.get("lab.wheel.sha256"):
        found.append("the wheel inside is not the one its label names")
    if not seen.command:
        found.append("lab is not on PATH")
    if seen.uid == 0:
        found.append("runs as root")
    if seen.root_writable:
        found.append("the root can be written")
    if target.name == "cpu" and seen.torch:
        found.append("holds torch, which analysis does without")
    if target.name != "cpu" and not seen.torch:
        found.append("holds no torch")
    return found


def _from_base(image: Image, target: Target, seen: Seen) -> list[str]:
    found = []
    if seen.python != target.python_version:
        found.append(f"python {seen.python}, image.toml says {target.python_version}")
    if target.ref == (image.workload_ref or image.ref):
        needs = {word for tool in image.tools.values() for word in tool.needs}
        found += [f"no {name}" for name in sorted(needs) if not seen.tools.get(name)]
    if image.vendor == "amd" and seen.torch and not seen.hip:
        found.append("its torch is not one for ROCm")
    return found


def _stale(labels: Mapping[str, str], lock: str) -> bool:
    import hashlib

    return labels.get("lab.lock.sha256") != hashlib.sha256(lock.encode()).hexdigest()


def _against_lock(seen: Seen, lock: str) -> list[str]:
    """A lock for several Pythons may name a package more than once: any of its versions will do."""
    named: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", lock, re.MULTILINE):
        named.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    return [
        f"{name} {have}, its lock says {' or '.join(sorted(named[name]))}"
        for name, have in sorted(seen.packages.items())
        if name in named and have not in named[name]
    ]


# Kept for the manifests of runs.


def remember(image_id: str, seen: Seen, *, ok: bool, root: Path | None = None) -> ImageCheck:
    """Keep what was seen for runs of this very image."""
    check = ImageCheck(
        ok=ok,
        checked_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        python=seen.python,
        archs=seen.archs,
        cuda=seen.cuda,
        hip=seen.hip,
        versions={name: seen.packages[name] for name in KEPT if name in seen.packages},
        tools=tuple(sorted(name for name, path in seen.tools.items() if path)),
    )
    path = _path(image_id, root)
    with writing(path):
        make_folder(path.parent)
        write_atomic(path, msgspec.json.encode(check))
    return check


def recall(image_id: str, root: Path | None = None) -> ImageCheck | None:
    """What `lab images check` found in the image of this id; None if it was never asked, or the answer is unreadable."""
    try:
        return msgspec.json.decode(_path(image_id, root).read_bytes(), type=ImageCheck)
    except (OSError, msgspec.DecodeError):
        return None


def _path(image_id: str, root: Path | None) -> Path:
    cache = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lab" / "images"
    return cache / f"{re.sub(r'[^0-9a-z]', '_', image_id)}.json"
