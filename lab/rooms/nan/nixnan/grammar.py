"""The lines nixnan writes, one pattern per kind, from its first public builds (March 2025) to July 2026.

Source: nixnan's own print statements and some two hundred thousand published lines. A line is read after
`tidy`: no escape sequences, no NUL, tabs as blanks. Names hold blanks and brackets, so brackets close
greedily.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from lab.recordings.names import kernel_class

PREFIX = b"#nixnan"
KINDS = ("NaN", "infinity", "-infinity", "subnormal", "div0")
TYPES = ("f16", "bf16", "f32", "f64", "unknown")
SECTION_TYPES = {"FP16": "f16", "BF16": "bf16", "FP32": "f32", "FP64": "f64"}
REPORT_KINDS = {
    "NaN": "NaN",
    "Infinity": "infinity",
    "-Infinity": "-infinity",
    "Subnormal": "subnormal",
    "Division by 0": "div0",
}
_K = r"(?:NaN|-?infinity|subnormal|div0)"
# The function's name is taken greedily, with the place behind it: most lines have none.
ERROR = re.compile(
    rf"#nixnan: error \[({_K}(?:,{_K})*)\] detected in (?:operand (\d{{1,3}}) of )?"
    rf"instruction ([^;]+); in function (.*) of type ({'|'.join(TYPES)})"
)
_PLACE = re.compile(r"(.*?) at (?:line \d+|(\S.*?:\d+))")
RUNNING = re.compile(r"#nixnan: running kernel \[(.*)\] \.\.\.")
LOGGED = re.compile(r"#nixnan: kernel \[(.*)\] \.\.\.")
TIMED = re.compile(r"#nixnan: Kernel \[(.*)\] execution time: (\d+) microseconds")
FUNCTION_OF = re.compile(r"#nixnan: Function \[(.*)\] of kernel \[(.*)\]")
BIN = re.compile(
    r"#nixnan: (f16|bf16|f32|f64) bin has reached threshold: (?:kernel|function)=(.*?) "
    r"range=\[([^,\]]+),([^\]]+)\] count=(\d+)"
    r"(?: instruction=(.+?) *; in function=(.*?)(?: at (\S.*?):(\d+))?)?"
)
IMMEDIATE = re.compile(
    r"#nixnan: (?:#nixnan: )?warning: (NaN|Infinite|Subnormal|Unknown) immediate found in operand (\d+) "
    r"of (.+?) *;?"
)
SECTION = re.compile(r"#nixnan: --- (FP16|BF16|FP32|FP64)( Memory )? Operations ---")
COUNT = re.compile(
    r"#nixnan: (NaN|Infinity|-Infinity|Subnormal|Division by 0):\s+(\d{1,20})(?: \((\d{1,20}) repeats\))?"
)
EXPONENTS = re.compile(
    r"#nixnan: Exponent range for (f16|bf16|f32|f64): \[(zero|inf|-?\d+), (zero|inf|-?\d+)\]"
)
STOPPED = re.compile(r"#nixnan: (Maximum number of errors \(\d+\) reached\..*|Terminating early: .*)")
TEMPLATE = re.compile(r"#nixnan: (Created template bin specification file at .*)")
CRASHED = re.compile(r"#nixnan: (.*(?:SIGSEGV|segmentation fault).*)", re.IGNORECASE)
LISTS = re.compile(
    r"#nixnan: (?P<listed>(?:Only|Not) instrumenting (?:kernels|functions) specified in .*)|"
    r"#nixnan: [Ii]nstrumenting all (?:kernels|functions)|#nixnan: Could not open \S+!"
)
VERBOSE = re.compile(
    r"#nixnan: (?:Inspecting function |(?:Histogram i|I)nstrumenting:? |Found memory instruction )"
)
RULE = re.compile(r"#nixnan: -{20,}")
REPORT_HEAD = re.compile(r"#nixnan: -+ nixnan Report -+")
CONTEXT = re.compile(r"#nixnan: (Initializing|Finalizing) GPU context\.\.\.")
EXPONENT_HEAD = re.compile(r"#nixnan: --- FP exponent ranges ---")
# Most frequent first; all but VERBOSE must take the whole line.
_OTHERS = (
    ("bin", BIN),
    ("running", RUNNING),
    ("logged", LOGGED),
    ("timed", TIMED),
    ("function of", FUNCTION_OF),
    ("count", COUNT),
    ("section", SECTION),
    ("context", CONTEXT),
    ("rule", RULE),
    ("lists", LISTS),
    ("report", REPORT_HEAD),
    ("exponents", EXPONENTS),
    ("exponent head", EXPONENT_HEAD),
    ("stopped", STOPPED),
    ("template", TEMPLATE),
    ("crashed", CRASHED),
)
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_=>])")


class Event(NamedTuple):
    """One error line, read.

    `operand` is None in the oldest logs; `place` is `path:line` where the build knew it.
    """

    kinds: tuple[str, ...]
    operand: int | None
    sass: str
    function: str
    place: str | None
    label: str


class Other(NamedTuple):
    """Any other line of nixnan that is understood."""

    name: str
    groups: tuple[str | None, ...]


class Torn(NamedTuple):
    """A line of nixnan that another line ran into, or that was cut: nothing in it is used."""


class Foreign(NamedTuple):
    """A line that is not nixnan's: the program's own output, or a comment."""


_ERROR_HEAD = "#nixnan: error ["
TORN, FOREIGN = Torn(), Foreign()
Line = Event | Other | Torn | Foreign


def tidy(raw: bytes) -> bytes:
    """A line without NULs, escape sequences and what a progress bar wrote before it; tabs become blanks."""
    raw = raw.replace(b"\0", b"").replace(b"\t", b" ").rstrip(b"\r")
    if b"\x1b" in raw:
        raw = _ESCAPES.sub(b"", raw)
    if b"\r" in raw:
        raw = raw[raw.rfind(b"\r", 0, max(raw.find(PREFIX), 0)) + 1 :]
    return raw


def read_line(raw: bytes) -> Line:
    """Read one line. Line ends, trailing blanks, escape sequences and NULs are ignored."""
    if PREFIX not in raw:
        return FOREIGN
    raw = tidy(raw)
    if raw.startswith(b"##"):
        return FOREIGN
    text = raw.rstrip().decode("utf-8", "backslashreplace")
    if text.startswith(_ERROR_HEAD) and text.find("#nixnan", 1) < 0:  # most lines are of events
        return _event(match) if (match := ERROR.fullmatch(text)) else _other(text)
    twice = text.find("#nixnan", 1) > 0
    if match := IMMEDIATE.fullmatch(text):
        return Other("immediate", match.groups()) if text.count("#nixnan") <= 2 else TORN
    if twice or not text.startswith("#nixnan:"):
        return TORN
    return _other(text)


def _other(text: str) -> Line:
    for name, pattern in _OTHERS:
        if match := pattern.fullmatch(text):
            return Other(name, match.groups())
    return Other("verbose", ()) if VERBOSE.match(text) else TORN


def _event(match: re.Match[str]) -> Event:
    kind_list, operand, sass, function, label = match.groups()
    place = None
    if " at " in function and (placed := _PLACE.fullmatch(function)):
        function, place = placed.groups()
    kinds = tuple(kind_list.split(","))
    return Event(kinds, int(operand) if operand else None, sass.rstrip(" "), function, place, label)


# Names: what an opcode says (whether it stores, the types of its operands), and a function's category.
# nixnan cuts names at the first `<` or `(`, and reports the code of a device function once more under its
# own name (see `twins_of`). A name with nothing left is `unnamed`.

_PLAIN_TYPES = {
    **dict.fromkeys(("FADD", "FMUL", "FFMA", "FSEL", "FMNMX", "FSET", "FCHK"), "f32"),
    **dict.fromkeys(("DADD", "DMUL", "DFMA", "DMMA", "DSETP"), "f64"),
}
# First match counts; then the lab's table for kernel names; then `other`.
_RULES = (
    ("unnamed", re.compile(r"^(void )?(at::native::)?$")),  # cut before it says anything
    ("device function", re.compile(r"^__(cuda_sm|internal)")),  # kernels call it
    ("quantized gemm", re.compile(r"kgemm_4bit|gemm_4bit|igemmlt|int8_mm|w4a16|marlin")),
    ("quant", re.compile(r"k(De)?[Qq]uantize")),  # packs or unpacks quantized weights
    ("gemv", re.compile(r"^std::enable_if$")),  # cuBLAS' gemvx kernels are cut to their return type
    ("gemm", re.compile(r"^(void )?gemmk1_kernel")),  # cuBLAS' product over one
)
_NUMBER = re.compile(r"_\d{2,}$")  # compilers number the kernels they make; no row of a table looks at that


def opcode_of(sass: str) -> str:
    """The first word of an instruction after its predicate: `@!P1 FFMA.FTZ R1, ...` is `FFMA.FTZ`."""
    words = sass.split(None, 2)
    if not words:
        return ""
    return words[1] if words[0].startswith("@") and len(words) > 1 else words[0]


def is_store(opcode: str) -> bool:
    """Whether lines of this opcode come from nixnan's memory check, which looks only at global stores."""
    return opcode.startswith("STG")


@lru_cache(maxsize=1 << 12)
def type_of(opcode: str, operand: int | None) -> str | None:
    """The type of an operand by its opcode; None if the opcode does not say (stores, moves, selects).

    Tensor core products name the accumulator first and the inputs last: in HMMA.16816.F32.BF16 operands 0 and
    3 are f32, 1 and 2 bf16.
    """
    name, *flags = opcode.split(".")
    if name == "HMMA":
        inputs = "bf16" if "BF16" in flags else "f32" if "TF32" in flags else "f16"
        outputs = "f32" if "F32" in flags else "f16"
        return None if operand is None else outputs if operand in (0, 3) else inputs
    if name in ("HADD2", "HMUL2", "HFMA2"):
        if "F32" in flags and operand == 0:
            return "f32"
        return "bf16" if any(flag.startswith("BF16") for flag in flags) else "f16"
    if name == "MUFU":
        return "f64" if any(flag.endswith("64H") for flag in flags) else "f16" if "F16" in flags else "f32"
    return _PLAIN_TYPES.get(name)


def category(function: str) -> str:
    """The category of one function: a word of the table, or one of `lab.recordings.names.CLASSES`."""
    return _category(_NUMBER.sub("_00", function))


@lru_cache(maxsize=1 << 16)
def _category(function: str) -> str:
    rule_name = next((word for word, pattern in _RULES if pattern.search(function)), None)
    return rule_name or kernel_class(function)


def shown(function: str) -> str:
    """A function's name for a page: without `void `, and with words where nothing is left."""
    name = function.removeprefix("void ").strip()
    return name or "(name cut away)"


def categories(functions: Mapping[str, int], same_as: Mapping[str, str]) -> dict[str, int]:
    """Category -> lines, largest first; a device function's lines go to the kernel it repeats.

    They add up to all lines.
    """
    lines_by_category: dict[str, int] = {}
    for name, lines in functions.items():
        word = category(same_as.get(name, name))
        lines_by_category[word] = lines_by_category.get(word, 0) + lines
    return dict(sorted(lines_by_category.items(), key=lambda item: -item[1]))
