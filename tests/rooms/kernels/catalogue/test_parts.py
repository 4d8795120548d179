"""A part of a recording: the launches that `lab nsys summary` counts in it, and no others."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import MissingError, UsageError
from lab.recordings.load import load_capture
from lab.recordings.projection import PhaseNames
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.parts import Ask, described, folder_name
from lab.rooms.kernels.catalogue.sources import trails_of
from lab.rooms.kernels.trails import Trail
from lab.terminal.part import PartOptions, phase_names, projections
from tests.recordings import rocpdgen
from tests.recordings.sqlgen import Export
from tests.recordings.sqlgen import training_step as nsys_steps
from tests.rooms.kernels.made import generation, profile_folder
from tests.rooms.kernels.test_cli import run
from tests.tracegen import TraceWriter


def part_of(path, names=None, **words):
    ask = Ask(PartOptions(**words), names or PhaseNames())
    return read_catalogue([Trail(rank=0, trace=path)], ask=ask)


def counts(found):
    return found.unique.groupby("kernel")["count"].sum().to_dict()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return nsys_steps(Export()).write(tmp_path_factory.mktemp("nsys") / "run.sqlite")


def test_a_step_has_its_launches_also_those_of_autograd_s_thread(trained):
    whole = part_of(trained)
    one = part_of(trained, step="1")
    assert counts(whole) == {"gemm_backward": 12, "gemm_forward": 6, "adam": 3, "fill": 3}
    assert counts(one) == {"gemm_backward": 4, "gemm_forward": 2, "adam": 1, "fill": 1}
    assert one.unique["dur_sum_us"].sum() == pytest.approx(0.66)
    assert one.unique["time_share"].sum() == pytest.approx(1), "shares are of the part"
    first = next(launch for launch in whole.launches if launch.row == one.launches[0].row)
    assert one.launches[0].ts_us == first.ts_us, "times count from the recording's start"


@pytest.mark.parametrize(
    "words",
    [
        {"step": "0"},
        {"step": "0-1"},
        {"range_name": "backward"},
        {"range_name": "back.*", "step": "1"},
        {"range_name": "warmup"},
        {"from_time": "10us", "to_time": "17us"},
    ],
)
def test_the_launches_of_a_part_are_those_of_nsys_stats(trained, words):
    """Two rooms, one rule: the same kernels, as often, as long."""
    parts = projections(load_capture(trained), "full", phase_names(()), PartOptions(**words))
    ops = parts[0][1].capture.ops
    found = part_of(trained, **words)
    assert len(found.launches) == len(ops)
    assert round(found.unique["dur_sum_us"].sum() * 1000) == int((ops.end_ns - ops.start_ns).sum())


def test_a_range_of_the_shared_trace_equals_the_summary_of_nsys(shared_data, tmp_path, monkeypatch):
    path = shared_data / "kernels_h200" / "cs336_small_training.json.gz"
    if not path.exists():
        pytest.skip("no shared trace of a training")
    words = ["--step", "1", "--range", "backward"]
    figures = json.loads(CliRunner().invoke(cli, ["nsys", "summary", str(path), *words, "--json"]).stdout)
    (backward,) = [one for one in figures["phases"] if one["path"] == ["backward"]]
    done = run("kernels unique", path, *words, "-o", tmp_path / "out", cwd=tmp_path, monkeypatch=monkeypatch)
    assert done.exception is None, done.output
    table = pd.read_csv(tmp_path / "out" / "tables" / "unique_kernels.csv")
    kernels = table[table["kind"] == "kernel"]
    assert [int(kernels["count"].sum())] == backward["kernels"] == [394]
    assert kernels["dur_sum_us"].sum() / 1000 == pytest.approx(backward["kernel_ms"])


def test_what_was_left_out_is_said_and_every_table_names_the_part(trained, tmp_path, monkeypatch):
    written = {
        "unique": ("unique_kernels", "unique_bucketed"),
        "unique --launches": ("kernel_launch_params", "kernel_counts"),
    }
    for command, names in written.items():
        words = f"kernels {command} --step 1 --range forward"
        done = run(words, trained, cwd=tmp_path, monkeypatch=monkeypatch)
        assert done.exception is None, done.output
        assert "part: step 1, range forward: 2 of 24 launches, 0.000 of 0.002 ms" in done.output
        home = tmp_path / "experiments" / "run_analysis"
        assert not (home / "tables").exists(), "a part never takes the place of the whole"
        tables = home / "parts" / "step-1_range-forward" / "tables"
        for name in names:
            assert set(pd.read_csv(tables / f"{name}.csv")["part"]) == {"step 1, range forward"}
    assert json.loads((tables / "signatures.json").read_text())["part"] == "step 1, range forward"
    words = "kernels unique --launches --json --step 1"
    done = run(words, trained, "-o", tmp_path / "o", cwd=tmp_path, monkeypatch=monkeypatch)
    assert len(json.loads(done.stdout)) == 8 and "8 of 24 launches" in done.stderr
    whole = run("kernels unique --launches", trained, cwd=tmp_path, monkeypatch=monkeypatch)
    assert "part:" not in whole.output
    assert "part" not in pd.read_csv(home / "tables" / "kernel_counts.csv").columns


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"step": "7"}, "no measured step 7; the recording has 0, 1"),
        ({"range_name": "forwards"}, "no range is named 'forwards': 6 names of ranges are recorded, such as"),
        ({"from_time": "1s"}, r"nothing was recorded in from 1000 ms; the recording is 0.029 ms long"),
        ({"process": "99"}, "no process 99; the recording has 1"),
        (
            {"from_time": "6.05us", "to_time": "6.2us"},
            r"nothing was launched in from 6.05us, to 6.2us; the recording has 24 launches: backward \(15\)",
        ),
    ],
)
def test_a_part_without_launches_is_an_error_that_says_what_there_is(trained, words, text):
    with pytest.raises(MissingError, match=text):
        part_of(trained, **words)


def test_what_is_no_step_or_time_is_refused_before_the_file_is_read(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("no trace")
    for words in ("--step x", "--from 1h", "--to nan", "--phase ("):
        done = run(f"kernels unique {words}", tmp_path / "a.json", cwd=tmp_path, monkeypatch=monkeypatch)
        assert isinstance(done.exception, UsageError), words


def test_an_unknown_range_of_another_thread_is_offered_and_taken_as_a_phase(tmp_path):
    export = Export()
    export.range("bwd", (1, 1), 0, 900)
    export.launch("own", (1, 1), (5, 6), (7, 9))
    for i in range(5):
        export.launch("k", (1, 2), (10 + i, 11 + i), (100 + 10 * i, 105 + 10 * i))
    path = export.write(tmp_path / "a.sqlite")
    assert counts(part_of(path, phase_names(["bwd"]), range_name="bwd")) == {"own": 1, "k": 5}


def test_counts_per_forward_are_of_the_forwards_in_the_part(tmp_path):
    path = generation(forwards=3).write(tmp_path / "t.json")
    found = part_of(path, range_name="decode_.*")
    assert found.signatures.forwards == {"decode": 2}
    assert set(found.unique["phase"]) == {"decode"}
    (mm,) = found.unique[found.unique["op"] == "aten::mm"].to_dict("records")
    assert (mm["count"], mm["count_per_forward"]) == (4, 2)
    # The trace begins at 1000 us; a window from 1200 us on leaves the prefill's add and cat.
    cut = part_of(path, from_time="200us", to_time="3000us")
    assert any("the window cuts prefill: counts per forward" in text for text in cut.problems)
    assert not any("cuts" in text for text in found.problems)


def test_a_trace_without_a_gpu_has_parts_too(tmp_path):
    writer = TraceWriter()
    for step in range(3):
        writer.event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 900)
        writer.op("aten::mm", 1000 * step + 10, 30)
        writer.op("aten::add", 1000 * step + 100, 20)
    path = writer.write(tmp_path / "t.json")
    assert counts(part_of(path)) == {"mm": 3, "add": 3}
    assert counts(part_of(path, step="1")) == {"mm": 1, "add": 1}
    assert counts(part_of(path, from_time="2050us")) == {"add": 1}


def test_of_several_processes_one_can_be_asked_for(tmp_path):
    one, other = rocpdgen.Process(rocpdgen.GUIDS[0], 5), rocpdgen.Process(rocpdgen.GUIDS[1], 6)
    for process, name in ((one, "first"), (other, "second")):
        process.mark("step_0", (0, 1000), 90)
        process.launch(name, (10, 20), (30, 40), 1)
        process.launch(name, (1100, 1110), (1130, 1140), 2)
    path = rocpdgen.write(tmp_path / "a.db", one, other)
    assert counts(part_of(path, process="6")) == {"second": 2}
    both = part_of(path, step="0")
    assert counts(both) == {"first": 1, "second": 1} and both.signatures.ranks == [0, 1]
    alone = part_of(path, process="6", step="0")
    assert alone.signatures.ranks == [1] and "1 of 4 launches" in alone.left_out
    assert any("none of the launches of rank 0 is in the part" in text for text in alone.problems)


def test_a_rank_without_the_step_is_named_and_does_not_stop_the_others(tmp_path):
    folder = profile_folder(tmp_path / "run", world_size=2)
    writer = TraceWriter(rank=1, world_size=2)
    writer.kernel("other", 1000, 5, op=writer.op("aten::mm", 990, 5))
    writer.write(folder / "profile" / "trace_rank1.json.gz")
    found = read_catalogue(trails_of([folder]), ask=Ask(PartOptions(range_name="prefill")))
    assert found.signatures.ranks == [0] and len(found.launches) == 4
    assert any("rank 1" in text for text in found.problems)
    with pytest.raises(MissingError, match="no range is named 'nothing'"):
        read_catalogue(trails_of([folder]), ask=Ask(PartOptions(range_name="nothing")))


def test_a_part_s_name_is_a_folder_s_whatever_was_asked_for():
    part = PartOptions(range_name="../../x; rm -rf \x1b[2J", step="3,7-9")
    name = folder_name(part)
    assert "/" not in name and "\x1b" not in name and name.startswith("step-3,7-9_range-")
    assert folder_name(PartOptions(range_name="..")) not in ("", ".", "..")
    assert described(PartOptions(from_time="1ms", to_time="2ms")) == "from 1ms, to 2ms"
    assert len(folder_name(PartOptions(range_name="x" * 500))) <= 80
