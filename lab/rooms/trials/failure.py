"""What a failure is: terms joined by `or`, judged on the exit code and the output, line by line.

exit!=0          the exit code (also == < > <= >=)
nan in loss      the output names loss as NaN: `loss: nan`, `loss=-nan`, `loss nan`, `{"loss": NaN}` or null
                 (JSON has no NaN), `NaN loss`, `1.#QNAN`; inf in loss alike
loss > 3         the number, at any place of the output
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
import threading
from collections.abc import Callable

import msgspec

from lab.errors import UsageError
from lab.rooms.trials.no_start import Signs

CANNOT_RUN = "cannot run"  # how the reason begins where the command, or what it starts, is not there
NAME = r"[A-Za-z_][\w./-]*"
WORD = r"[+-]?(?:\d\.#(?:qnan|snan|ind|inf)\d*|nan|inf(?:inity)?)"  # 1.#IND is how Microsoft's C writes it
DIGITS = r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
NUMBER = rf"(?:{WORD}|{DIGITS})"
_ITEM = rf"(?:{WORD}|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
_BETWEEN = r"[\[\],\s\"']+"
LIST = rf"\[(?:{_BETWEEN})?{_ITEM}(?:{_BETWEEN}{_ITEM})*"  # each of its numbers is judged
_SIGN = r"[\"']?\s*(?:\([^()]{0,80}\)\s*)?(?:[:=]|[-=]>|→)"  # `loss: `, `"loss": `, `loss (mean) -> `
# Spaces are read by one part of a pattern only: two that may share them try every share.
# What a number is printed in: `tensor(0.5)`, `np.float32(3)`; `CrossEntropyLoss(0.1)` is no loss of 0.1.
_HELD = (
    r"(?:\s*(?:\w{1,20}\.){0,3}(?:\w{0,12}tensor|d?array|b?float\d{0,3}|double|half|decimal|parameter)\()?"
)
VALUE = rf"{_SIGN}(?:{_HELD}[\"'\s]*({LIST}|{NUMBER})|\s*[\w.]{{1,40}}\([\"'\s]*({WORD}))"
DENIED = r"(?<!\bno )(?<!\bnot )(?<!\bwithout )(?<!\bany )(?<!\bif )(?<!\bfor )"  # `no nan in loss`
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "!=": operator.ne,
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
LIMIT_S = 1.0  # of processor time that an expression may take on a line
UNLIKE = ("", "a", "Z9", "~ -", "\t_.")  # no expression for one kind of line matches all of them
_OP = r"(!=|==|<=|>=|<|>)"


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
        if all(re.search(text[1:-1], line) for line in UNLIKE):
            raise UsageError(
                f"{text} matches every line: each trial that prints anything would fail",
                location="--fail",
                fix="name what only a failing trial prints, or /./ for any output",
            )
        return Term("regex", text)
    if hit := re.fullmatch(rf"(nan|inf) in ({NAME})", text):
        return Term(hit[1], text, hit[2])
    if hit := re.fullmatch(rf"({NAME}?)\s*{_OP}\s*([+-]?[\d.]+(?:e[+-]?\d+)?)", text):
        name, op, number = hit.groups()
        try:
            value = float(number)
        except ValueError:  # such as 1.2.3
            value = math.nan
        if name == "exit" and math.isfinite(value):
            return Term("exit", text, name, op, float(shell_code(int(value))) if value < 0 else value)
        if math.isfinite(value):
            return Term("number", text, name, op, value)
    raise UsageError(
        f"{text!r} does not say what a failure is",
        location="--fail",
        fix="terms joined by `or`: exit!=0, nan in loss, inf in loss, loss > 3, /REGEX/, timeout",
    )


class TooSlow(Exception):
    """An expression has used up its processor time on a line."""


def _too_slow(*_: object) -> None:
    raise TooSlow


def search(pattern: re.Pattern[str], line: str) -> bool:
    """Whether it matches. Raises TooSlow, which only a process's main thread can be told.

    Some expressions try every way through a line, as `(a+)+$` does; `re` looks for signals while it searches.
    """
    if threading.current_thread() is not threading.main_thread():
        return pattern.search(line) is not None
    previous = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        return pattern.search(line) is not None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


class Reader:
    """Reads a command's output line by line and keeps what the terms ask for, and the step times."""

    def __init__(self, terms: tuple[Term, ...], step_time: str | None = None) -> None:
        self.terms = terms
        self._patterns = {
            name: _named(name) for name in {t.name for t in terms if t.name} | {step_time or ""}
        }
        self._patterns.pop("", None)
        self._patterns.pop("exit", None)
        self._expressions = {t.text: re.compile(t.text[1:-1]) for t in terms if t.kind == "regex"}
        self._not_judged: dict[str, str] = {}  # expression -> why
        self._step_time = step_time
        self.times: list[float] = []
        self.names_read: set[str] = set()
        self.hits: dict[str, int] = {}  # term -> the first line, from 1
        self._no_numbers: dict[str, int] = {}  # comparisons that met NaN, which is neither above nor below
        self._judged = hashlib.sha256()
        self.line_number = 0  # lines so far
        self._signs = Signs()

    def line(self, line: str) -> None:
        self.line_number += 1
        if "\x1b" in line:
            line = COLOURS.sub("", line)
        if line and not line.isspace():
            self._signs.line(line)
        self._match(line)
        for name, values in self._numbers(line).items():
            self.names_read.add(name)
            if name != self._step_time:
                self._judged.update(f"{name} {values}".encode())
            if name == self._step_time:
                self.times += [value for value in values if math.isfinite(value) and value > 0]
            for term in self.terms:
                if term.name != name:
                    continue
                if term.text not in self.hits and any(_bad(term, v) for v in values):
                    self.hits[term.text] = self.line_number
                if term.kind == "number" and any(map(math.isnan, values)):
                    self._no_numbers.setdefault(term.text, self.line_number)

    def _match(self, line: str) -> None:
        for text, pattern in list(self._expressions.items()):
            try:
                if not search(pattern, line):
                    continue
                self.hits[text] = self.line_number
            except (TooSlow, MemoryError, RecursionError) as error:
                reason = f"takes too long on line {self.line_number}"
                self._not_judged[text] = reason if isinstance(error, TooSlow) else str(error)
            del self._expressions[text]

    def _numbers(self, line: str) -> dict[str, list[float]]:
        lowered = line.lower()  # most lines do not have the name, and this is the quickest way to know
        numbers = {
            name: [_value(v) for v in _texts(p, line)] if name.lower() in lowered else []
            for name, p in self._patterns.items()
        }
        if line.lstrip().startswith("{"):
            fields = _fields(line)
            for name in self._patterns:
                if not numbers[name]:
                    numbers[name] = _at_path(fields, name)
        return {name: values for name, values in numbers.items() if values}

    @property
    def step_time(self) -> float | None:
        """The median of the times in the output."""
        return statistics.median(self.times) if self.times else None

    @property
    def judged(self) -> str:
        """A hash of all numbers that were judged, "" where there were none: equal trials are one trial."""
        return self._judged.hexdigest()[:16] if self.names_read - {self._step_time} else ""

    def verdict(self, exit_code: int, *, timed_out: bool = False, machine: str = "") -> tuple[str, str]:
        """-> (pass, fail or error; the reason). What was to be judged and never seen is an error, no pass.

        machine: why the exit code is the machine's doing; only a term that names this very code counts then.
        """
        no_start = "" if timed_out else self._signs.why(exit_code)
        for term in self.terms:
            if term.kind == "timeout" and timed_out and not machine:
                return "fail", "timeout"
            is_hit = term.kind == "exit" and not timed_out and COMPARE[term.op](exit_code, term.value)
            if is_hit and (not (no_start or machine) or _is_meant(term, exit_code)):
                return "fail", code_text(exit_code)
        if self.hits:
            text = min(self.hits, key=lambda text: self.hits[text])
            return "fail", f"{text}: line {self.hits[text]}"
        if no_start:
            return "error", f"{CANNOT_RUN}: {no_start}"
        if machine:
            return "error", f"{code_text(exit_code)}: {machine}"
        for text, reason in self._not_judged.items():
            return "error", f"undecided: {text} {reason}"
        if timed_out:
            return "error", "ran past --trial-timeout"
        if exit_code != 0 and not any(term.kind == "exit" and term.op != "!=" for term in self.terms):
            return "error", f"{code_text(exit_code)}, which --fail does not name"
        if exit_code != 0:
            return "error", f"{code_text(exit_code)} is not the failure that --fail names"
        for text, line in self._no_numbers.items():
            name = next(term.name for term in self.terms if term.text == text)
            return (
                "error",
                f"{name} is NaN in line {line}, which {text} does not judge: add `or nan in {name}`",
            )
        unseen = [
            t.name for t in self.terms if t.kind in ("nan", "inf", "number") and t.name not in self.names_read
        ]
        if unseen:
            return "error", f"the output never says {unseen[0]}: nothing to judge"
        return "pass", self._signs.hidden


def _is_meant(term: Term, exit_code: int) -> bool:
    """Whether an exit term names this code, and not just every failure, as `exit!=0` does."""
    return COMPARE[term.op](exit_code, term.value) and not COMPARE[term.op](1, term.value)


def shell_code(code: int) -> int:
    """An exit code as a shell shows it: 128 + N for signal N, which Python counts as -N."""
    return 128 - code if code < 0 else code


def code_text(code: int) -> str:
    """`exit code 139 (SIGSEGV)`."""
    name = next((member.name for member in signal.Signals if member == code - 128), "") if code > 128 else ""
    return f"exit code {code}{f' ({name})' if name else ''}"


def _named(name: str) -> re.Pattern[str]:
    """`loss: 1`, or `loss nan` and `nan loss`, which need no sign between them; one group per form."""
    word = rf"(?<![\w.]){re.escape(name)}"
    spoken = rf"(?:\s+(?:is|was|became|went|turned|of|value))?\s+({WORD})"
    value_before = (
        rf"(?<![\w.]){DENIED}({WORD})\s+(?:in\s+)?(?:the\s+)?{re.escape(name)}(?!\s*(?:[\w\"']+\s*)?[:=])"
    )
    return re.compile(rf"(?:{word}(?:{VALUE}|{spoken})|{value_before})(?!\w|\.\w)", re.IGNORECASE)


def _texts(pattern: re.Pattern[str], line: str) -> list[str]:
    texts = [next(filter(None, hit.groups())) for hit in pattern.finditer(line)]
    return [item for text in texts for item in (_items(text) if text[0] == "[" else [text])]


def _items(text: str) -> list[str]:
    return [word for word in re.split(_BETWEEN, text) if word]


def _value(text: str) -> float:
    if "#" in text:
        return math.inf if text.lower().endswith("inf") else math.nan
    return float(text.replace(",", ""))


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
    """The numbers at `a.b`, which may also be one key. JSON has no NaN, and writers make it null."""
    if isinstance(fields, dict) and path in fields:
        return _of_json(fields[path])
    *parents, name = path.split(".")
    for part in parents:
        fields = fields.get(part) if isinstance(fields, dict) else None
    return _of_json(fields[name]) if isinstance(fields, dict) and name in fields else []


def _of_json(value: object) -> list[float]:
    if value is None:
        return [math.nan]
    if isinstance(value, list):
        return [number for part in value for number in _of_json(part)]
    if isinstance(value, str) and re.fullmatch(NUMBER, value.strip(), re.IGNORECASE):
        return [_value(value.strip())]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return []
    try:
        return [float(value)]
    except OverflowError:
        return [math.inf]
