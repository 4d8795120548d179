"""The hook of hatchling: a platform wheel with the compiled scanner of tensors, or the pure one.

The library is plain C behind ctypes: one serves every Python, so the wheel is py3-none-PLATFORM. The same
tree and compiler give the same bytes. LAB_WHEEL=pure leaves the library out, LAB_WHEEL=native fails without.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOW = Path("lab/native.py")
SOURCES = (Path("lab/rooms/nan/watch/counts.c"),)
WANTED = "LAB_WHEEL"
# Nothing of this machine in the file: no paths, no symbols, no id of the build, no later processor.
FIXED = ("-s", "-Wl,--build-id=none", "-fno-ident")
FIRST_OF_ITS_KIND = {"x86_64": "-march=x86-64", "aarch64": "-march=armv8-a"}
OLDEST_GLIBC = (2, 17)  # what pip calls manylinux2014; the first with aarch64
FROM_GLIBC = {b"libc.so.6"}


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # compiled when it is first needed, anew after each edit
            return
        wanted = os.environ.get(WANTED, "")
        if wanted not in ("", "pure", "native"):
            raise ValueError(f"{WANTED}={wanted!r}: say pure or native, or leave it out")
        if wanted == "pure":
            return
        how = how_of(Path(self.root))
        self.scratch = tempfile.TemporaryDirectory(prefix="lab-native-")
        made = []
        try:
            for source in (Path(self.root) / one for one in SOURCES):
                made.append(Path(self.scratch.name) / how.C.file_name(source))
                compile_fixed(how.C, source, made[-1])
        except how.LabError as error:
            if wanted == "native":
                raise
            self.app.display_warning(
                f"{error.problem.splitlines()[0]}: the pure wheel, without the compiled scanner of tensors"
            )
            return
        build_data["force_include"] |= {str(place): f"lab/_native/{place.name}" for place in made}
        build_data["pure_python"] = False
        libraries = b"\0".join(place.read_bytes() for place in made)
        build_data["tag"] = f"py3-none-{platform_tag(libraries, platform.machine())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if scratch := getattr(self, "scratch", None):
            scratch.cleanup()


def how_of(root: Path) -> Any:
    """lab's own module that knows how C is compiled."""
    sys.path.insert(0, str(root))
    try:
        spec = importlib.util.spec_from_file_location("lab_native", root / HOW)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look their module up
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(root))
    return module


def compile_fixed(how: Any, source: Path, place: Path) -> None:
    """Raises MissingError without a compiler, or with its words."""
    compiler = how.find_compiler()[0]
    machine = FIRST_OF_ITS_KIND.get(platform.machine())
    flags = (*how.flags, *FIXED, f"-ffile-prefix-map={source.parent}=.", *([machine] if machine else []))
    replace(how, flags=flags).compile_to(place, source, compiler)


def platform_tag(library: bytes, machine: str) -> str:
    """A wheel's platform by what the library needs: manylinux by its newest glibc symbol, else this system.

    A name in the file that is no need could only raise the version.
    """
    symbols = {(int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)}
    needed = set(re.findall(rb"\0((?:lib|ld-)[\w.+-]*\.so[\w.]*)", library))
    if not symbols or not needed <= FROM_GLIBC:
        return f"linux_{machine}"
    major, minor = max(OLDEST_GLIBC, *symbols)
    return f"manylinux_{major}_{minor}_{machine}"
