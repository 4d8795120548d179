"""The lines nixnan writes, one pattern per kind, from its first public builds (March 2025) to July 2026.

Source: nixnan's own print statements and some two hundred thousand published lines. A line is read after
`tidy`: no escape sequences, no NUL, tabs as blanks. Names hold blanks and brackets, so brackets close
greedily.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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
