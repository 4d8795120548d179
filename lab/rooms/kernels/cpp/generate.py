"""A C++ program that makes the catalogue's calls through libtorch's dispatcher, written from signatures alone.

There is no list of ops: every call is its name, its overload and a stack of arguments, so any registered op of any
namespace will do. The data are those of the Python replay (cpp_runtime.hpp holds the same hash), so results can be
compared byte by byte. What has no resolved arguments is named in the program as left out, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import write_atomic
from lab.recordings.names import short_name
from lab.rooms.kernels.replay.args import (
    ITEM_BYTES,
    Arg,
    RawReplay,
    ReplayPlan,
    Signature,
    TensorArg,
    extent,
    fill_of,
)

PROGRAM, RUNTIME, CMAKE, BUILD = "replay.cpp", "lab_replay.hpp", "CMakeLists.txt", "build.sh"
FILLS = {"floats": 0, "positive": 1, "bools": 2, "bounded": 3, "zeros": 4, "ones": 5}
SCALAR_TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
}


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
    values = [f"      {_value(signature.op, arg, seed)}," for seed, arg in enumerate(args)]
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


def _value(op: str, arg: Arg, seed: int) -> str:
    """The C++ expression of one argument."""
    if arg.tensor is not None:
        return f"c10::IValue({_tensor(op, arg.tensor, seed)})"
    if arg.tensors is not None:
        made = [
            _tensor(op, one, seed + 31 * i) if one else "c10::nullopt" for i, one in enumerate(arg.tensors)
        ]
        name = "lab::optional_tensors" if arg.type == "Tensor?[]" else "lab::tensors"
        return f"{name}({{{', '.join(made)}}})"
    return _plain(arg)


def _plain(arg: Arg) -> str:
    base, value = arg.type.rstrip("?"), arg.value
    if value is None:
        return "c10::IValue()"
    if base == "Device":
        return f"c10::IValue(lab::device_of(o, {_bool(not str(value).startswith(('cuda', 'hip')))}))"
    if isinstance(value, list):
        return _list(base, value)
    if base == "bool" or isinstance(value, bool):
        return f"c10::IValue({_bool(bool(value))})"
    if base == "float" or isinstance(value, float) or value in ("inf", "-inf", "nan"):
        return f"c10::IValue({_double(value)})"
    if isinstance(value, int):
        return f"c10::IValue(static_cast<int64_t>({value}LL))"
    return f"c10::IValue(std::string({json.dumps(str(value))}))"


def _list(base: str, values: list[Any]) -> str:
    kinds: dict[str, tuple[str, Callable[[Any], str]]] = {
        "bool[]": ("bool", lambda one: _bool(bool(one))),
        "float[]": ("double", _double),
        "Scalar[]": (
            "at::Scalar",
            lambda one: f"at::Scalar({_double(one) if isinstance(one, float) else one})",
        ),
        "str[]": ("std::string", lambda one: json.dumps(str(one))),
    }
    kind, write = kinds.get(base, ("int64_t", lambda one: str(int(one))))
    return f"lab::list_of<{kind}>({{{', '.join(write(one) for one in values)}}})"


def _tensor(op: str, spec: TensorArg, seed: int) -> str:
    if spec.number:
        dtype = "at::kLong" if spec.dtype in ("int64", "bool") else "at::kDouble"
        return f"lab::number({dtype}, true)"
    lead = spec.align_bytes // ITEM_BYTES[spec.dtype]
    fields = (
        f"at::ScalarType::{SCALAR_TYPES[spec.dtype]}",
        _braced(spec.shape),
        _braced(spec.stride),
        str(lead),
        str(lead + extent(spec.shape, spec.stride)),
        str(seed),
        str(FILLS[fill_of(op, spec)]),
        str(spec.low or 0),
        str(spec.high or 0),
        _bool(spec.device == "cpu"),
    )
    return f"lab::make({{{', '.join(fields)}}}, o)"


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


def _braced(values: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _double(value: Any) -> str:
    special = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    text = special.get(str(value)) or repr(float(value))
    return f"static_cast<double>({text})"


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
