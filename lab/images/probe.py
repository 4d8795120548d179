"""What a built image contains, by a program that runs inside it."""

from __future__ import annotations

import msgspec

from lab.images.spec import Image

# Runs on any Python, prints one line of JSON. Imports torch, because only torch knows its architectures.
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
# Looked for besides what the image's tools need: compilers for torch and triton, programs that query the GPU.
USUAL_TOOLS = {
    "nvidia": ("nvcc", "gcc", "nvidia-smi"),
    "amd": ("rocm-smi", "amd-smi", "hipcc", "gcc"),
    "none": (),
}


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe printed. `tools`: name -> its path in the image, or None."""

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
    """The programs to look for in the image."""
    needed = [name for tool in image.tools.values() for name in tool.needs]
    return list(dict.fromkeys([*needed, *USUAL_TOOLS[image.vendor]]))
