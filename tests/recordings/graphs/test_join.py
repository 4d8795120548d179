"""Replayed kernels get op, module and layer of their capture, and what is not certain is not said."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.graphs import CONFIDENCES, LAYER_RULES, RULES, join, lacks_of, load_sources
from lab.recordings.kineto import read_kineto
from lab.recordings.views import link_ops
from tests.recordings.graphs.made import (
    Events,
    Launched,
    capture_into,
    decoder,
    replay_into,
    source,
)

NAMES = [one.kernel for one in decoder()]
TRUTH = [(one.op, ".".join(one.modules)) for one in decoder()]
LAYERS = [next((name for name in one.modules if name.startswith("Block")), "") for one in decoder()]


def captured(tmp_path, launches=None, name="capture.json", **how):
    events = Events()
    capture_into(events, launches or decoder(), **how)
    return source(events.write(tmp_path / name))


def replayed(tmp_path, *replays, name="replay.json", streams=None, **more):
    events = Events()
    for kernels in replays:
        replay_into(events, kernels, streams, **more)
    return source(events.write(tmp_path / name))


def told(found):
    """(op, module) of every GPU row."""
    rows = found.rows
    return [
        (found.texts[op], found.texts[module]) for op, module in zip(rows.op_name, rows.module, strict=True)
    ]


def layers(found):
    return [found.texts[layer] for layer in found.rows.layer]


def rules(found):
    return [RULES[rule] for rule in found.rows.rule]


def test_a_replay_has_the_ops_modules_and_layers_of_its_capture(tmp_path):
    found = join(replayed(tmp_path, NAMES, NAMES), [captured(tmp_path)])
    assert told(found) == TRUTH * 2
    assert layers(found) == LAYERS * 2
    assert set(rules(found)) == {"order"}
    assert {CONFIDENCES[one] for one in found.rows.confidence} == {"exact"}
    assert lacks_of(found) == () and found.unattributed == (0, 0)


def test_a_graph_launched_inside_an_op_gives_that_op_nothing(tmp_path):
    events = Events()
    events.ids = 1
    events.add("cpu_op", "Torch-Compiled Region: 0/0", events.now - 1, 500, {"External id": 1})
    correlation = events.call("hipGraphLaunch", 1)
    for name in NAMES:
        events.row(name, correlation, external_id=1)
    own = source(events.write(tmp_path / "in_op.json"))
    assert (link_ops(read_kineto(own.path)) == -1).all()
    assert set(rules(join(own))) == {"none"}
    assert told(join(own, [captured(tmp_path)])) == TRUTH


def test_eager_launches_beside_a_replay_keep_their_op(tmp_path):
    events = Events()
    correlation = events.launch(Launched("gemm_in", "aten::mm"))
    events.row("gemm_in", correlation, external_id=events.ids)
    replay_into(events, NAMES)
    trace = read_kineto(events.write(tmp_path / "both.json"))
    assert link_ops(trace).tolist() == [0] + [-1] * len(NAMES)


@pytest.mark.parametrize("lost", [[4], [0], [17], list(range(5, 9)), [2, 3, 9, 14], list(range(1, 17, 2))])
def test_lost_rows_never_give_another_row_a_wrong_layer(tmp_path, lost):
    kept = [index for index in range(len(NAMES)) if index not in lost]
    found = join(replayed(tmp_path, [NAMES[index] for index in kept]), [captured(tmp_path)])
    for index, row in enumerate(kept):
        assert found.texts[found.rows.op_name[index]] == TRUTH[row][0]
        if LAYER_RULES[found.rows.layer_rule[index]] not in ("unknown", "none"):
            assert layers(found)[index] == LAYERS[row]
    assert sum(one.n for one in lacks_of(found)) == len(lost)


def test_a_lost_layer_leaves_layers_unknown_and_ops_right(tmp_path):
    found = join(replayed(tmp_path, [*NAMES[:5], *NAMES[9:]]), [captured(tmp_path)])
    assert [op for op, _ in told(found)] == [op for op, _ in [*TRUTH[:5], *TRUTH[9:]]]
    inner = slice(1, 13)
    assert {LAYER_RULES[one] for one in found.rows.layer_rule[inner]} == {"unknown"}
    assert layers(found)[inner] == [""] * 12
    assert told(found)[1] == ("aten::rms_norm", "Model.Block.Norm")
    assert set(rules(found)[inner]) == {"name"}


def test_a_row_that_no_capture_holds_stays_without_op_and_is_counted(tmp_path):
    own = replayed(tmp_path, [*NAMES[:9], "stranger", *NAMES[9:]])
    found = join(own, [captured(tmp_path)])
    assert told(found)[9] == ("", "") and rules(found)[9] == "none"
    assert found.unattributed == (1, 3000)
    assert [op for op, _ in told(found)[:9]] == [op for op, _ in TRUTH[:9]]


def test_two_streams_are_matched_each_in_its_own_order(tmp_path):
    launches = [
        one
        for layer in range(3)
        for one in (
            Launched(f"left_{layer}", "aten::mm", ("Model_0", f"Block_{layer}")),
            Launched("right", "aten::add", ("Model_0", f"Block_{layer}")),
        )
    ]
    capture = captured(tmp_path, launches)
    names = ["right", "right", "left_0", "left_1", "right", "left_2"]
    own = replayed(tmp_path, names, streams=[1, 1, 0, 0, 1, 0])
    found = join(own, [capture])
    assert layers(found) == ["Block_0", "Block_1", "Block_0", "Block_1", "Block_2", "Block_2"]


def test_streams_that_share_a_name_stay_unknown_where_they_cannot_be_told_apart(tmp_path):
    launches = [
        Launched("work", "aten::mm", ("Model_0", "Block_0")),
        Launched("work", "aten::mm", ("Model_0", "Block_1")),
    ]
    own = replayed(tmp_path, ["work", "work"], streams=[0, 1])
    found = join(own, [captured(tmp_path, launches)])
    assert layers(found) == ["", ""]
    assert {LAYER_RULES[one] for one in found.rows.layer_rule} == {"unknown"}
    assert [op for op, _ in told(found)] == ["aten::mm"] * 2


def test_graphs_with_the_same_names_say_only_what_all_of_them_say(tmp_path):
    """Two captures equal in names, one of another model: where they differ nothing is said."""
    other = [Launched(one.kernel, one.op, ("Other_0", *one.modules[1:])) for one in decoder()]
    events = Events()
    capture_into(events, decoder())
    capture_into(events, other)
    both = source(events.write(tmp_path / "both.json"))
    found = join(replayed(tmp_path, NAMES), [both])
    assert [op for op, _ in told(found)] == [op for op, _ in TRUTH]
    assert {module for _, module in told(found)} == {""}
    third = [Launched(one.kernel, "aten::other", one.modules) for one in decoder()]
    capture_into(events, third)
    found = join(replayed(tmp_path, NAMES), [source(events.write(tmp_path / "three.json"))])
    assert set(rules(found)) == {"none"} and set(told(found)) == {("", "")}


def test_of_windows_with_equal_names_only_what_all_say_is_known(tmp_path):
    """Piecewise: each replay may be of any of three windows, so its layer is not known."""
    events = Events()
    pieces = [[Launched("work", "aten::mm", ("Model_0", f"Block_{index}"))] * 2 for index in range(3)]
    for piece in pieces:
        capture_into(events, piece)
    capture = source(events.write(tmp_path / "pieces.json"))
    replay = Events()
    for step in range(2):
        start = replay.now
        for _ in range(3):
            replay_into(replay, ["work", "work"])
        replay.add(
            "user_annotation", f"execute_4_context_0_generation_4 {step}", start - 1, replay.now - start, {}
        )
    found = join(source(replay.write(tmp_path / "steps.json")), [capture])
    assert layers(found) == [""] * 12
    assert {RULES[rule] for rule in found.rows.rule[found.inside]} == {"order"}
    assert {LAYER_RULES[rule] for rule in found.rows.layer_rule[found.inside]} == {"unknown"}


def test_the_wrong_capture_is_refused_with_its_reason(tmp_path):
    other = [Launched(f"{one.kernel}_other", one.op, one.modules) for one in decoder()]
    found = join(replayed(tmp_path, NAMES), [captured(tmp_path, other, "wrong.json")])
    assert set(rules(found)) == {"none"}
    assert found.unattributed[0] == len(NAMES)
    assert found.problems == [
        "capture wrong.json is not of these replays and was not used: only 0 of 18 kernels occur in it"
    ]


def test_a_capture_of_the_same_kernels_in_another_order_is_refused(tmp_path):
    backward = list(reversed(decoder()))
    found = join(replayed(tmp_path, NAMES), [captured(tmp_path, backward, "wrong.json")])
    assert set(rules(found)) == {"none"} and "in this order" in found.problems[0]


def of_batch(tmp_path, batch, dims):
    launches = [one._replace(dims=dims) for one in decoder()]
    return captured(tmp_path, launches, f"bs_{batch}_rank0.json", label=f"capture_{batch}_FULL")


def executed(tmp_path, batch):
    events = Events()
    start = events.now
    replay_into(events, NAMES)
    events.add(
        "user_annotation", f"execute_{batch}_context_0_generation_{batch}", start - 1, events.now - start, {}
    )
    return source(events.write(tmp_path / "executed.json"))


def shape_of(found, row):
    capture = found.sources[found.rows.source[row]].capture
    return capture.name(int(capture.ranges.dims_id[found.rows.op[row]]))


def test_the_smallest_captured_batch_that_is_large_enough_is_taken(tmp_path):
    sizes = [of_batch(tmp_path, batch, (batch, 3)) for batch in (8, 16, 32, 64)]
    found = join(executed(tmp_path, 20), sizes)
    assert shape_of(found, 3) == "[[32,3]]"


def test_a_capture_of_a_smaller_batch_is_refused_though_its_names_fit(tmp_path):
    found = join(executed(tmp_path, 20), [of_batch(tmp_path, 16, (16, 3))])
    assert set(rules(found)) == {"none"}
    assert found.problems[0].endswith("captured for batch 16, 20 were executed")


def test_captures_of_one_name_and_other_shapes_give_the_op_without_shapes(tmp_path):
    unknown_batch = [
        captured(tmp_path, [one._replace(dims=(size, 3)) for one in decoder()], f"{size}.json")
        for size in (8, 16)
    ]
    found = join(replayed(tmp_path, NAMES), unknown_batch)
    assert [op for op, _ in told(found)] == [op for op, _ in TRUTH]
    assert (found.rows.op == -1).all()


def test_copies_and_fills_match_by_kind(tmp_path):
    launches = [Launched("gemm_in", "aten::mm"), Launched("Memset (Device)", "aten::zero_")]
    found = join(
        replayed(tmp_path, ["gemm_in", "__amd_rocclr_fillBufferAligned"]), [captured(tmp_path, launches)]
    )
    assert [op for op, _ in told(found)] == ["aten::mm", "aten::zero_"]


def test_without_a_capture_a_name_that_ran_eagerly_in_the_same_run_tells_the_op(tmp_path):
    events = Events()
    for one in (
        Launched("gemm_in", "aten::mm"),
        Launched("two_ops", "aten::a"),
        Launched("two_ops", "aten::b"),
    ):
        events.row(one.kernel, events.launch(one), external_id=events.ids)
    replay_into(events, ["gemm_in", "two_ops", "unseen"] * 6)
    found = join(source(events.write(tmp_path / "own.json")))
    ops = [found.texts[op] for op in found.rows.op_name[found.inside]]
    assert ops == ["aten::mm", "", ""] * 6
    assert {RULES[one] for one in found.rows.rule[found.inside]} == {"name", "none"}


def test_an_eager_run_of_the_same_model_serves_as_the_capture(tmp_path):
    events = Events()
    for step in range(2):
        start = events.now
        for one in decoder():
            events.row(one.kernel, events.launch(one), external_id=events.ids)
        events.add("user_annotation", f"step_{step}", start - 4, events.now - start, {})
    eager = source(events.write(tmp_path / "eager.json"))
    found = join(replayed(tmp_path, NAMES), [eager])
    assert told(found) == TRUTH and layers(found) == LAYERS
    shorter = join(replayed(tmp_path, NAMES[:6]), [eager])
    assert [op for op, _ in told(shorter)] == [op for op, _ in TRUTH[:6]]


def test_an_eager_run_with_other_grids_is_of_another_batch_and_refused(tmp_path):
    events = Events()
    for one in decoder():
        events.row(one.kernel, events.launch(one), external_id=events.ids, grid=[8, 1, 1], block=[64, 1, 1])
    eager = source(events.write(tmp_path / "eager.json"))
    same = replayed(tmp_path, NAMES, grid=[8, 1, 1], block=[64, 1, 1])
    assert told(join(same, [eager])) == TRUTH
    other = replayed(tmp_path, NAMES, grid=[9, 1, 1], block=[64, 1, 1])
    found = join(other, [eager])
    assert set(rules(found)) == {"none"} and "the same grid" in found.problems[0]


def unnamed(tmp_path, launches):
    """A CUDA capture: no kernel names."""
    return captured(tmp_path, launches, "cuda.json", named=False, api="cuda")


@pytest.mark.parametrize(
    "names", [NAMES[:-1], [*NAMES, "gemm_head"], [*NAMES[:5], "Memset (Device)", *NAMES[6:]]]
)
def test_a_capture_without_names_is_refused_where_number_or_kind_differ(tmp_path, names):
    found = join(replayed(tmp_path, names), [unnamed(tmp_path, decoder())])
    assert set(rules(found)) == {"none"} and len(found.problems) == 1


def test_a_capture_without_names_is_refused_where_matrix_products_would_own_other_kernels(tmp_path):
    moved = [*NAMES[1:], NAMES[0]]
    found = join(replayed(tmp_path, moved), [unnamed(tmp_path, decoder())])
    assert set(rules(found)) == {"none"} and "matrix products" in found.problems[0]


def test_node_ids_place_rows_whatever_runs_beside_them_or_is_lost(tmp_path):
    events = Events()
    correlation = events.call("cudaGraphLaunch")
    order = [0, 2, 1, 4, 3, *range(9, 18)]
    for index in order:
        node = {"graph id": 5, "graph node id": (5 << 32) + index}
        events.row(NAMES[index], correlation, stream=index % 2, **node)
    own = source(events.write(tmp_path / "nodes.json"))
    found = join(own, [captured(tmp_path)])
    rows = np.argsort(own.capture.ops.start_ns)
    assert [told(found)[row] for row in rows] == [TRUTH[index] for index in order]
    assert set(rules(found)) <= {"node", "none"}


def test_folders_list_their_captures_and_may_name_no_file_outside(tmp_path):
    folder = tmp_path / "capture_traces"
    folder.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    captured(folder, name="bs_4_rank0.json")
    rows = [
        {"file": "bs_4_rank0.json", "batch_size": 4, "mode": "FULL"},
        {"file": "../secret.json", "batch_size": 8, "mode": "FULL"},
        {"file": "/etc/passwd", "batch_size": 8, "mode": "FULL"},
    ]
    (folder / "execution_details.json").write_text(json.dumps(rows))
    found, problems = load_sources([folder])
    assert [(one.path.name, one.batch) for one in found] == [("bs_4_rank0.json", 4)]
    assert len(problems) == 1 and "2 captures not in the folder" in problems[0]


def test_only_the_captures_that_a_server_would_replay_are_read(tmp_path):
    folder = tmp_path / "capture_traces"
    folder.mkdir()
    for batch in (8, 32):
        of_batch(folder, batch, (batch, 3))
    (folder / "bs_64_rank0.json").write_text("not a trace")
    found, _ = load_sources([folder], executed=(20, 30))
    assert [one.path.name for one in found] == ["bs_32_rank0.json"]


def test_damaged_and_absent_captures_are_errors_that_name_the_file(tmp_path):
    with pytest.raises(MissingError):
        load_sources([tmp_path / "absent"])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MissingError, match="neither"):
        load_sources([empty])
    (empty / "execution_details.json").write_text('{"file": 1}')
    with pytest.raises(BadDataError, match="list of captures"):
        load_sources([empty])
    cut = tmp_path / "cut.json"
    cut.write_text('{"traceEvents": [{"ph": "X"')
    with pytest.raises(BadDataError, match="capture"):
        load_sources([cut])
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\0not a trace")
    with pytest.raises(BadDataError, match=r"torch\.profiler"):
        load_sources([binary])


def test_an_empty_recording_and_one_without_graphs_join_to_nothing(tmp_path):
    empty = source(Events().write(tmp_path / "empty.json"))
    assert not join(empty).inside.any() and lacks_of(join(empty)) == ()
    found = join(empty, [captured(tmp_path)])
    assert "no graph replays" in found.problems[0]


def test_two_processes_with_equal_correlations_are_kept_apart(tmp_path):
    one = replayed(tmp_path, NAMES).capture
    ops = type(one.ops)(
        {
            name: np.concatenate([column, column + 1 if name == "process" else column])
            for name, column in one.ops.as_dict().items()
        }
    )
    api = type(one.api)(
        {
            name: np.concatenate([column, column + 1 if name == "process" else column])
            for name, column in one.api.as_dict().items()
        }
    )
    two = replace(one, ops=ops, api=api)
    from lab.recordings.graphs import Source

    found = join(Source(one.source, two), [captured(tmp_path)])
    assert len(found.replays) == 2 and told(found) == TRUTH * 2


def test_a_folder_serves_if_one_of_its_recordings_does(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    captured(folder, name="right.json")
    captured(folder, [one._replace(kernel=one.kernel + "_x") for one in decoder()], "wrong.json")
    own = replayed(folder, NAMES)
    found = join(own, load_sources([folder])[0])
    assert told(found) == TRUTH and found.problems == []


def test_a_name_is_one_ops_only_if_the_whole_run_says_so(tmp_path):
    """Its second operator is the last of many forwards, of which only some are looked at closely."""
    events = Events()
    for index in range(80):
        start = events.now
        one = Launched("work", "aten::b" if index == 79 else "aten::a")
        events.row(one.kernel, events.launch(one), external_id=events.ids)
        events.add("user_annotation", f"step_{index}", start - 2, events.now - start, {})
    replay_into(events, ["work"])
    found = join(source(events.write(tmp_path / "own.json")))
    assert found.texts[found.rows.op_name[found.inside][0]] == ""
