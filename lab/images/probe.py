"""What an image contains, by a program that runs inside it: lab's own images and any other.

What was found is stored in lab's cache under the image's content id, so it never applies to other content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from lab.core import content
from lab.core.files import Document, cache_folder, make_folder, read_or_none, write_atomic
from lab.core.manifest import ImageCheck
from lab.errors import writing
from lab.images.spec import Image

# Runs on any Python, prints one line of JSON. Imports torch, because only torch knows its architectures.
# The lab in the image is hashed by this host's code (argument 1): a changed lab must not vouch for itself.
PROBE = """
import importlib.metadata as m, importlib.util, json, os, platform, re, shutil, sys
content = {"__name__": "content"}
exec(sys.argv[1], content)
inside = content["found_lab"]()
def named(name):
    return re.sub(r"[-_.]+", "-", name).lower()
torch = importlib.util.find_spec("torch") is not None
archs, cuda, hip, problem = [], None, None, ""
if torch:
    try:
        import torch as t
        flags = getattr(t._C, "_cuda_getArchFlags", lambda: None)()
        archs, cuda, hip = (flags or "").split(), t.version.cuda, getattr(t.version, "hip", None)
    except Exception as error:
        problem = "torch does not import: %s" % error
try:
    open("/lab-probe", "w").close()
    writable = True
except OSError:
    writable = False
try:
    wheel = open("/usr/share/lab/SHA256SUMS").read().split()[0]
except (OSError, IndexError):
    wheel = ""
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2], "program": sys.executable, "machine": platform.machine(),
    "libc": platform.libc_ver()[0],
    "lab": inside["version"], "lab_sha256": inside["sha256"],
    "wheel": wheel, "command": shutil.which("lab"), "torch": torch, "torch_problem": problem,
    "archs": archs, "cuda": cuda, "hip": hip, "uid": os.getuid(), "root_writable": writable,
    "packages": {named(d.metadata["Name"]): d.version for d in m.distributions() if d.metadata["Name"]},
    "tools": {name: shutil.which(name) for name in sys.argv[2:]},
}))
"""
# Looked for besides what the image's tools need: compilers for torch and triton, programs that query the GPU.
USUAL_TOOLS = {
    "nvidia": ("nvcc", "gcc", "nvidia-smi", "ncu"),
    "amd": ("rocm-smi", "amd-smi", "hipcc", "gcc", "rocprofv3"),
    "none": (),
}


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe printed. `tools`: name -> its path in the image, or None."""

    python: str
    lab: str | None  # the version; None without a lab
    wheel: str
    command: str | None
    torch: bool
    uid: int
    root_writable: bool
    program: str = "python3"  # the interpreter
    machine: str = ""
    libc: str = "glibc"  # as platform.libc_ver names it: "" or musl on Alpine
    torch_problem: str = ""
    lab_sha256: str | None = None  # of the lab that its Python imports, by lab.core.content
    archs: tuple[str, ...] = ()
    cuda: str | None = None
    hip: str | None = None
    packages: dict[str, str] = {}
    tools: dict[str, str | None] = {}


def probe_argv(tools: Sequence[str]) -> list[str]:
    """The arguments of Python that print Contents inside an image."""
    return ["-c", PROBE, Path(content.__file__).read_text(encoding="utf-8"), *tools]


def tools_of(image: Image) -> list[str]:
    """The programs to look for in the image."""
    needed = [name for tool in image.tools.values() for name in tool.needs]
    return list(dict.fromkeys([*needed, *USUAL_TOOLS[image.vendor]]))


CHECK = "json"
VERSIONS = ("torch", "triton", "transformers", "numpy", "pandas", "pyarrow", "bitsandbytes", "accelerate")


def save_check(image_id: str, contents: Contents, *, ok: bool) -> ImageCheck:
    """Keep what was found, for runs of this very image."""
    check = ImageCheck(
        ok=ok,
        checked_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        python=contents.python,
        archs=contents.archs,
        cuda=contents.cuda,
        hip=contents.hip,
        versions={name: contents.packages[name] for name in VERSIONS if name in contents.packages},
        tools=tuple(sorted(name for name, path in contents.tools.items() if path)),
    )
    _save(_path(image_id, CHECK), check)
    return check


def load_check(image_id: str) -> ImageCheck | None:
    """What `lab images check` found in the image of this id; None without a readable result."""
    return read_or_none(_path(image_id, CHECK), ImageCheck)


def looked_once(image_id: str, ending: str, kind: type[Document], look: Callable[[], Document]) -> Document:
    """What `look` finds in the image, kept under its content id: what an id stands for never changes."""
    path = _path(image_id, ending)
    document = read_or_none(path, kind)
    if document is None:
        document = look()
        _save(path, document)
    return document


def _save(path: Path, document: object) -> None:
    with writing(path):
        make_folder(path.parent)
        write_atomic(path, msgspec.json.encode(document))


def _path(image_id: str, ending: str) -> Path:
    return cache_folder() / "images" / f"{re.sub(r'[^0-9a-z]', '_', image_id)}.{ending}"
