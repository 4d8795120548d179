"""generate"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.recordings.names import short_name
from lab.rooms.kernels.cpp.expressions import value
from lab.rooms.kernels.replay.args import Arg, ReplayPlan, Signature
from lab.rooms.kernels.replay.raw import RawReplay

PROGRAM, RUNTIME, CMAKE, BUILD = "replay.cpp", "lab_replay.hpp", "CMakeLists.txt", "build.sh"


class Generated(msgspec.Struct):
    """What was written, and what was left out and why."""

    files: list[Path]
    calls: int
    left_out: list[str]


def generate(plan: ReplayPlan, out: Path, raw: RawReplay | None = None) -> Generated:
    """Write program, runtime, CMake file and build script into `out`.

    `raw` is a replay of the same plan: it knows the arguments that only torch's schemas could resolve.
    """
    counts = Counter(call.sig for call in plan.calls)
    functions, entries, left_out = [], [], []
    for place, signature in enumerate(plan.signatures):
        found = _resolved(place, signature, raw)
        if found is None:
            left_out.append(
                f"{signature.op} ({signature.sig_id}): no resolved arguments{_because(signature)}"
            )
            continue
        functions.append(_function(signature, found[1]))
        entries.append(_entry(signature, found[0], counts[place]))
    text = "\n".join([_head(plan, left_out), *functions, _main(entries)])
    runtime = Path(__file__).with_name("runtime.hpp").read_text(encoding="utf-8")
    contents = {PROGRAM: text, RUNTIME: runtime, CMAKE: CMAKE_TEXT, BUILD: BUILD_TEXT}
    for name, content in contents.items():
        write_atomic(out / name, content)
    (out / BUILD).chmod(0o755)
    return Generated([out / name for name in contents], len(entries), left_out)


def _resolved(place: int, signature: Signature, raw: RawReplay | None) -> tuple[str, tuple[Arg, ...]] | None:
    if signature.args is not None and signature.overload is not None:
        return signature.overload, signature.args
    if raw is not None and raw.signatures[place].status in ("ran", "shapes"):
        return raw.signatures[place].overload, raw.signatures[place].args
    return None


def _because(signature: Signature) -> str:
    return (
        f": {signature.reason}"
        if signature.reason
        else "; replay it first, and generate from the replay's folder"
    )


def _head(plan: ReplayPlan, left_out: list[str]) -> str:
    lines = [
        f"// Replay of {_one_line(plan.origin.trace)}, written by lab: {len(plan.signatures)} distinct calls.",
        *(f"// left out: {_one_line(line)}" for line in left_out),
    ]
    return "\n".join([*lines, f'#include "{RUNTIME}"', "", "namespace {", ""])


def _function(signature: Signature, args: tuple[Arg, ...]) -> str:
    values = [f"      {value(signature.op, arg, seed)}," for seed, arg in enumerate(args)]
    return "\n".join(
        [
            f"lab::Stack call_{signature.sig_id}(const lab::Options& o) {{",
            "  (void)o;",
            "  return lab::Stack{",
            *values,
            "  };",
            "}",
            "",
        ]
    )


def _entry(signature: Signature, overload: str, count: int) -> str:
    launched = next((one for one in signature.launches if one.kind == "kernel"), None) or next(
        iter(signature.launches), None
    )
    kernel = short_name(launched.name) if launched else ""
    words = ", ".join(json.dumps(word) for word in (signature.sig_id, signature.op, overload, kernel))
    return f"      {{{words}, {count}, call_{signature.sig_id}}},"


def _main(entries: list[str]) -> str:
    return "\n".join(
        [
            "}  // namespace",
            "",
            "int main(int argc, char** argv) {",
            "  const std::vector<lab::Entry> entries = {",
            *entries,
            "  };",
            "  return lab::run(entries, argc, argv);",
            "}",
            "",
        ]
    )


def _one_line(text: str) -> str:
    return " ".join(text.replace("\\", "/").split())


# The CUDA wheels' CMake package wants a CUDA toolkit; asking Python for folders and flags works with and without one.
CMAKE_TEXT = """\
# cmake -S . -B build -DPYTHON=/path/to/python && cmake --build build
cmake_minimum_required(VERSION 3.13)
project(lab_replay CXX)

set(PYTHON python3 CACHE STRING "a Python whose torch is to be used")
function(ask variable code)
  execute_process(COMMAND ${PYTHON} -c "${code}" OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${PYTHON} has no torch: give another one with -DPYTHON=...")
  endif()
  set(${variable} "${answer}" PARENT_SCOPE)
endfunction()

ask(TORCH_HOME "import os, torch; print(os.path.dirname(torch.__file__))")
ask(TORCH_ABI "import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))")
ask(TORCH_STANDARD "import torch; print(14 if torch.__version__.startswith('1.') else 17 if tuple(map(int, torch.__version__.split('.')[:2])) < (2, 10) else 20)")

add_executable(replay replay.cpp)
target_include_directories(replay SYSTEM PRIVATE ${TORCH_HOME}/include)
target_compile_definitions(replay PRIVATE _GLIBCXX_USE_CXX11_ABI=${TORCH_ABI})
set_target_properties(replay PROPERTIES CXX_STANDARD ${TORCH_STANDARD} CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
                      BUILD_RPATH ${TORCH_HOME}/lib INSTALL_RPATH ${TORCH_HOME}/lib)
set(LIBRARIES torch torch_cpu c10)
if(EXISTS ${TORCH_HOME}/lib/libtorch_cuda.so)
  list(APPEND LIBRARIES torch_cuda c10_cuda)
endif()
if(EXISTS ${TORCH_HOME}/lib/libtorch_hip.so)
  list(APPEND LIBRARIES torch_hip c10_hip)
endif()
target_link_directories(replay PRIVATE ${TORCH_HOME}/lib)
# libtorch_cuda registers its kernels when it is loaded: it must not be dropped because no symbol of it is used.
target_link_libraries(replay PRIVATE -Wl,--no-as-needed ${LIBRARIES} -Wl,--allow-shlib-undefined dl pthread)
"""


BUILD_TEXT = """\
#!/bin/sh
# Without CMake: ./build.sh [python]
set -eu
cd "$(dirname "$0")"
python=${1:-python3}
home=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
abi=$("$python" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
standard=$("$python" -c "import torch; v = torch.__version__; print(14 if v.startswith('1.') else 17 if tuple(map(int, v.split('.')[:2])) < (2, 10) else 20)")
libraries="-ltorch -ltorch_cpu -lc10"
[ -e "$home/lib/libtorch_cuda.so" ] && libraries="$libraries -ltorch_cuda -lc10_cuda"
[ -e "$home/lib/libtorch_hip.so" ] && libraries="$libraries -ltorch_hip -lc10_hip"
${CXX:-g++} -std=c++"$standard" ${CXXFLAGS:--O1} -D_GLIBCXX_USE_CXX11_ABI="$abi" -isystem "$home/include" replay.cpp -o replay \\
  -L"$home/lib" -Wl,-rpath,"$home/lib" -Wl,--no-as-needed $libraries -Wl,--allow-shlib-undefined -ldl -lpthread
echo "built $(pwd)/replay"
"""
