"""The commands as a person types them: on runs, on bare traces, on what is not one."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import BadDataError, MissingError, UsageError
from lab.rooms import room
from lab.rooms.kernels.catalogue.sources import trails_of
from tests.rooms.kernels.made import generation, profile_folder


def run(command, *paths, cwd, monkeypatch):
    """`command` as one text, then arguments that may hold spaces."""
    monkeypatch.chdir(cwd)
    words = [*command.split(), *map(str, paths)]
    return CliRunner().invoke(cli, words, standalone_mode=False)


def test_unique_writes_a_foreign_trace_s_tables_apart_from_it(tmp_path, monkeypatch):
    trace = generation().write(tmp_path / "data" / "bloom.json.gz")
    (tmp_path / "work").mkdir()
    done = run("kernels unique", trace, cwd=tmp_path / "work", monkeypatch=monkeypatch)
    assert done.exception is None and "nvjet_gemm" in done.output and "of 12 launches" in done.output
    tables = tmp_path / "work" / "experiments" / "bloom_analysis" / "tables"
    assert pd.read_csv(tables / "unique_kernels.csv")["count"].sum() == 12
    assert [path.name for path in trace.parent.iterdir()] == ["bloom.json.gz"], (
        "a recording is never written to"
    )


def test_unique_as_json_is_one_document_on_stdout(tmp_path, monkeypatch):
    trace = generation().write(tmp_path / "t.json")
    done = run(
        "kernels unique",
        trace,
        "--json",
        "--out",
        tmp_path / "o",
        cwd=tmp_path,
        monkeypatch=monkeypatch,
    )
    rows = json.loads(done.stdout)
    assert "recording: " in done.stderr  # what the rows rest on
    assert sum(row["count"] for row in rows) == 12 and "sig_id" in rows[0]


def test_launches_lists_every_one_with_its_op(tmp_path, monkeypatch):
    trace = generation(forwards=1).write(tmp_path / "t.json")
    words = ("kernels unique --launches", trace, "--out", tmp_path / "o")
    done = run(*words, cwd=tmp_path, monkeypatch=monkeypatch)
    assert done.exception is None and "aten::cat" in done.output and "4 rows of 4 launches" in done.output
    params = pd.read_csv(tmp_path / "o" / "tables" / "kernel_launch_params.csv")
    assert len(params) == 4 and params["registers_per_thread"].iloc[0] == 90 and params["grid_x"].iloc[0] == 8


def test_gantt_of_all_ranks_makes_picture_page_and_table(tmp_path, monkeypatch):
    folder = profile_folder(tmp_path / "run", world_size=2, comm=True)
    done = run(
        "kernels gantt",
        folder,
        "--step",
        "decode_1",
        "--out",
        tmp_path / "o",
        cwd=tmp_path,
        monkeypatch=monkeypatch,
    )
    assert done.exception is None and "30 launches on 6 rows" in done.output
    for name in ("figures/gantt.png", "gantt.html", "tables/gantt.csv", "tables/busy.csv"):
        assert (tmp_path / "o" / name).stat().st_size > 0


@pytest.mark.parametrize("command", ["unique", "unique --launches", "gantt"])
def test_files_that_are_not_traces_are_errors_in_words(tmp_path, monkeypatch, command):
    def error_of(path):
        return run(f"kernels {command}", path, cwd=tmp_path, monkeypatch=monkeypatch).exception

    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "folder").mkdir()
    assert isinstance(error_of(tmp_path / "absent.json"), MissingError)
    assert isinstance(error_of(tmp_path / "folder"), MissingError)
    assert isinstance(error_of(tmp_path / "empty.json"), BadDataError)
    assert isinstance(error_of(tmp_path / "text.json"), BadDataError)


def test_files_are_ranks_by_their_name_or_their_position(tmp_path):
    names = ["a_rank3.json", "a_rank1.json"]
    paths = [generation(rank=0).write(tmp_path / name) for name in names]
    assert [trail.rank for trail in trails_of(paths)] == [3, 1]
    plain = [generation(rank=0).write(tmp_path / name) for name in ("x.json", "y.json")]
    assert [trail.rank for trail in trails_of(plain)] == [0, 1]
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError):
        trails_of([tmp_path / "d", *plain])
    with pytest.raises(UsageError, match="named twice"):
        trails_of([plain[0], plain[1], tmp_path / "d" / ".." / "x.json"])


def test_a_trace_inside_a_profile_brings_its_recorded_ops_along(tmp_path):
    folder = profile_folder(tmp_path)
    (folder / "profile" / "recorded_ops_rank0.jsonl").write_text('{"index":0,"name":"aten::mm"}\n')
    (trail,) = trails_of([folder / "profile" / "trace_rank0.json.gz"])
    assert trail.recorded_ops is not None


def test_the_room_recognises_a_profile_and_nothing_else(tmp_path):
    folder = profile_folder(tmp_path / "run")
    assert not room("kernels").recognises(folder), "traces alone may be any room's"
    (folder / "profile" / "recorded_ops_rank0.jsonl").write_text('{"index":0,"name":"aten::mm"}\n')
    assert room("kernels").recognises(folder) and not room("kernels").recognises(tmp_path)


def test_a_dry_run_shows_the_plan_and_two_models_are_refused(tmp_path, monkeypatch):
    done = run(
        "run --dry-run --json --image cuda --gpus 2 kernels profile vicuna-7b --tp 2",
        cwd=tmp_path,
        monkeypatch=monkeypatch,
    )
    plan = json.loads(done.output)
    assert plan["config"]["tp"] == 2 and plan["steps"][0]["num_gpus"] == 2
    done = run(
        "run --dry-run kernels profile bloom-560m --model vicuna-7b",
        cwd=tmp_path,
        monkeypatch=monkeypatch,
    )
    assert isinstance(done.exception, UsageError)
