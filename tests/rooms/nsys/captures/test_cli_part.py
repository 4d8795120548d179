"""The part of a recording that `lab nsys` is about."""

from __future__ import annotations

import csv
import io
import json

import pytest

from lab.recordings.projection import project
from lab.rooms.nsys.captures.summary import summarise
from lab.rooms.nsys.captures.summary_text import summaries_text
from tests.recordings.projection.made import call as api_call
from tests.recordings.projection.made import kernel, made, named
from tests.recordings.sqlgen import Export, training_step
from tests.rooms.nsys.captures.test_cli import call, exit_code


def found_of(*words):
    done = call("summary", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def kernels_of(found):
    return {"/".join(one["path"]): one["kernels"] for one in found["phases"]}


def test_summary_of_a_step_a_range_and_a_window(trained):
    whole = found_of(trained)
    one = found_of(trained, "--step", "1")
    assert one["steps"] == ["step_1"] and one["part"] == "step 1"
    assert kernels_of(one) == kernels_of(whole)
    both = found_of(trained, "--range", "backward")
    assert both["steps"] == ["step_0", "step_1"] and kernels_of(both) == {"": [5], "backward": [5]}
    assert both["left_out"][0] == 5, "warm-up's backward"
    # Times count from the first event, at 10 us.
    window = found_of(trained, "--from", "10us", "--to", "19.1us")
    assert window["steps"] == ["step_0"] and kernels_of(window) == kernels_of(whole)
    assert window["phases"][0]["kernel_ms"] == pytest.approx(660e-6)
    cut = found_of(trained, "--from", "10us", "--to", "17us")
    assert cut["steps"] == [] and cut["phases"][0]["kernels"] == [7]
    assert (
        "from 0.01 ms to 0.017 ms, as a whole"
        in call("summary", trained, "--to", "17us", "--from", "10us").stdout
    )


def test_stats_of_a_step_count_its_calls_ranges_and_kernels(trained):
    def table(report, *words):
        return list(csv.DictReader(io.StringIO(call("stats", trained, "-r", report, *words).stdout)))

    (api,) = table("cuda_api_sum", "--step", "0", "--attribution", "full")
    assert api["Num Calls"] == "8"
    (api,) = table("cuda_api_sum", "--step", "0")
    assert api["Num Calls"] == "4", "by the rule of nsys the worker's calls are in no step"
    kernels = {row["Name"]: row["Instances"] for row in table("cuda_gpu_kern_sum", "--range", "forward")}
    assert kernels == {"gemm_forward": "6"}
    ranges = {row["Range"]: row["Instances"] for row in table("nvtx_pushpop_sum", "--step", "0-1")}
    assert ranges == {
        f":{name}": n
        for name, n in (
            *(("step_0", "1"), ("step_1", "1"), ("forward", "2"), ("backward", "2"), ("optimizer_step", "2")),
        )
    }
    trace = table("cuda_gpu_trace", "--range", "optimizer_step", "--step", "1")
    assert [row["Name"] for row in trace] == ["adam"]


def test_what_is_asked_for_in_vain_has_its_exit_code(trained):
    assert exit_code("summary", trained, "--range", "nothing") == 4
    assert exit_code("summary", trained, "--step", "99") == 4
    assert exit_code("summary", trained, "--from", "1h") == 2
    assert exit_code("summary", trained, "--process", "7") == 4
    assert exit_code("summary", trained, "--from", "2ms", "--to", "1ms") == 2
    assert exit_code("stats", trained, "--step", "x") == 2
    assert exit_code("stats", trained, "--range", "forward") == 0


def test_the_summary_offers_what_ran_under_a_range_of_another_thread(tmp_path):
    export = Export()
    export.range("bwd", (1, 1), 0, 900)
    for i in range(5):
        export.launch("k", (1, 2), (10 + i, 11 + i), (100 + 10 * i, 105 + 10 * i))
    path = export.write(tmp_path / "a.sqlite")
    assert "note: 5 kernels ran under `bwd`: --phase bwd (0.000 ms" in call("summary", path).stdout
    assert found_of(path)["offers"][0]["kernels"] == 5
    claimed = found_of(path, "--phase", "bwd")
    assert claimed["offers"] == [] and kernels_of(claimed)["bwd"] == [5]
    export = training_step(Export())
    found = found_of(export.write(tmp_path / "b.sqlite"), "--phase", "other")
    assert found["rules"]["cross"][0] == 12, "own names are added to the list"


def test_a_capture_without_steps_is_no_step_and_leaves_its_warm_up_out(tmp_path):
    export = Export()
    export.range("warmup", (1, 1), 0, 100)
    export.launch("w", (1, 1), (10, 20), (30, 40))
    export.range("serve", (1, 1), 200, 300)
    export.launch("k", (1, 1), (210, 220), (230, 240))
    text = call("summary", export.write(tmp_path / "a.sqlite")).stdout
    assert "per step" not in text and "in all, ms" in text
    assert "1 operation of warm-up left out" in text
    assert [line.split()[-6] for line in text.splitlines() if line.startswith("the whole capture")] == ["1"]


@pytest.mark.parametrize("collector", ["rocpd", "rpd", "rocprofv3"])
def test_roctx_ranges_of_amd_captures_are_steps_and_phases(collector):
    from dataclasses import replace
    from pathlib import Path

    ranges = [named("step_0", 0, 1000), named("forward", 10, 300), named("backward", 400, 900)]
    calls = [api_call(1, 20, 30), api_call(2, 500, 510, tid=2)]
    capture = made(ranges, calls, [kernel(1, 40, 140), kernel(2, 600, 900)])
    capture = replace(capture, collector=collector, source=Path("x.db"))
    found = summarise(project(capture))
    by_path = {one.path: one for one in found.phases}
    assert found.steps == ("step_0",)
    assert by_path["forward",].kernel_ms == pytest.approx(100e-6)
    assert by_path["backward",].kernel_ms == pytest.approx(300e-6), "launched by autograd's thread"
    assert "recorded by" in summaries_text([found])


def test_names_cannot_move_the_terminal_or_run_as_formulas(tmp_path):
    export = Export()
    export.range("\x1b[2Jevil\nline", (1, 1), 0, 900)
    export.launch("=cmd|'/c calc'!A0\x1b]0;x\x07", (1, 1), (10, 11), (100, 105))
    path = export.write(tmp_path / "a.sqlite")
    text = call("summary", path).stdout
    assert "\x1b" not in text and "\x07" not in text and "evil\\nline" in text
    rows = list(csv.reader(io.StringIO(call("stats", path).stdout)))
    assert rows[1][-1].startswith("'=cmd")
