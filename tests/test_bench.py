"""The table of `make bench`: what is measured again replaces its own lines, and what is missing is a line."""

from __future__ import annotations

import re

import pytest

from bench import __main__ as bench
from bench.measure import cost
from bench.table import COLUMNS, NO_GPU, Row, at_least, at_most, line_of, measured, merged, table_of, taken
from tests.conftest import ROOT

HELPERS = {"__init__", "__main__", "measure", "peers", "table", "traces"}


@pytest.fixture(autouse=True)
def no_rows():
    taken()
    yield
    taken()


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "docs" / "speed.md"
    path.parent.mkdir()
    path.write_text("# Speed\n\nWords.\n")
    monkeypatch.setattr(bench, "PAGE", path)
    monkeypatch.setattr(bench, "when_and_where", lambda: "today")
    monkeypatch.setattr(bench, "first_line", lambda name: f"About {name}")
    return path


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_a_table_has_a_line_per_figure_and_no_empty_column():
    row = Row("a | b", "56 MB", "1.00 CPU s", 99.6, 0.5, 0.009, "peer 2 CPU s", 2.0, *at_least(2.0, 3))
    measured_on, _, header, _, line = table_of([row], "today").splitlines()
    assert measured_on == "Measured today:" and cells_of(header) == list(COLUMNS)
    assert cells_of(line)[:6] == ["a \\| b", "56 MB", "1.00 CPU s", "0.50", "9.00", "100"]
    assert cells_of(line)[6:] == ["peer 2 CPU s", "2.00x", "≥ 3x: **missed**"]
    _, _, header, _, *lines = table_of([Row("a", cost="1 s"), Row("b", "2 MB", "2 s")], "today").splitlines()
    assert cells_of(header) == ["what", "size", "cost"] and cells_of(lines[0]) == ["a", "", "1 s"]


def test_what_was_not_measured_says_why_and_an_absent_peer_too():
    assert Row("a", absent="needs a GPU").cells()[2] == "not measured: needs a GPU"
    alone = Row("a", cost="1 s", absent="no peer: X names none").cells()
    assert alone[2] == "1 s" and alone[5:7] == ["", "no peer: X names none"]


def test_a_limit_is_met_at_its_own_value():
    assert at_least(14.0, 14) == ("≥ 14x", True) and at_least(13.99, 14)[1] is False
    assert at_most(0.6, 0.6, "s") == ("≤ 0.6 s", True) and at_most(1.11, 1.1, "x") == ("≤ 1.1x", False)


def test_start_and_slope_are_those_of_the_line():
    a, b = line_of({0.0: 0.5, 50.0: 1.0, 200.0: 2.5})
    assert a == pytest.approx(0.5) and b == pytest.approx(0.01)


def table(text, machine="2 x AMD"):
    return table_of([Row(text, cost="1 s")], f"2026-01-01, abc with edits, load 0.5, {machine}")


def test_one_bench_replaces_its_table_and_leaves_the_others_in_order():
    both = merged(merged("# Speed\n\nWords.\n", {"b": table("old")}, "abc"), {"a": table("x")}, "abc")
    again = merged(both, {"b": table("new")}, "abc")
    sections = (f"## `python -m bench {name}`\n\n{table(text)}" for name, text in (("a", "x"), ("b", "new")))
    assert again == "\n".join(["# Speed\n\nWords.\n", *sections])
    assert merged(again, {}, "abc") == again


def test_figures_of_a_gpu_and_of_a_cpu_stand_side_by_side():
    def measured_again(text, table):
        return merged(text, {"a": table}, "a")

    cpu, gpu, absent = table("c"), table("g", "16 x Intel + H200"), table(NO_GPU)
    both = measured_again(measured_again("Words.", cpu), gpu)
    assert both.index(gpu) < both.index(cpu)
    newer = measured_again(both, table("new", "4 x Intel"))
    assert newer.index("| new |") < newer.index(gpu) and cpu not in newer
    assert absent in measured_again("Words.", absent)
    assert measured_again(measured_again("Words.", absent), gpu) == measured_again("Words.", gpu)
    assert measured_again(measured_again("Words.", gpu), absent) == measured_again("Words.", gpu)


def test_what_waits_for_a_gpu_hides_nothing_that_was_measured_beside_it():
    when = "2026-01-01, abc, load 0.5, 2 x AMD"
    mixed = table_of([Row("on the CPU", cost="1 s"), Row("on a GPU", absent="needs a GPU")], when)
    alone = merged("Words.", {"a": mixed}, "a")
    assert "| on the CPU |" in alone and NO_GPU in alone
    for both in (
        merged(alone, {"a": table("g", "16 x Intel + H200")}, "a"),
        merged(merged("Words.", {"a": table("g", "16 x Intel + H200")}, "a"), {"a": mixed}, "a"),
    ):
        assert "| on the CPU |" in both and "| g |" in both and NO_GPU not in both


def test_a_bench_that_breaks_is_a_line_and_the_exit_code_knows(page, monkeypatch, capsys):
    class Module:
        __doc__ = "About it."

        @staticmethod
        def main():
            measured(Row("good", cost="1 s"))
            raise ValueError("broken\nand more")

    monkeypatch.setattr(bench.importlib, "import_module", lambda name: Module)
    assert bench.main(["help"]) == 1
    lines = page.read_text().splitlines()[-2:]
    assert "| good |" in lines[0] and "| About help | not measured: ValueError: broken |" in lines[1]


def test_a_missed_bar_is_no_error_and_a_word_of_exit_is(page, monkeypatch, capsys):
    codes = iter([1, "no such thing"])

    class Module:
        __doc__ = "About it."

        @staticmethod
        def main():
            raise SystemExit(next(codes))

    monkeypatch.setattr(bench.importlib, "import_module", lambda name: Module)
    assert bench.main(["help"]) == 0 and bench.main(["help"]) == 1
    assert "not measured: no such thing" in page.read_text()


def test_a_bench_for_a_gpu_says_that_there_is_none(page, monkeypatch, capsys):
    monkeypatch.setattr(bench, "has_gpu", lambda: False)
    assert bench.main(["trials_gpu"]) == 0
    assert "| About trials_gpu | not measured: needs a GPU |" in page.read_text()


def test_every_bench_is_in_the_table_and_a_name_that_is_none_is_refused():
    files = {path.stem for path in (ROOT / "bench").glob("*.py")} - HELPERS
    assert files == set(bench.BENCHES)
    with pytest.raises(SystemExit, match="there is no bench 'hlep'"):
        bench.main(["hlep"])


def test_the_docs_name_only_benches_that_are_there():
    named = {
        (path.name, name)
        for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
        for names in re.findall(r"python -m bench((?: [a-z_]+)+)`|python -m bench\.(\w+)", path.read_text())
        for name in f"{names[0]} {names[1]}".split()
    }
    assert named and {name for _, name in named} <= set(bench.BENCHES)


def test_the_page_holds_lines_of_benches_that_are_there():
    text = (ROOT / "docs" / "speed.md").read_text()
    assert set(re.findall(r"^## `python -m bench (\w+)`$", text, re.M)) <= set(bench.BENCHES)
    assert merged(text, {}, bench.BENCHES) == text


def test_the_peak_of_a_program_is_its_own_and_not_that_of_the_bench():
    large = bytearray(b"1") * (200 << 20)
    assert cost("pass").peak_mb < 60 < len(large) / 2**20
    assert cost("import sys; large = bytearray(b'1') * (100 << 20); sys.exit(1)", codes=(0, 1)).peak_mb > 100


def test_a_program_that_fails_ends_the_bench_with_its_code():
    with pytest.raises(SystemExit, match="failed with 3"):
        cost("import sys; sys.exit(3)")
