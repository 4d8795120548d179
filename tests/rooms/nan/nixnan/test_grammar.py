"""Every line format of every build."""

from __future__ import annotations

import pytest

from lab.rooms.nan.nixnan.grammar import FOREIGN, TORN, Event, Other, read_line
from tests.rooms.nan.nixnan import nixgen

ERRORS = {
    "a plain one": (nixgen.error(), Event(("NaN",), 0, "FADD R2, -R7, R2", "void softmax", None, "f32")),
    "the oldest, without operand": (
        nixgen.error(operand=None, place="line 0", type="f64"),
        Event(("NaN",), None, "FADD R2, -R7, R2", "void softmax", None, "f64"),
    ),
    "a source line": (
        nixgen.error(place="/a b/c.py:17"),
        Event(("NaN",), 0, "FADD R2, -R7, R2", "void softmax", "/a b/c.py:17", "f32"),
    ),
    "a name cut to nothing": (
        nixgen.error(function="void "),
        Event(("NaN",), 0, "FADD R2, -R7, R2", "void ", None, "f32"),
    ),
    "a predicate and a constant": (
        nixgen.error("infinity,div0", "@!UP0 MUFU.RCP R2, c[0x0] [0x170]", operand=1),
        Event(("infinity", "div0"), 1, "@!UP0 MUFU.RCP R2, c[0x0] [0x170]", "void softmax", None, "f32"),
    ),
    "an immediate and two blanks": (
        nixgen.error(sass="DADD R14, |R10|, +INF ", type="f64"),
        Event(("NaN",), 0, "DADD R14, |R10|, +INF", "void softmax", None, "f64"),
    ),
    "a name with brackets and a hash": (
        nixgen.error(function="f[x] {lambda()#1}"),
        Event(("NaN",), 0, "FADD R2, -R7, R2", "f[x] {lambda()#1}", None, "f32"),
    ),
}


@pytest.mark.parametrize("line, event", ERRORS.values(), ids=ERRORS)
def test_an_error_line_is_read_as(line, event):
    assert read_line(line.encode()) == event


OTHERS = [
    ("Instrumenting all kernels", "lists"),
    ("instrumenting all kernels", "lists"),
    ("Instrumenting all functions", "lists"),
    ("Only instrumenting kernels specified in kernel_whitelist.txt", "lists"),
    ("Could not open kernel_blacklist.txt!", "lists"),
    ("running kernel [void f<a[3], {lambda()#1}>(int)] ...", "running"),
    ("kernel [void f] ...", "logged"),
    ("Kernel [f(int)] execution time: 12 microseconds", "timed"),
    ("Function [f] of kernel [g]", "function of"),
    ("Maximum number of errors (10) reached. Stopping.", "stopped"),
    ("Terminating early: timeout", "stopped"),
    ("#nixnan: warning: NaN immediate found in operand 1 of MUFU.RSQ R3, -QNAN  ;", "immediate"),
    ("warning: Unknown immediate found in operand 1 of MUFU.RSQ R3, -QNAN  ;", "immediate"),
    ("f16 bin has reached threshold: kernel=void  range=[13,15] count=256", "bin"),
    (
        "f32 bin has reached threshold: function=void f(int) range=[inf,inf] count=3 "
        "instruction=FADD R0, R0, R7 ; in function=f at /a/b.cu:3",
        "bin",
    ),
    ("--- FP exponent ranges --- ", "exponent head"),
    ("Exponent range for bf16: [zero, inf]", "exponents"),
    ("Exponent range for f16: [-14, 15]", "exponents"),
    ("--- BF16 Memory  Operations ---", "section"),
    ("NaN:\t\t\t 3 (0 repeats)", "count"),
    ("Division by 0:          8 (16 repeats)", "count"),
    ("Infinity: 3", "count"),
    ("------------ nixnan Report -----------", "report"),
    ("Finalizing GPU context...", "context"),
    ("-" * 82, "rule"),
    ("Created template bin specification file at /tmp/x.json", "template"),
    ("Caught SIGSEGV; try LINE_INFO=0", "crashed"),
    ("Inspecting function f at address 0x10", "verbose"),
    ("Found memory instruction STG.E [R2.64], R3 ;", "verbose"),
    ("Histogram instrumenting: HADD2 R4, R4, R2 ;", "verbose"),
]


@pytest.mark.parametrize("text, what", OTHERS, ids=[text[:40] for text, _ in OTHERS])
def test_other_lines_of_every_build_are_understood(text, what):
    line = read_line(f"#nixnan: {text}".encode())
    assert isinstance(line, Other) and line.name == what


@pytest.mark.parametrize(
    "text",
    [
        "#nixnan: error [NaN] detected in opera",
        "f32#nixnan: error [NaN] detected",
        "#nixnan: something new",
        nixgen.error() + "#nixnan: f16 bin has reached threshold: kernel=f range=[13,15] count=2",
        nixgen.error(function="f #nixnan: f16 bin g"),
        nixgen.error("NaN,what"),
        nixgen.error(type="f8"),
    ],
)
def test_a_torn_line_is_told_and_not_guessed(text):
    assert read_line(text.encode()) is TORN


@pytest.mark.parametrize(
    "text", ["", "loss=nan", "## NOTE: #nixnan: #nixnan: twice", "error [NaN] detected in operand 0"]
)
def test_the_programs_own_output_is_foreign(text):
    assert read_line(text.encode()) is FOREIGN


@pytest.mark.parametrize(
    "before, after", [("", "\r"), ("\0\0", ""), ("\x1b[1m", "\x1b[0m"), (" 50%|## |\r", ""), ("", "  ")]
)
def test_what_terminals_and_holes_leave_in_a_line_is_taken_out(before, after):
    assert read_line(f"{before}{nixgen.error()}{after}".encode()) == read_line(nixgen.error().encode())
