"""A C++ program that makes the catalogue's calls through libtorch's dispatcher, written from signatures
alone.

Every call is a name, an overload and a stack of arguments, so any registered op of any namespace works. The
data are those of the Python replay (runtime.hpp has the same hash), so results can be compared byte by byte.
Calls without resolved arguments are left out, and named in the program with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.perfmodel.dtypes import ITEM_BYTES, SPELLINGS
from lab.recordings.names import short_name
from lab.rooms.kernels.replay.args import Arg, RawReplay, ReplayPlan, Signature, TensorArg, extent, fill_of
from lab.rooms.kernels.replay.proof.rows import REBUILT

PROGRAM = "replay.cpp"
# Written as they are beside the program: name there -> file of this folder.
COPIED = {"lab_replay.hpp": "runtime.hpp", "CMakeLists.txt": "CMakeLists.txt"}
_FILLS = ("floats", "positive", "bools", "bounded", "zeros", "ones")  # numbered so in runtime.hpp
# torch's name of a dtype -> the C++ type, which is how Kineto writes it.
_CPP_TYPES = {name: spelling for spelling, name in reversed(SPELLINGS.items()) if spelling != name}


def generate(plan: ReplayPlan, out: Path, raw: RawReplay | None = None) -> tuple[list[Path], list[str]]:
    """Write program, runtime and CMake file into `out`; the files, and the calls left out with the reason.

    `raw` is a replay of the same plan: it has the arguments that only torch's schemas could resolve.
    """
    counts = Counter(call.sig for call in plan.calls)
    functions, entries, left_out = [], [], []
    for sig, signature in enumerate(plan.signatures):
        resolved = _resolved(sig, signature, raw)
        if resolved is None:
            reason = signature.reason or "replay it first, and generate from the replay's folder"
            left_out.append(f"{signature.op} ({signature.sig_id}): no resolved arguments: {reason}")
            continue
        functions.append(_function(signature, resolved[1]))
        entries.append(_entry(signature, resolved[0], counts[sig]))
    calls = plural(len(plan.signatures), "distinct call")
    comments = [f"Replay of {plan.origin.trace}, written by lab: {calls}."]
    comments += [f"left out: {line}" for line in left_out]
    lines = [
        *(f"// {' '.join(comment.replace(chr(92), '/').split())}" for comment in comments),
        '#include "lab_replay.hpp"',
        "",
        "namespace {",
        *functions,
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
    contents = {PROGRAM: "\n".join(lines)}
    contents |= {name: Path(__file__).with_name(file).read_text("utf-8") for name, file in COPIED.items()}
    for name, content in contents.items():
        write_atomic(out / name, content)
    return [out / name for name in contents], left_out


def _resolved(sig: int, signature: Signature, raw: RawReplay | None) -> tuple[str, tuple[Arg, ...]] | None:
    """Overload and arguments, of the recording or of its replay."""
    if signature.args is not None and signature.overload is not None:
        return signature.overload, signature.args
    if raw is not None and raw.signatures[sig].status in REBUILT:
        return raw.signatures[sig].overload, raw.signatures[sig].args
    return None


def _function(signature: Signature, args: tuple[Arg, ...]) -> str:
    values = [f"    {value(signature.op, arg, seed)}," for seed, arg in enumerate(args)]
    name = f"lab::Stack call_{signature.sig_id}(const lab::Options& o) {{"
    return "\n".join([name, "  (void)o;", "  return lab::Stack{", *values, "  };", "}"])


def _entry(signature: Signature, overload: str, count: int) -> str:
    """The call and the cells of its row that are known now, as a text of JSON."""
    kernels = [launch for launch in signature.launches if launch.kind == "kernel"] or signature.launches
    kernel = short_name(kernels[0].name) if kernels else ""
    cells = {"sig_id": signature.sig_id, "op": signature.op, "overload": overload, "kernel": kernel}
    text = json.dumps({**cells, "count": count})[1:-1]
    words = ", ".join(map(json.dumps, (signature.op, overload, text)))
    return f"    {{{words}, call_{signature.sig_id}}},"


def value(op: str, arg: Arg, seed: int) -> str:
    """The C++ expression of one argument."""
    if arg.tensor is not None:
        return f"c10::IValue({_tensor(op, arg.tensor, seed)})"
    if arg.tensors is not None:
        seeds = [seed + 31 * i for i in range(len(arg.tensors))]
        pairs = zip(arg.tensors, seeds, strict=True)
        tensors = [_tensor(op, spec, its_seed) if spec else "c10::nullopt" for spec, its_seed in pairs]
        name = "lab::optional_tensors" if arg.type == "Tensor?[]" else "lab::tensors"
        return f"{name}({{{', '.join(tensors)}}})"
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
        "bool[]": ("bool", lambda item: _bool(bool(item))),
        "float[]": ("double", _double),
        "Scalar[]": (
            "at::Scalar",
            lambda item: f"at::Scalar({_double(item) if isinstance(item, float) else item})",
        ),
        "str[]": ("std::string", lambda item: json.dumps(str(item))),
    }
    kind, write = kinds.get(base, ("int64_t", lambda item: str(int(item))))
    return f"lab::list_of<{kind}>({{{', '.join(write(item) for item in values)}}})"


def _tensor(op: str, spec: TensorArg, seed: int) -> str:
    if spec.number:
        return f"lab::number({'at::kLong' if spec.dtype in ('int64', 'bool') else 'at::kDouble'})"
    lead = spec.align_bytes // ITEM_BYTES[spec.dtype]
    fields = (
        f"c10::CppTypeToScalarType<{_CPP_TYPES.get(spec.dtype, spec.dtype)}>::value",
        _braced(spec.shape),
        _braced(spec.stride),
        str(lead),
        str(lead + extent(spec.shape, spec.stride)),
        str(seed),
        str(_FILLS.index(fill_of(op, spec))),
        str(spec.low or 0),
        str(spec.high or 0),
        _bool(spec.device == "cpu"),
    )
    return f"lab::make({{{', '.join(fields)}}}, o)"


def _braced(values: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _double(value: Any) -> str:
    special = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    text = special.get(str(value)) or repr(float(value))
    return f"static_cast<double>({text})"
