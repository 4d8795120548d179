"""The integrity of a log tells a whole one from a cut, torn, edited or empty one."""

from __future__ import annotations

import gzip

import pytest

from lab.rooms.nan.nixnan.reading.parse import parse
from tests.rooms.nan.nixnan import nixgen
from tests.rooms.nan.nixnan.nixgen import BANNER, END, error, log, report

LINES = (
    error("infinity", operand=1),
    error("NaN,infinity"),
    error("NaN", "STG.E [R2.64], R3", operand=1),
    error("subnormal", "HMMA.16816.F32 R0, R1, R2, R3", type="f16", operand=2),
    error("div0", "MUFU.RCP R1, R2", operand=1),
)
FEWER = {"infinity": 1}  # masks with both infinities, in the report's -infinity alone

CASES = {
    "a whole log": (log(*LINES), "complete", "equal"),
    "no events at all": (log(), "complete", "equal"),
    "masks that held both infinities": (
        [*BANNER, *LINES, END, *report(LINES, extra={("f32", "-infinity"): 2})],
        "complete",
        "the report has 2 of f32 more",
    ),
    "more of -infinity than masks could hold": (
        [*BANNER, *LINES, END, *report(LINES, extra={("f32", "-infinity"): 3})],
        "inconsistent",
        "-infinity",
    ),
    "a killed run": (log(*LINES, end=False), "truncated", "report is missing"),
    "a report that breaks off": (log(*LINES)[:-3], "truncated", "breaks off"),
    "a report without its lines": ([*BANNER, END, *report(LINES)], "inconsistent", "against"),
    "a line twice": ([*log(*LINES)[:6], LINES[0], *log(*LINES)[6:]], "inconsistent", "doubled"),
    "a line gone": ([line for line in log(*LINES) if line != LINES[1]], "inconsistent", "missing"),
    "torn lines": (
        [
            *BANNER,
            LINES[0][:60] + "#nixnan: f16 bin has reached threshold: kernel=f range=[1,2] count=3",
            LINES[0][60:],
        ],
        "torn",
        "line 6",
    ),
    "torn, though a report is there": (
        log(*LINES, "#nixnan: error [NaN] detec" + LINES[2]),
        "torn",
        "ran into",
    ),
    "nothing": ([], "empty", "empty"),
    "only a dash line": (BANNER[:1], "empty", "CUDA_INJECTION64_PATH"),
    "another program's log": (["hello", "world"], "empty", "No line of nixnan's"),
    "a template of bins in place of a run": (
        [*BANNER[:1], "#nixnan: Created template bin specification file at /x.json"],
        "empty",
        "without running",
    ),
    "two processes": ([*log(LINES[0]), *log(LINES[1], LINES[2])], "complete", "equal"),
    "two processes, one killed": (
        [*log(LINES[0]), *log(LINES[1], LINES[2], end=False)],
        "truncated",
        "wrote a report",
    ),
    "two contexts of one process": ([*BANNER, *log(*LINES)], "complete", "equal"),
    "an old build": ([*BANNER, error(operand=None), END, *report([error()], old=True)], "complete", "equal"),
}


@pytest.mark.parametrize("lines, integrity, word", CASES.values(), ids=CASES)
def test_the_verdict_on(tmp_path, lines, integrity, word):
    path = tmp_path / "x.nixnan"
    path.write_text("".join(f"{line}\n" for line in lines))
    found = parse(path)
    assert (found.integrity, word in found.reasons[0]) == (integrity, True), found.reasons


def test_a_last_line_without_its_end_is_a_cut_not_a_tear(tmp_path):
    text = "\n".join(log(*LINES, end=False))
    for size in range(len(text) - len(LINES[-1]) + 10, len(text)):
        (tmp_path / "x").write_text(text[:size])
        found = parse(tmp_path / "x")
        assert found.integrity == "truncated" and found.error_lines == len(LINES) - 1


def test_a_whole_log_lacks_nothing_wherever_it_is_cut(tmp_path):
    """No cut of a log, at any line or byte, passes for a whole one before the last section of its report."""
    text = "\n".join(log(*LINES)) + "\n"
    end = text.rindex("#nixnan: NaN:") + len("#nixnan: NaN: ")
    for size in range(0, end, 13):
        (tmp_path / "x").write_text(text[:size])
        assert parse(tmp_path / "x").integrity in ("truncated", "empty"), text[:size][-80:]


def test_a_compressed_file_of_nothing_but_its_head_is_cut_not_empty(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"hello " * 1000)[:12])
    assert parse(tmp_path / "x.gz").integrity == "truncated"


def test_what_stopped_or_crashed_the_tool_is_said(tmp_path):
    lines = log(LINES[0], "#nixnan: Maximum number of errors (1) reached. Sending SIGINT.")
    found = parse(nixgen.write(tmp_path / "a", lines))
    assert found.stops == ["Maximum number of errors (1) reached. Sending SIGINT."]
    assert found.integrity == "complete" and any("stopped early" in reason for reason in found.reasons)
    found = parse(
        nixgen.write(tmp_path / "b", [*BANNER, "#nixnan: SIGSEGV caught: try again with LINE_INFO=0"])
    )
    assert any("LINE_INFO=0" in reason for reason in found.reasons)


def test_the_differences_name_the_cell_and_both_numbers(tmp_path):
    found = parse(nixgen.write(tmp_path / "a", [*BANNER, LINES[0], END, *report(LINES)]))
    assert {"type": "f32", "memory": True, "kind": "NaN", "lines": 0, "unique": 1} in found.differences


def test_report_numbers_are_kept_apart_by_type_memory_and_kind(tmp_path):
    found = parse(nixgen.write(tmp_path / "a", log(*LINES)))
    assert found.report["f32"]["infinity"] == {"unique": 2, "repeats": 14}
    assert found.report["memory"]["f32"]["NaN"] == {"unique": 1, "repeats": 7}
    assert found.counts["f32"]["NaN"] == 1 and found.counts["memory"]["f32"]["NaN"] == 1
    assert found.report["f16"]["subnormal"]["unique"] == found.counts["f16"]["subnormal"] == 1


def test_a_build_that_did_not_count_repeats_has_none(tmp_path):
    lines = [*BANNER, END, *[line.partition(" (")[0] for line in report(old=True)]]
    assert parse(nixgen.write(tmp_path / "a", lines)).report["f16"]["NaN"] == {"unique": 0, "repeats": None}
