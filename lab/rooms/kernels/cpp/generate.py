"""A C++ program that makes the catalogue's calls through libtorch's dispatcher, written from signatures
alone.

There is no list of ops: every call is a name, an overload and a stack of arguments, so any registered op of
any namespace works. The data are those of the Python replay (runtime.hpp has the same hash), so results can
be compared byte by byte. Calls without resolved arguments are left out, and named in the program with the
reason.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.recordings.names import short_name
from lab.rooms.kernels.cpp.expressions import value
from lab.rooms.kernels.replay.args import Arg, ReplayPlan, Signature
from lab.rooms.kernels.replay.proof.result import REBUILT
from lab.rooms.kernels.replay.raw import RawReplay

PROGRAM, RUNTIME, CMAKE, BUILD = "replay.cpp", "lab_replay.hpp", "CMakeLists.txt", "build.sh"
# Written as they are beside the program: name there -> file of this folder.
COPIED = {RUNTIME: "runtime.hpp", CMAKE: "CMakeLists.txt", BUILD: "build.sh"}


class Generated(msgspec.Struct):
    """The files that were written, and the calls that were left out, with the reason."""

    files: list[Path]
    calls: int
    left_out: list[str]


def generate(plan: ReplayPlan, out: Path, raw: RawReplay | None = None) -> Generated:
    """Write program, runtime, CMake file and build script into `out`.

    `raw` is a replay of the same plan: it has the arguments that only torch's schemas could resolve.
    """
    counts = Counter(call.sig for call in plan.calls)
    functions, entries, left_out = [], [], []
    for sig, signature in enumerate(plan.signatures):
        resolved = _resolved(sig, signature, raw)
        if resolved is None:
            left_out.append(f"{signature.op} ({signature.sig_id}): no resolved arguments{_reason(signature)}")
            continue
        functions.append(_function(signature, resolved[1]))
        entries.append(_entry(signature, resolved[0], counts[sig]))
    text = "\n".join([_head(plan, left_out), *functions, _main(entries)])
    folder = Path(__file__).parent
    copies = {name: (folder / file).read_text(encoding="utf-8") for name, file in COPIED.items()}
    contents = {PROGRAM: text, **copies}
    for name, content in contents.items():
        write_atomic(out / name, content)
    (out / BUILD).chmod(0o755)
    return Generated([out / name for name in contents], len(entries), left_out)


def _resolved(sig: int, signature: Signature, raw: RawReplay | None) -> tuple[str, tuple[Arg, ...]] | None:
    """Overload and arguments, of the recording or of its replay."""
    if signature.args is not None and signature.overload is not None:
        return signature.overload, signature.args
    if raw is not None and raw.signatures[sig].status in REBUILT:
        return raw.signatures[sig].overload, raw.signatures[sig].args
    return None


def _reason(signature: Signature) -> str:
    if signature.reason:
        return f": {signature.reason}"
    return "; replay it first, and generate from the replay's folder"


def _head(plan: ReplayPlan, left_out: list[str]) -> str:
    lines = [
        f"// Replay of {_one_line(plan.origin.trace)}, written by lab: "
        f"{plural(len(plan.signatures), 'distinct call')}.",
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
    launched = next((launch for launch in signature.launches if launch.kind == "kernel"), None) or next(
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
