"""Inductor's kernels: key, fused ops and lines, and the rule that gave each."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from lab.cli.main import main
from lab.rooms.kernels.catalogue.gantt import bars_of
from tests.recordings.graphs.made import Events, Launched
from tests.rooms.kernels.made import catalogue_of

HASHES = {"a": "c" + "a" * 51, "b": "c" + "b" * 51}


@pytest.fixture
def table(capsys):
    """compiled_kernels.csv of `lab kernels unique`, and what was printed."""

    def called(tmp_path, trace, *arguments):
        out = tmp_path / "out"
        with pytest.raises(SystemExit) as ended:
            main(["kernels", "unique", str(trace), "--out", str(out), *map(str, arguments)])
        assert not ended.value.code
        found = pd.read_csv(out / "tables" / "compiled_kernels.csv", keep_default_na=False)
        return found.set_index(["kernel", "kernel_hash"]), capsys.readouterr().out

    return called


def compiled(tmp_path, *kernels):
    """A compiled region that launches these (name, hash) once each."""
    events = Events()
    start, region = events.now, 900
    for name, hash_ in kernels:
        correlation = events.launch(Launched(name, name, ("Model_0", "Block_0")))
        op = next(row for row in events.rows if row["args"].get("External id") == events.ids)
        op["args"] |= {"kernel_hash": hash_, "kernel_kwargs": "XBLOCK=64", "num_warps": 4, "num_stages": 1}
        events.row(name, correlation, external_id=events.ids)
    dur = events.now - start
    events.add("cpu_op", "Torch-Compiled Region: 2/1", start - 6, dur, {"External id": region})
    events.add("user_annotation", "## Call CompiledFxGraph fabc ##", start - 5, dur - 2, {})
    return events.write(tmp_path / "trace.json")


def test_one_name_in_two_graphs_is_two_kernels(table, tmp_path):
    found, _ = table(
        tmp_path, compiled(tmp_path, *(("triton_poi_fused_0", hash_) for hash_ in HASHES.values()))
    )
    assert sorted(found.index) == sorted(("triton_poi_fused_0", hash_) for hash_ in HASHES.values())
    unique = pd.read_csv(tmp_path / "out" / "tables" / "unique_kernels.csv", keep_default_na=False)
    assert sorted(unique["kernel_hash"]) == sorted(HASHES.values())


def test_modules_and_parameters_stand_beside_the_kernel(table, tmp_path):
    found, output = table(tmp_path, compiled(tmp_path, ("triton_poi_fused_add_relu_1", HASHES["a"])))
    row = found.loc["triton_poi_fused_add_relu_1", HASHES["a"]]
    assert (row["fused_ops"], row["ops_rule"], row["source_rule"]) == ("add relu", "name", "none")
    assert (row["module"], row["block_sizes"], row["num_warps"]) == ("Model_0.Block_0", "XBLOCK=64", 4)
    assert "no line of the model known for 1 kernel" in output


def test_inductors_own_records_beside_the_trace_give_ops_and_lines(table, tmp_path):
    """The folder is found by its name; the mapping is by name, the hash from the generated code."""
    name = "triton_poi_fused_0"
    folder = tmp_path / "torch_compile_debug" / "run" / "torchinductor" / "model__0"
    folder.mkdir(parents=True)
    (folder / "inductor_provenance_tracking_node_mappings.json").write_text(
        json.dumps({"cppCodeToPost": {f"{name}:3": ["add_1", "relu"]}})
    )
    (folder / "fx_graph_readable.py").write_text(
        "        # File: /home/me/model.py:12 in forward, code: y = relu(x + 1)\n"
        '        add_1: "f32[8]" = torch.ops.aten.add.Tensor(arg0_1, 1)\n'
        '        relu: "f32[8]" = torch.ops.aten.relu.default(add_1)\n'
    )
    (folder / "output_code.py").write_text(
        f"# kernel path: /tmp/x/aa/{HASHES['a']}.py\n"
        "# Topologically Sorted Source Nodes: [add_1], Original ATen: [aten.add]\n"
        f"{name} = async_compile.triton('{name}', '''\n'''')\n"
    )
    found, _ = table(tmp_path, compiled(tmp_path, (name, HASHES["a"]), (name, HASHES["b"])))
    row = found.loc[name, HASHES["a"]]
    assert (row["fused_ops"], row["ops_rule"]) == ("aten.add aten.relu", "provenance")
    assert (row["source"], row["source_rule"]) == ("model.py:12 forward", "provenance")


def test_the_shared_compiled_block(table, shared_data, tmp_path):
    trace = shared_data / "captures" / "graphs" / "torch_compile_triton" / "trace.json.gz"
    found, _ = table(tmp_path, trace)
    assert len(found) == 4 and set(found["ops_rule"]) == {"name"}
    name = "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1"
    row = found.loc[name].iloc[0]
    assert row["fused_ops"] == "_unsafe_view add mean mul pow rsqrt"
    assert (row["block_sizes"], row["num_warps"]) == ("XBLOCK=2,R0_BLOCK=2048", 8)
    assert row["dur_sum_us"] == 90.653


def test_a_replayed_model_has_the_line_of_its_generated_code(table, shared_data, tmp_path):
    home = shared_data / "captures" / "graphs" / "vllm_decode_full"
    found, _ = table(tmp_path, home / "graph_execution.json.gz", "--capture", home / "capture_traces")
    rows = found.reset_index().set_index("kernel")
    assert rows.loc["triton_poi_fused__to_copy_1", "count"] == 23
    assert rows.loc["triton_poi_fused__to_copy_1", "source"].endswith(".py:232 call")
    assert (rows["source_rule"] == "stack").all()
    assert rows.loc["triton_poi_fused_0", "ops_rule"] == "none"


def test_the_chart_names_the_model_s_line_as_inductor_tells_it_else_the_generated_file(tmp_path):
    name = "triton_poi_fused_0"
    trace = compiled(tmp_path, (name, HASHES["a"]), ("triton_poi_fused_1", HASHES["b"]))
    folder = tmp_path / "torch_compile_debug"
    folder.mkdir()
    (folder / "inductor_provenance_tracking_node_mappings.json").write_text(
        json.dumps({"cppCodeToPost": {name: ["add"]}})
    )
    (folder / "inductor_provenance_tracking_kernel_stack_traces.json").write_text(
        json.dumps({name: ['File "/home/me/net.py", line 31, in forward\n  x + 1']})
    )
    bars = bars_of(catalogue_of(trace))
    names = [bars.names[one] for one in bars.name]
    sources = [bars.texts[one] if one >= 0 else "" for one in bars.labels["source"]]
    assert dict(zip(names, sources, strict=True)) == {
        name: "net.py:31 forward",
        "triton_poi_fused_1": f"{HASHES['b']}.py",
    }
