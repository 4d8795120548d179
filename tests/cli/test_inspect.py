"""`lab inspect` as a script calls it."""

from __future__ import annotations

import json

import pytest

from lab.cli.main import main
from tests.recordings.inspect.test_rows import trace


def exit_code(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["inspect", *map(str, arguments)])
    return caught.value.code


def test_json_is_a_list_with_one_object_per_file(tmp_path, capsys):
    trace(tmp_path / "a.json", drop=(5,))
    assert exit_code(tmp_path, "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert {"path", "format", "tool", "verdict", "lacks", "gpu_ops", "gpu_time_ns", "processes"} <= row.keys()
    (lack,) = row["lacks"]
    keys = {"axis", "place", "rule", "process", "n", "of", "share", "text"}
    assert keys <= lack.keys() and lack["share"] == pytest.approx(1 / 12)
    assert row["processes"] == [{"index": 0, "pid": 4321, "rank": 0, "name": None}]


def test_a_hole_exits_1_and_an_edge_only_where_a_complete_recording_is_required(tmp_path, capsys):
    assert exit_code(trace(tmp_path / "a.json", drop=(5,))) == 1
    assert "1 of 12 launches" in capsys.readouterr().err
    path = trace(tmp_path / "a.json", drop=(10, 11))
    assert exit_code(path) == 0
    assert exit_code(path, "--require", "complete") == 1
    assert "2 of 12 launches" in capsys.readouterr().err
    assert exit_code(trace(tmp_path / "b.json"), "--require", "complete") == 0


def test_files_that_no_verdict_is_about_are_not_complete(tmp_path, capsys):
    (tmp_path / "et.json").write_text('{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}')
    assert exit_code(tmp_path) == 0
    assert exit_code(tmp_path, "--require", "complete") == 1
    assert "no file here is a recording" in capsys.readouterr().err
    trace(tmp_path / "a.json")  # beside a recording they are no reason to refuse it
    assert exit_code(tmp_path, "--require", "complete") == 0


def test_unreadable_files_exit_5_after_the_others_are_listed(tmp_path, capsys):
    trace(tmp_path / "a.json")
    (tmp_path / "b_trace.json").write_text('{"traceEvents": [{"ph"')
    assert exit_code(tmp_path) == 5
    said = capsys.readouterr()
    assert "a.json" in said.out and ": complete, torch.profiler, 12 GPU rows" in said.out
    assert "1 of 2 cannot be read" in said.err


def test_nothing_known_is_missing_and_not_all_clear(tmp_path):
    assert exit_code(tmp_path) == 4
    assert exit_code(tmp_path / "nothing") == 4


@pytest.mark.parametrize(
    "command", ["nsys summary", "nsys stats", "kernels unique", "kernels unique --launches"]
)
def test_every_command_writes_first_and_then_says_that_a_third_is_missing(
    tmp_path, command, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = trace(tmp_path / "a.json", drop=(2, 5, 8, 10))
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), str(path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert caught.value.code == 1
    assert "4 of 12 launches (33.3%) without a GPU row" in said.err
    assert list((tmp_path / "out").rglob("*.csv"))


def test_idle_time_is_at_most_where_rows_are_lost(tmp_path, capsys):
    main_code = []
    for name, drop in (("whole", ()), ("lossy", (5, 6))):
        path = trace(tmp_path / f"{name}.json", drop=drop)
        with pytest.raises(SystemExit) as caught:
            main(["nsys", "summary", str(path)])
        main_code.append((caught.value.code, capsys.readouterr().out))
    (whole, clean), (lossy, marked) = main_code
    assert (whole, lossy) == (0, 1)
    assert "idle at most" in marked and "busy at least" in marked and "recording: lossy" in marked
    assert "at most" not in clean and "recording: complete" in clean


def test_an_edge_of_the_window_only_marks(tmp_path, capsys):
    path = trace(tmp_path / "a.json", drop=(10, 11))
    with pytest.raises(SystemExit) as caught:
        main(["nsys", "summary", str(path)])
    assert caught.value.code == 0 and "at least" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["nsys", "summary", str(path), "--require", "complete"])
    assert caught.value.code == 1


def test_json_of_the_summary_carries_verdict_and_bounds(tmp_path, capsys):
    path = trace(tmp_path / "a.json", drop=(5,))
    with pytest.raises(SystemExit):
        main(["nsys", "summary", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["integrity"]["axes"] == {"gpu": "lossy", "host": "complete", "ops": "complete"}
    assert found["bounds"]["idle_ms"] == "at most" and found["bounds"]["kernel_ms"] == "at least"
