"""The page: two units on one axis, a waterfall that ends at B, tables to filter, findings with their rows."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab import report
from lab.compare.cli import diff as command
from lab.compare.diff.comparison import compare_sides
from lab.compare.diff.timelines import FASTER, LONE, OTHER, SAME, SLOWER, timelines
from lab.report import PALETTE
from tests.compare.diff.test_comparison import BASE
from tests.compare.diff.test_groups import with_modules
from tests.compare.made import layer, trace


def changed(tmp_path):
    """An addition became two other ops, a product 50 % slower, an activation another kernel."""

    def step():
        mm, add, mul, relu = layer()
        return [
            (*mm[:3], mm[3] * 1.5),
            ("aten::exp", add[1], "exp", 4.0),
            ("aten::sum", add[1], "sum", 5.0),
            mul,
            (*relu[:2], "relu_fast", 3.0),
        ]

    return trace(tmp_path / "a.json", [layer()] * 4), trace(tmp_path / "b.json", [step()] * 4)


def steps_of(a, b):
    return timelines(*compare_sides(a, b).shown.placed)


def test_each_operation_says_what_became_of_it(tmp_path):
    frame = steps_of(*changed(tmp_path)).frame
    of_a, of_b = ({row.op: row.change for row in part.itertuples()} for _, part in frame.groupby("rank"))
    assert of_a == {"aten::mm": SLOWER, "aten::add": LONE, "aten::mul": SAME, "aten::relu": OTHER}
    assert of_b["aten::exp"] == of_b["aten::sum"] == LONE and of_b["aten::relu"] == OTHER


def test_the_timeline_knows_a_colour_for_all_that_may_become_of_an_operation():
    script = (Path(report.__file__).parent / "timeline.js").read_text()
    (colours,) = re.findall(r"const CHANGES = \{ (.*) \};", script)
    roles = dict(re.findall(r'(\w+): "(\w+)"', colours))
    assert {one.split()[0] for one in (SAME, SLOWER, FASTER, OTHER, LONE)} == set(roles)
    assert (roles["slower"], roles["faster"]) == ("fail", "ok") and set(roles.values()) <= set(PALETTE)


def test_segments_begin_at_the_same_place_and_keep_their_order(tmp_path):
    frame = steps_of(*changed(tmp_path)).frame
    place = {(row.rank, row.op): row.aligned_us for row in frame.itertuples()}
    assert place[0, "aten::mm"] == place[1, "aten::mm"] == 0
    assert place[0, "aten::mul"] == place[1, "aten::mul"]
    for _, side in frame.groupby("rank"):
        starts = side["aligned_us"].to_numpy()
        assert (np.diff(starts) > 0).all()
        assert (starts[1:] >= starts[:-1] + side["dur_us"].to_numpy()[:-1] - 1e-9).all()


def test_equal_units_are_not_moved(tmp_path):
    a = trace(tmp_path / "a.json", BASE)
    frame = steps_of(a, a).frame
    assert (frame["aligned_us"] == frame["start_us"]).all() and set(frame["change"]) == {SAME}


def test_the_page_holds_both_timelines_filters_and_every_table_as_a_file(tmp_path):
    a, b = with_modules(tmp_path / "a.json"), with_modules(tmp_path / "b.json", slow_layer=1)
    done = CliRunner().invoke(command, [str(a), str(b), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "diff.html").read_text()
    assert page.count("data-timeline=") == 2 and "A GPU 0 stream 7" in page and "B GPU 0 stream 7" in page
    assert page.count('class="filter"') >= 2 and "<svg" in page
    for name in (
        "rows",
        "waterfall",
        "api",
        "findings",
        "by_phase",
        "by_module",
        "by_op",
        "by_kernel",
        "steps",
    ):
        assert f"tables/{name}.csv" in page and (tmp_path / "out" / "tables" / f"{name}.csv").exists()
    with (tmp_path / "out" / "tables" / "waterfall.csv").open() as file:
        changes = [float(row["change_us"]) for row in csv.DictReader(file)]
    assert sum(changes[:-1]) == pytest.approx(changes[-1], abs=0.01)


def test_findings_name_rows_that_are_in_the_recordings(tmp_path):
    a, b = changed(tmp_path)
    done = CliRunner().invoke(command, [str(a), str(b), "--json"])
    whole = json.loads(done.stdout)
    assert [(one["side"], one["path"]) for one in whole["files"]] == [("A", str(a)), ("B", str(b))]
    assert all(len(one["sha256"]) == 64 for one in whole["files"])
    kernels = {
        side: {
            (one["args"]["correlation"], one["name"], round(one["dur"] * 1000))
            for one in json.loads(path.read_text())["traceEvents"]
            if one["cat"] == "kernel"
        }
        for side, path in (("A", a), ("B", b))
    }
    timed = [one for one in whole["findings"] if one["rows"]]
    assert len(timed) == 3
    for finding in timed:
        assert finding["evidence"], finding["text"]
        for row in finding["evidence"]:
            assert (row["correlation"], row["event"], row["dur_ns"]) in kernels[row["side"]]
        assert sum(whole["rows"][at]["ns"] for at in finding["rows"]) == pytest.approx(finding["ns"])


def test_hostile_names_stay_text_on_the_page_and_in_the_tables(tmp_path):
    steps = [
        [
            ("aten::mm", [[4, 4]], "<img src=x onerror=alert(1)>", 5.0),
            ("=cmd|' /C calc'!A0", [[4, 4]], "k", 5.0),
        ]
    ]
    a = trace(tmp_path / "a.json", steps * 2)
    b = trace(tmp_path / "b.json", [[*steps[0], steps[0][0]]] * 2)
    done = CliRunner().invoke(command, [str(a), str(b), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "<img src=x" not in (tmp_path / "out" / "diff.html").read_text()
    rows = (tmp_path / "out" / "tables" / "by_op.csv").read_text()
    assert "'=cmd" in rows
