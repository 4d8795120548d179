"""`lab kernels unique|gantt --capture`: what a user gets for a replay, and the exit code."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from lab.cli.main import main
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into

NAMES = [one.kernel for one in decoder()]


class Done:
    def __init__(self, exit_code, stdout, stderr):
        self.exit_code, self.stdout, self.output = exit_code, stdout, stdout + stderr


@pytest.fixture
def run(capsys):
    """`lab kernels ...` as a user runs it."""

    def called(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["kernels", *map(str, arguments)])
        said = capsys.readouterr()
        return Done(ended.value.code or 0, said.out, said.err)

    return called


@pytest.fixture
def unique(run):
    def called(tmp_path, *arguments):
        done = run("unique", *arguments, "--out", tmp_path / "out")
        table = pd.read_csv(tmp_path / "out" / "tables" / "unique_kernels.csv", keep_default_na=False)
        return done, table

    return called


def written(tmp_path, name, fill):
    events = Events()
    fill(events)
    return events.write(tmp_path / name)


def replay(tmp_path, kernels=NAMES):
    return written(tmp_path, "replay.json", lambda events: replay_into(events, kernels))


def capture(tmp_path, launches=None):
    return written(tmp_path, "capture.json", lambda events: capture_into(events, launches or decoder()))


def test_the_table_says_how_each_kernel_got_its_op(unique, tmp_path):
    done, table = unique(tmp_path, replay(tmp_path), "--capture", capture(tmp_path))
    assert done.exit_code == 0, done.output
    assert set(table["op_rule"]) == {"order"} and set(table["confidence"]) == {"exact"}
    assert table["count"].sum() == 18
    by_op = table.groupby("op")["count"].sum().to_dict()
    assert by_op["aten::mm"] == 8 and by_op["aten::rms_norm"] == 4
    norm = table[table["op"] == "aten::rms_norm"].iloc[0]
    assert (norm["layers"], norm["modules"], norm["arg_summary"]) == (4, 4, "f32[2,3]:1,1")
    assert "18 kernels replayed by graphs: 18 by their place in the capture" in done.output


def test_without_a_capture_the_time_without_an_op_is_said(unique, tmp_path):
    done, table = unique(tmp_path, replay(tmp_path))
    assert done.exit_code == 0
    assert set(table["op_rule"]) == {"none"} and set(table["op"]) == {""}
    assert "18 of 18 launches (100.0 % of the time) have no op: graphs replayed them" in done.output
    assert "whether all of it is here is unknown" in done.output


def test_a_wrong_capture_is_refused_and_the_exit_code_knows_it(unique, tmp_path):
    wrong = capture(tmp_path, [one._replace(kernel=one.kernel + "_x") for one in decoder()])
    done, table = unique(tmp_path, replay(tmp_path), "--capture", wrong)
    assert done.exit_code == 1
    assert set(table["op_rule"]) == {"none"}
    assert "capture.json is not of these replays and was not used" in done.output


def test_lost_rows_are_written_and_end_with_the_code_of_incomplete_data(unique, tmp_path):
    def fill(events):
        replay_into(events, [*NAMES[:4], *NAMES[5:]])
        events.row("later", events.call("hipLaunchKernel"))

    done, table = unique(tmp_path, written(tmp_path, "replay.json", fill), "--capture", capture(tmp_path))
    assert done.exit_code == 1
    assert table["count"].sum() == 18
    assert "graph replays lack 1 of 18 captured launches as GPU rows (against capture.json)" in done.output


def test_launches_and_gantt_take_captures_too(run, tmp_path):
    own, captured = replay(tmp_path), capture(tmp_path)
    done = run("unique", "--launches", own, "--capture", captured, "--out", tmp_path / "l", "--json")
    rows = json.loads(done.stdout)
    assert done.exit_code == 0
    assert [row["layer"] for row in rows[1:9]] == ["Block_0"] * 4 + ["Block_1"] * 4
    assert rows[2]["module"] == "Model_0.Block_0.Linear_0" and rows[2]["op"] == "aten::mm"
    table = pd.read_csv(tmp_path / "l" / "tables" / "kernel_launch_params.csv", keep_default_na=False)
    assert set(table["op_rule"]) == {"order"} and set(table["layer_rule"]) == {"order", "none"}
    assert table["op"][2] == "aten::mm" and table["module"][2] == "Model_0.Block_0.Linear_0"
    lines = (tmp_path / "l" / "tables" / "launches.jsonl").read_text().splitlines()
    assert {json.loads(line)["layer_rule"] for line in lines} == {"order", "none"}
    done = run("gantt", own, "--capture", captured, "--out", tmp_path / "g")
    assert done.exit_code == 0 and (tmp_path / "g" / "figures" / "gantt.png").exists()


@pytest.mark.parametrize(
    ("folder", "trace", "rows"),
    [
        ("sglang_decode", "sglang_Qwen3-8B_decode.json.gz", 558),
        ("vllm_decode_full", "graph_execution.json.gz", 434),
    ],
)
def test_served_models_have_95_percent_of_their_time_attributed(
    unique, shared_data, tmp_path, folder, trace, rows
):
    home = shared_data / "captures" / "graphs" / folder
    done, table = unique(tmp_path, home / trace, "--capture", home / "capture_traces")
    assert done.exit_code == 0, done.output
    assert table["count"].sum() == rows
    by_rule = table.groupby("op_rule")["dur_sum_us"].sum()
    assert by_rule["order"] >= 0.95 * by_rule.sum()
    assert by_rule.get("none", 0.0) <= 0.002 * by_rule.sum()


def test_flux_credits_no_kernel_to_the_region_that_launched_the_graph(unique, shared_data, tmp_path):
    trace = shared_data / "captures" / "graphs" / "flux1_one_file" / "capture_and_replay.json.gz"
    done, table = unique(tmp_path, trace)
    assert done.exit_code == 1 and "lack 1 of 994" in done.output
    replayed = table[table["op_rule"] == "order"]
    assert replayed["count"].sum() == 993
    region = table[table["op"] == "Torch-Compiled Region: 0/0"]
    assert region["count"].sum() == 0


def test_a_recording_without_graphs_or_without_a_gpu_refuses_the_capture(unique, tmp_path):
    def eager(events):
        for one in decoder():
            events.row(one.kernel, events.launch(one), external_id=events.ids)

    captured = capture(tmp_path)
    done, table = unique(tmp_path, written(tmp_path, "eager.json", eager), "--capture", captured)
    assert done.exit_code == 1 and "the recording has no graph replays" in done.output
    assert set(table["op_rule"]) == {"external_id"} and table["layers"].max() == 4
    on_cpu = written(tmp_path, "cpu.json", eager)
    document = json.loads(on_cpu.read_text())
    operators = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"]
    on_cpu.write_text(json.dumps(document | {"traceEvents": operators}))
    done, table = unique(tmp_path, on_cpu, "--capture", captured)
    assert done.exit_code == 1 and len(table)


def test_eager_launches_have_modules_and_layers_of_the_recorded_stack(run, tmp_path):
    def eager(events):
        for one in decoder():
            events.row(one.kernel, events.launch(one), external_id=events.ids)

    trace = written(tmp_path, "eager.json", eager)
    done = run("unique", "--launches", trace, "--out", tmp_path / "l", "--json")
    rows = json.loads(done.stdout)
    assert [row["module"] for row in rows] == [".".join(one.modules) for one in decoder()]
    assert [row["layer"] for row in rows[1:5]] == ["Block_0"] * 4


def test_each_rank_is_matched_with_the_capture_of_its_rank(unique, tmp_path):
    paths = []
    for rank in (0, 1):
        launches = [one._replace(op=f"{one.op}_of_{rank}") for one in decoder()]
        for name, fill in (
            (f"rank{rank}.json", lambda events: replay_into(events, NAMES)),
            (f"bs_4_rank{rank}.json", lambda events, made=launches: capture_into(events, made)),
        ):
            events = Events()
            fill(events)
            paths.append(events.write(tmp_path / name, distributedInfo={"rank": rank}))
    replays, captures = paths[::2], paths[1::2]
    done, table = unique(tmp_path, *replays, *(word for path in captures for word in ("--capture", path)))
    assert done.exit_code == 0, done.output
    assert {(op[-1], ranks) for op, ranks in zip(table["op"], table["ranks"], strict=True)} == {
        ("0", 0),
        ("1", 1),
    }


def test_of_two_files_the_sentence_of_a_loss_names_its_own(run, tmp_path):
    def lost(events):
        for which in (NAMES, [*NAMES[:4], *NAMES[5:]], NAMES):
            replay_into(events, which)
        events.row("later", events.call("hipLaunchKernel"))

    whole = written(tmp_path, "whole.json", lambda events: [replay_into(events, NAMES) for _ in range(2)])
    done = run("unique", whole, written(tmp_path, "lost.json", lost), "--out", tmp_path / "o")
    assert done.exit_code == 1
    (said,) = [
        line for line in done.output.splitlines() if "1 of 54 rows" in line and not line.startswith("!")
    ]
    assert f"{tmp_path / 'lost.json'}: 1 of 54 rows" in said
    assert f"where: {tmp_path / 'lost.json'}" in " ".join(done.output.split())
