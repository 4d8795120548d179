"""What a failure is: terms joined by `or`, judged on the exit code and the output, line by line.

exit!=0          the exit code (also == < > <= >=)
nan in loss      the output names loss as NaN: `loss: nan`, `loss=nan`, `{"loss": NaN}`; inf in loss
loss > 3         the number, at any place of the output
eval.acc < 0.9   a field of a JSON line
/REGEX/          any line
timeout          the trial ran past --trial-timeout
"""

from __future__ import annotations

import json
import math
import operator
import re
import statistics
from collections.abc import Callable

import msgspec

from lab.errors import UsageError

NAME = r"[A-Za-z_][\w./-]*"
NUMBER = r"[+-]?(?:nan|inf(?:inity)?|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
VALUE = rf"[\"']?\s*[:=]\s*(?:tensor\()?\s*({NUMBER})"
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "!=": operator.ne,
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
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
    return tuple(_term(one.strip()) for one in re.split(r"\s+or\s+", text.strip()))


def _term(text: str) -> Term:
    if text == "timeout":
        return Term("timeout", text)
    if len(text) > 2 and text[0] == text[-1] == "/":
        try:
            re.compile(text[1:-1])
        except re.error as error:
            raise UsageError(f"{text} is not a valid regular expression: {error}", where="--fail") from error
        return Term("regex", text)
    if hit := re.fullmatch(rf"(nan|inf) in ({NAME})", text):
        return Term(hit[1], text, hit[2])
    if hit := re.fullmatch(rf"({NAME}?)\s*{_OP}\s*([+-]?[\d.]+(?:e[+-]?\d+)?)", text):
        name, op, number = hit.groups()
        try:
            return Term("exit" if name == "exit" else "number", text, name, op, float(number))
        except ValueError:
            pass  # such as 1.2.3: told like any other term that is none
    raise UsageError(
        f"{text!r} does not say what a failure is",
        where="--fail",
        fix="terms joined by `or`: exit!=0, nan in loss, inf in loss, loss > 3, /REGEX/, timeout",
    )


class Reader:
    """Reads a command's output line by line and keeps what the terms ask for, and the step times."""

    def __init__(self, terms: tuple[Term, ...], step_time: str | None = None) -> None:
        self.terms = terms
        self._patterns = {
            name: _named(name) for name in {t.name for t in terms if t.name} | {step_time or ""}
        }
        self._patterns.pop("", None)
        self._patterns.pop("exit", None)
        self._regexes = {t.text: re.compile(t.text[1:-1]) for t in terms if t.kind == "regex"}
        self._step_time = step_time
        self.times: list[float] = []
        self.seen: set[str] = set()
        self.hits: dict[str, int] = {}  # term -> the first line, from 1
        self._at = 0

    def line(self, line: str) -> None:
        self._at += 1
        for text, regex in self._regexes.items():
            if text not in self.hits and regex.search(line):
                self.hits[text] = self._at
        for name, values in self._numbers(line).items():
            self.seen.add(name)
            if name == self._step_time:
                self.times += [value for value in values if math.isfinite(value) and value > 0]
            for term in self.terms:
                if term.name == name and term.text not in self.hits and any(_bad(term, v) for v in values):
                    self.hits[term.text] = self._at

    def _numbers(self, line: str) -> dict[str, list[float]]:
        found = {name: [float(v) for v in p.findall(line)] for name, p in self._patterns.items()}
        if line.lstrip().startswith("{"):
            fields = _fields(line)
            for name in self._patterns:
                if not found[name] and (value := _at_path(fields, name)) is not None:
                    found[name] = [value]
        return {name: values for name, values in found.items() if values}

    @property
    def step_time(self) -> float | None:
        """The median of the times in the output."""
        return statistics.median(self.times) if self.times else None

    def verdict(self, exit_code: int, *, timed_out: bool = False) -> tuple[str, str]:
        """-> (pass, fail or error; the reason). What was to be judged and never seen is an error, no pass."""
        for term in self.terms:
            if term.kind == "timeout" and timed_out:
                return "fail", "timeout"
            if term.kind == "exit" and not timed_out and COMPARE[term.op](exit_code, term.value):
                return "fail", f"exit code {exit_code}"
        if self.hits:
            text = min(self.hits, key=lambda one: self.hits[one])
            return "fail", f"{text}: line {self.hits[text]}"
        if timed_out:
            return "error", "ran past --trial-timeout"
        if exit_code != 0 and not any(term.kind == "exit" and term.op != "!=" for term in self.terms):
            return "error", f"exit code {exit_code}, which --fail does not name"
        if exit_code != 0:
            return "error", f"exit code {exit_code} is not the failure that --fail names"
        unseen = [
            t.name for t in self.terms if t.kind in ("nan", "inf", "number") and t.name not in self.seen
        ]
        if unseen:
            return "error", f"the output never says {unseen[0]}: nothing to judge"
        return "pass", ""


def _named(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(name)}{VALUE}(?![\w])", re.IGNORECASE)


def _bad(term: Term, value: float) -> bool:
    if term.kind == "nan":
        return math.isnan(value)
    return math.isinf(value) if term.kind == "inf" else COMPARE[term.op](value, term.value)


def _fields(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _at_path(fields: object, path: str) -> float | None:
    for part in path.split("."):
        fields = fields.get(part) if isinstance(fields, dict) else None
    return float(fields) if isinstance(fields, (int, float)) and not isinstance(fields, bool) else None
