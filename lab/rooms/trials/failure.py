"""What a failure is: terms joined by `or`, judged on the exit code and the output, line by line.

exit!=0          the exit code (also == < > <= >=)
nan in loss      the output gives loss that value: `loss: nan`, `loss nan`, `loss: tensor(nan)`,
                 `{"loss": NaN}` or null (JSON has no NaN); inf in loss alike
loss > 3         the number, at any place of the output; of a list each number
eval.acc < 0.9   a field of a JSON line
/REGEX/          any line
timeout          the trial ran past --trial-timeout
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
import signal
import statistics
from collections.abc import Callable

import msgspec

from lab.core.words import printable
from lab.errors import UsageError

CANNOT_RUN = "cannot run"  # how the reason begins where the command, or what it starts, is not there
HIDDEN = "although its output ends in an error"  # how the reason of such a pass begins
NAME = r"[A-Za-z_][\w./-]*"
WORD = r"[+-]?(?:nan|inf(?:inity)?)"
DIGITS = r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
NUMBER = rf"(?:{WORD}|{DIGITS})"
# What a number is printed in: `tensor(0.5)`, `np.float32(3)`; `CrossEntropyLoss(0.1)` is not a loss of 0.1.
_PRINTED_IN = r"(?:(?:\w{1,20}\.){0,3}(?:\w{0,12}tensor|array|float\d{0,2})\()?"
_ITEM = re.compile(rf"(?<![\w.]){WORD}(?!\w)|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "!=": operator.ne,
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_OP = r"(!=|==|<=|>=|<|>)"
NOT_THERE = {126: "not executable", 127: "a command is not found"}  # by POSIX, of every shell
KILLED = 128 + signal.SIGKILL
# Last lines of a command that never began, in outputs of a few lines: beyond them a program has failed.
_NEVER_BEGAN = re.compile(
    r"\S*python\S*: (?:can't open file|No module named) .*|ModuleNotFoundError: .*"
    r"|.*error while loading shared libraries: .*|ImportError: .*cannot open shared object file.*"
)
FEW_LINES, LONGEST = 40, 200
TRACEBACK = "Traceback (most recent call last"
HARMLESS = ("Exception ignored", "--- Logging error")
AFTER = 6  # lines that a message may have below a traceback


class Term(msgspec.Struct, frozen=True):
    """kind: exit, nan, inf, number, regex, timeout. `name` is the number's, `text` as written."""

    kind: str
    text: str
    name: str = ""
    op: str = ""
    value: float = 0.0


def parse(text: str) -> tuple[Term, ...]:
    """Raises UsageError that names the term."""
    return tuple(_term(word.strip()) for word in re.split(r"\s+or\s+", text.strip()))


def _term(text: str) -> Term:
    if text == "timeout":
        return Term("timeout", text)
    if len(text) > 2 and text[0] == text[-1] == "/":
        try:
            re.compile(text[1:-1])
        except re.error as error:
            raise UsageError(
                f"{text} is not a valid regular expression: {error}", location="--fail"
            ) from error
        return Term("regex", text)
    if hit := re.fullmatch(rf"(nan|inf) in ({NAME})", text):
        return Term(hit[1], text, hit[2])
    if hit := re.fullmatch(rf"({NAME}?)\s*{_OP}\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)", text):
        name, op, value = hit[1], hit[2], float(hit[3])
        if name == "exit":
            return Term("exit", text, name, op, float(shell_code(int(value))) if value < 0 else value)
        return Term("number", text, name, op, value)
    raise UsageError(
        f"{text!r} does not say what a failure is",
        location="--fail",
        fix="terms joined by `or`: exit!=0, nan in loss, inf in loss, loss > 3, /REGEX/, timeout",
    )


class Reader:
    """Reads a command's output line by line and keeps what the terms ask for, and the step times."""

    def __init__(self, terms: tuple[Term, ...], step_time: str | None = None) -> None:
        self.terms = terms
        names = {term.name for term in terms} | {step_time or ""}
        self._patterns = {name: _named(name) for name in names - {"", "exit"}}
        self._expressions = {t.text: re.compile(t.text[1:-1]) for t in terms if t.kind == "regex"}
        self._step_time = step_time
        self.times: list[float] = []
        self.names_read: set[str] = set()
        self.hits: dict[str, int] = {}  # term -> the first line, from 1
        self._no_numbers: dict[str, int] = {}  # comparisons that met NaN, which is neither above nor below
        self._judged = hashlib.sha256()
        self.line_number = 0  # lines so far
        self._cut_line = 0  # the first whose parts were judged one by one: a number may be in two of them
        self._last_line = ""  # of those that are not blank
        self._in_frames, self._raised, self._raised_at = False, "", 0  # the last traceback's exception

    def line(self, line: str, *, is_cut: bool = False) -> None:
        """Judge a line, or the next part of one that is longer than what is judged at a time."""
        self.line_number += 1
        if is_cut and not self._cut_line:
            self._cut_line = self.line_number
        if "\x1b" in line:
            line = COLOURS.sub("", line)
        if line and not line.isspace():
            self._follow_traceback(line)
        for text, pattern in list(self._expressions.items()):
            if pattern.search(line):
                # The first hit is what is reported: later lines are not searched for it.
                self.hits[text] = self.line_number
                del self._expressions[text]
        for name, values in self._numbers(line).items():
            self.names_read.add(name)
            if name != self._step_time:
                self._judged.update(f"{name} {values}".encode())
            else:
                self.times += [value for value in values if math.isfinite(value) and value > 0]
            for term in self.terms:
                if term.name != name:
                    continue
                if term.text not in self.hits and any(_bad(term, v) for v in values):
                    self.hits[term.text] = self.line_number
                if term.kind == "number" and any(map(math.isnan, values)):
                    self._no_numbers.setdefault(term.text, self.line_number)

    def _follow_traceback(self, line: str) -> None:
        if line.startswith(TRACEBACK):
            self._in_frames = not self._last_line.startswith(HARMLESS)
        elif self._in_frames and not line[0].isspace():
            self._in_frames, self._raised, self._raised_at = False, line[:LONGEST], self.line_number
        self._last_line = line[:LONGEST]

    def _numbers(self, line: str) -> dict[str, list[float]]:
        lowered = line.lower()  # most lines do not have the name, and this is the quickest way to know
        fields = _fields(line) if line.lstrip().startswith("{") else None
        numbers = {}
        for name, pattern in self._patterns.items():
            in_text = name.lower() in lowered
            numbers[name] = _at_path(fields, name) or (_values(pattern, line) if in_text else [])
        return {name: values for name, values in numbers.items() if values}

    @property
    def step_time(self) -> float | None:
        """The median of the times in the output."""
        return statistics.median(self.times) if self.times else None

    @property
    def judged(self) -> str:
        """A hash of all numbers that were judged, "" where there were none: equal trials are one trial."""
        return self._judged.hexdigest()[:16] if self.names_read - {self._step_time} else ""

    def verdict(self, exit_code: int, *, timed_out: bool = False) -> tuple[str, str]:
        """-> (pass, fail or error; the reason). What was to be judged and never seen is an error, no pass."""
        not_its_own = "" if timed_out else self._not_its_own(exit_code)
        for term in self.terms:
            if term.kind == "timeout" and timed_out:
                return "fail", "timeout"
            if term.kind != "exit" or timed_out or not COMPARE[term.op](exit_code, term.value):
                continue
            names_it = not COMPARE[term.op](1, term.value)  # `exit!=0` is any failure
            if names_it or not not_its_own:
                return "fail", code_text(exit_code)
        if self.hits:
            text = min(self.hits, key=lambda text: self.hits[text])
            return "fail", f"{text}: line {self.hits[text]}"
        if not_its_own:
            return "error", not_its_own
        if timed_out:
            return "error", "ran past --trial-timeout"
        if exit_code != 0:
            named = any(term.kind == "exit" for term in self.terms)
            ending = " is not the failure that --fail names" if named else ", which --fail does not name"
            return "error", f"{code_text(exit_code)}{ending}"
        for text, line in self._no_numbers.items():
            name = next(term.name for term in self.terms if term.text == text)
            problem = f"{name} is NaN in line {line}, which {text} does not judge: add `or nan in {name}`"
            return "error", problem
        if self._cut_line and (self._patterns or self._expressions):
            part = "number" if self._patterns else "match"
            return "error", f"line {self._cut_line} is too long: a {part} in it may have been cut in two"
        unseen = [
            t.name for t in self.terms if t.kind in ("nan", "inf", "number") and t.name not in self.names_read
        ]
        if unseen:
            return "error", f"the output never says {unseen[0]}: nothing to judge"
        ends_in_error = self._raised and self.line_number - self._raised_at <= AFTER
        return "pass", f"{HIDDEN}: {printable(self._raised)}" if ends_in_error else ""

    def _not_its_own(self, exit_code: int) -> str:
        """Why this end is not the program's own failure: it never began, or something killed it."""
        line = printable(self._last_line.strip())
        if exit_code in NOT_THERE:
            shown = f": {line}" if line else ""
            return f"{CANNOT_RUN}: exit code {exit_code} ({NOT_THERE[exit_code]}){shown}"
        if exit_code and self.line_number <= FEW_LINES and _NEVER_BEGAN.fullmatch(line):
            return f"{CANNOT_RUN}: {line}"
        if exit_code == KILLED:
            return (
                f"{code_text(exit_code)}: killed from outside, or for memory; `exit==137` in --fail counts it"
            )
        return ""


def shell_code(code: int) -> int:
    """An exit code as a shell shows it: 128 + N for signal N, which Python counts as -N."""
    return 128 - code if code < 0 else code


def code_text(code: int) -> str:
    """`exit code 139 (SIGSEGV)`."""
    name = next((member.name for member in signal.Signals if member == code - 128), "") if code > 128 else ""
    return f"exit code {code}{f' ({name})' if name else ''}"


def _named(name: str) -> re.Pattern[str]:
    """`loss: 1`, `"loss": 1`, `loss -> 1`, `loss: [1, 2]`; or `loss nan`, which needs no sign between."""
    signed = rf"[\"']?\s*(?:[:=]|[-=]>)\s*[\"']?{_PRINTED_IN}[\"']?(\[[^\]]*|{NUMBER}(?!\w|\.\w))"
    spoken = rf"\s+(?:is\s+)?({WORD})(?!\w|\.\w)"
    return re.compile(rf"(?<![\w.]){re.escape(name)}(?:{signed}|{spoken})", re.IGNORECASE)


def _values(pattern: re.Pattern[str], line: str) -> list[float]:
    texts = [hit[1] or hit[2] for hit in pattern.finditer(line)]
    items = [item for text in texts for item in (_ITEM.findall(text) if text[0] == "[" else [text])]
    return [float(item.replace(",", "")) for item in items]


def _bad(term: Term, value: float) -> bool:
    if term.kind == "nan":
        return math.isnan(value)
    return math.isinf(value) if term.kind == "inf" else COMPARE[term.op](value, term.value)


def _fields(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _at_path(fields: object, path: str) -> list[float]:
    """The numbers at `a.b`, which may also be one key."""
    if isinstance(fields, dict) and path in fields:
        return _of_json(fields[path])
    *parents, name = path.split(".")
    for part in parents:
        fields = fields.get(part) if isinstance(fields, dict) else None
    return _of_json(fields[name]) if isinstance(fields, dict) and name in fields else []


def _of_json(value: object) -> list[float]:
    """JSON has no NaN, and writers make it null."""
    if value is None:
        return [math.nan]
    if isinstance(value, list):
        return [number for part in value for number in _of_json(part)]
    if isinstance(value, str) and re.fullmatch(NUMBER, value.strip(), re.IGNORECASE):
        return [float(value.strip().replace(",", ""))]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return []
    try:
        return [float(value)]
    except OverflowError:
        return [math.inf]
