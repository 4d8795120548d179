"""Made nixnan logs, and the plain reader that the fast one is tested against."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

BANNER = (
    "#nixnan: ----------------------------------------------------------------------------------",
    "#nixnan: Initializing GPU context...",
    "#nixnan: Could not open kernel_whitelist.txt!",
    "#nixnan: Could not open kernel_blacklist.txt!",
    "#nixnan: Instrumenting all kernels",
)
END = "#nixnan: Finalizing GPU context..."
ROWS = {
    "NaN": "NaN",
    "infinity": "Infinity",
    "-infinity": "-Infinity",
    "subnormal": "Subnormal",
    "div0": "Division by 0",
}


def error(
    kinds="NaN", sass="FADD R2, -R7, R2", *, operand=0, function="void softmax", type="f32", place=""
) -> str:
    """One error line; operand None is the oldest format."""
    which = "" if operand is None else f"operand {operand} of "
    at = f" at {place}" if place else ""
    where = f"{which}instruction {sass} ; in function {function}{at} of type {type}"
    return f"#nixnan: error [{kinds}] detected in {where}"


def report(lines=(), *, repeats=7, extra=None, old=False) -> list[str]:
    """The report of error lines: their unique events, each repeated `repeats` times.

    `extra` adds {(type, kind): events}.
    """
    cells: Counter[tuple[str, str, bool]] = Counter()
    for line in lines:
        found = re.search(r"error \[(.*?)\].*instruction (?:@\S+ )?(\S+).* of type (\S+)$", line)
        for kind in found[1].split(",") if found else ():
            cells[found[3], kind, found[2].startswith("STG")] += 1
    for (of, kind), events in (extra or {}).items():
        cells[of, kind, False] += events
    out = ["", "#nixnan: ------------ nixnan Report -----------"]
    for name in ("FP16", "FP32", "FP64") if old else ("FP16", "BF16", "FP32", "FP64"):
        out += ["", f"#nixnan: --- {name} Operations ---"]
        for kind, title in ROWS.items():
            if not (old and kind == "-infinity"):
                out.append(_row(title, cells[name.lower().replace("fp", "f"), kind, False], repeats))
    for name in () if old else ("FP16", "BF16", "FP32", "FP64"):
        out += [
            f"#nixnan: --- {name} Memory  Operations ---",
            _row("NaN", cells[name.lower().replace("fp", "f"), "NaN", True], repeats),
        ]
    return out


def _row(name: str, unique: int, repeats: int) -> str:
    return f"#nixnan: {name + ':':<21}{unique:>5} ({repeats * unique} repeats)"


def log(*lines: str, end: bool = True, kernels=("void softmax",)) -> list[str]:
    """A whole log of one process: banner, kernels, lines, report (not after a kill: end=False)."""
    running = [f"#nixnan: running kernel [{name}] ..." for name in kernels]
    return [*BANNER, *running, *lines, *([END, *report(lines)] if end else [])]


def write(path: Path, lines) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


SASS = (
    "FADD R{a}, -R{b}, R{c}",
    "@!P0 FMUL.FTZ R{a}, |R{b}|, c[0x0][0x170]",
    "HMMA.16816.F32 R{a}, R{b}.reuse, R{c}, RZ",
    "FFMA R{a}, R{b}, c[0x0] [0x238], -R{c}",
    "DADD R{a}, R{b}, +INF ",
    "MUFU.RSQ R{a}, R{b}",
    "@!UP0 MUFU.EX2 R{a}, R{b}",
    "STG.E.128 [R{a}.64], R{b}",
    "HFMA2.BF16_V2 R{a}, R{b}.H0_H0, -1, -1, R{c}.H1_H1",
    "STG.E desc[UR4][R{a}.64], R{b}",
)
FUNCTIONS = (
    "void ",
    "void at::native::",
    "void pytorch_flash::flash_fwd_kernel",
    "k[with] {lambda()#1}",
    "std::enable_if",
    "void cutlass::Kernel2",
    "nåme",
)
KIND_LISTS = (
    "NaN",
    "infinity",
    "-infinity",
    "subnormal",
    "div0",
    "NaN,infinity",
    "NaN,-infinity,subnormal",
    "infinity,div0",
    "NaN,infinity,subnormal,div0",
)
NOISE = (
    "",
    "step 12 loss=nan",
    "#nixnan: running kernel [void at::native::] ...",
    "#nixnan: error [NaN] detected in opera",
    f"f32{error(sass='FADD R1, R1, R1', function='f')}",
    "#nixnan: #nixnan: warning: Infinite immediate found in operand 3 of @P1 FFMA R3, R2, R1, +INF  ;",
    "#nixnan: f16 bin has reached threshold: kernel=f range=[13,15] count=256",
    "\x1b[32mgreen\x1b[0m",
    "## a comment on #nixnan",
    f" 50%|#####     |\r{error(sass='FADD R9, R1, R1', function='f')}\r",
    f"\0\0\0{error('subnormal', 'FMUL R1,' + chr(9) + 'R1, R1', operand=2, function='f')}",
)


def varied(draw: random.Random, registers: int = 256) -> str:
    """One error line of any shape."""
    sass = draw.choice(SASS).format(
        a=draw.randrange(registers), b=draw.randrange(registers), c=draw.randrange(registers)
    )
    place = draw.choice(("", "", "", "line 0", "/tmp/a b/x.py:12"))
    return error(
        draw.choice(KIND_LISTS),
        sass,
        operand=draw.choice((0, 0, 1, 2, 3, None)),
        function=draw.choice(FUNCTIONS),
        type=draw.choice(("f16", "bf16", "f32", "f64", "unknown")),
        place=place,
    )


@dataclass
class Plain:
    """What a loop over the lines finds."""

    lines: int = 0
    error_lines: int = 0
    torn_lines: int = 0
    sites: Counter = field(default_factory=Counter)
    counts: Counter = field(default_factory=Counter)  # (type, memory, kind)
    functions: Counter = field(default_factory=Counter)
    opcodes: Counter = field(default_factory=Counter)


_KIND = r"(?:NaN|-?infinity|subnormal|div0)"
_ERROR = re.compile(
    rf"^#nixnan: error \[({_KIND}(?:,{_KIND})*)\] detected in (?:operand (\d+) of )?"
    r"instruction (.+?) *; in function (.*?)"
    r"(?: at (?:line (\d+)|(\S.*?):(\d+)))? of type (f16|bf16|f32|f64|unknown)$"
)
_FINE = re.compile(
    r"^#nixnan: (running kernel|(#nixnan: )?warning|\w+ bin|-|Initial|Final|Could|Instrum|NaN|-?Inf|Sub|Div)"
)


def plain(path: Path) -> Plain:
    """The straightforward reader: one pattern, one loop, no limit on memory."""
    got = Plain()
    with path.open(encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for line in file:
            got.lines += 1
            _take(got, line.rstrip("\n"))
    return got


def _take(got: Plain, line: str) -> None:
    line = re.sub(r"\x1b\[[0-9;]*m|\0", "", line).replace("\t", " ").rstrip("\r")
    if line.startswith("##") or "#nixnan" not in line:
        return
    line = re.sub(r"^[^#]*#*[^#]*\r(?=#nixnan)", "", line)
    found = _ERROR.match(line)
    if found and line.count("#nixnan") == 1:
        kinds, operand, sass, function, *_, of = found.groups()
        opcode = re.sub(r"^@\S+ ", "", sass).split()[0]
        got.error_lines += 1
        got.sites[function, sass, None if operand is None else int(operand)] += 1
        got.functions[function] += 1
        got.opcodes[opcode] += 1
        for kind in kinds.split(","):
            got.counts[of, opcode.startswith("STG"), kind] += 1
    elif not _FINE.match(line) or (line.count("#nixnan") > 1 and "warning" not in line):
        got.torn_lines += 1


def fake(folder: Path, name: str, script: str) -> None:
    """A command of this name in `folder`/bin."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
