"""Logs made for a test, and a stand-in for the tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lab.rooms.nan.nixnan.log import Log
from lab.rooms.nan.nixnan.reading.parse import parse
from tests.rooms.nan.nixnan import nixgen

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
static void say(const char *mode, const char *words) {
  const char *name = getenv("LOGFILE");
  FILE *out = name ? fopen(name, mode) : NULL;
  if (out) { fputs(words, out); fclose(out); }
}
__attribute__((constructor)) static void loaded(void) {
  puts("------------- NVBit (stand-in) loaded --------------");
  say("w", "#nixnan: ----------------------------------------------------------------------------------\\n");
}
void attach(void) {
  say("a", "#nixnan: Initializing GPU context...\\n#nixnan: Instrumenting all kernels\\n");
}
void end(void) {
  say("a", "#nixnan: Finalizing GPU context...\\n#nixnan: ------------ nixnan Report -----------\\n");
}
"""


@pytest.fixture
def made(tmp_path):
    count = iter(range(10**6))

    def make(*lines: str, **named) -> Log:
        return parse(nixgen.write(tmp_path / f"{next(count)}.nixnan", nixgen.log(*lines, **named)))

    return make


@pytest.fixture(scope="module")
def tool(tmp_path_factory) -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("tool")
    (folder / "tool.c").write_text(SOURCE)
    subprocess.run([gcc, "-shared", "-fPIC", "-o", "nixnan.so", "tool.c"], cwd=folder, check=True)
    return folder / "nixnan.so"


@pytest.fixture
def env(tool, tmp_path) -> dict[str, str]:
    """An environment with the tool named and a disassembler on PATH, and no GPU to ask about."""
    nixgen.fake(tmp_path, "nvdisasm", "exit 0")
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NIXNAN_SO": str(tool), "HOME": str(tmp_path)}
