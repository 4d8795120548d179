"""Inductor's kernels: the operators in a name, and what torch.compile left in its files."""

from __future__ import annotations

import json

import pytest

from lab.errors import MissingError
from lab.recordings.compiled import (
    Origin,
    fused_ops,
    is_inductor,
    name_of_category,
    read_inductor,
    read_provenance,
)

HASH = "c" + "q" * 51
COMMENTS = f"""
# kernel path: /tmp/torchinductor_me/cq/{HASH}.py
# Topologically Sorted Source Nodes: [y, linear], Original ATen: [aten.add, aten.mul]
# Source node to ATen node mapping:
#   linear => mul_1
#   y => add
triton_poi_fused_add_mul_0 = async_compile.triton('triton_poi_fused_add_mul_0', '''
"""
GRAPH = """
        # File: /home/me/model.py:6 in forward, code: y = x + 1
        add: "f32[8, 64]" = torch.ops.aten.add.Tensor(arg0_1, 1);  arg0_1 = None
        # File: /usr/lib/python3/site-packages/torch/nn/functional.py:3006 in rms_norm, code: return x
        mul_1: "f32[8, 64]" = torch.ops.aten.mul.Tensor(add, 2)
"""


def test_the_comment_above_a_kernel_gives_its_ops_and_the_graph_its_lines(tmp_path):
    (tmp_path / "output_code.py").write_text(COMMENTS)
    (tmp_path / "fx_graph_readable.py").write_text(GRAPH)
    found = read_provenance([tmp_path]).of("triton_poi_fused_add_mul_0", HASH)
    assert found == Origin("comment", ("aten.add", "aten.mul"), ("model.py:6 forward",))


def test_the_mapping_of_nodes_is_better_than_the_comment(tmp_path):
    (tmp_path / "output_code.py").write_text(COMMENTS.replace("[aten.add, aten.mul]", "[aten.other]"))
    (tmp_path / "fx_graph_readable.py").write_text(GRAPH)
    mapping = {"cppCodeToPost": {"triton_poi_fused_add_mul_0:5": ["mul_1", "add"]}}
    (tmp_path / "inductor_provenance_tracking_node_mappings.json").write_text(json.dumps(mapping))
    found = read_provenance([tmp_path]).of("triton_poi_fused_add_mul_0", HASH)
    assert (found.rule, found.ops) == ("provenance", ("aten.add", "aten.mul"))


def test_stack_traces_give_lines_where_no_graph_was_printed(tmp_path):
    name = "triton_poi_fused_add_mul_0"
    mapping = {"cppCodeToPost": {f"{name}:1": ["add"]}}
    (tmp_path / "inductor_provenance_tracking_node_mappings.json").write_text(json.dumps(mapping))
    stack = '  File "/home/me/model.py", line 9, in forward\n    y = x + 1\n'
    stacks = {f"{name}:1": [stack]}
    (tmp_path / "inductor_provenance_tracking_kernel_stack_traces.json").write_text(json.dumps(stacks))
    assert read_provenance([tmp_path]).of(name, "").lines == ("model.py:9 forward",)


def test_graphs_that_disagree_on_a_name_answer_by_hash_only(tmp_path):
    for folder, op in (("one", "aten.add"), ("two", "aten.mul")):
        (tmp_path / folder).mkdir()
        text = COMMENTS.replace("[aten.add, aten.mul]", f"[{op}]")
        hash_ = HASH if folder == "one" else "c" + "w" * 51
        (tmp_path / folder / "output_code.py").write_text(text.replace(HASH, hash_))
    found = read_provenance([tmp_path])
    assert found.of("triton_poi_fused_add_mul_0", HASH).ops == ("aten.add",)
    assert found.of("triton_poi_fused_add_mul_0", "") is None


def test_damaged_files_links_and_foreign_json_are_passed_over(tmp_path):
    (tmp_path / "a_provenance_tracking_node_mappings.json").write_text("[" * 100_000)
    (tmp_path / "b_provenance_tracking_node_mappings.json").write_text('{"cppCodeToPost": 3}')
    (tmp_path / "c.py").write_bytes(b"\xff\xfe# kernel path: \xff")
    (tmp_path / f"{HASH}.py").symlink_to("/etc/passwd")
    found = read_provenance([tmp_path])
    assert not found.by_name
    with pytest.raises(MissingError):
        read_provenance([tmp_path / "absent"])


def test_kernels_without_a_sound_hash_are_not_taken(tmp_path):
    def op(external_id, **args):
        return {
            "ph": "X",
            "cat": "cpu_op",
            "name": "triton_poi_fused_0",
            "args": {"External id": external_id, **args},
        }

    events = [
        op(1, kernel_hash=HASH, num_warps=4, kernel_kwargs="XBLOCK=8"),
        op(2, kernel_hash="../../etc/passwd"),
        op(3, kernel_hash=7),
        op(4, kernel_hash=HASH, num_warps="many"),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = read_inductor(path)
    assert {index: (one.hash, one.num_warps) for index, one in found.items()} == {1: (HASH, 4), 4: (HASH, -1)}


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1", "_unsafe_view add mean mul pow rsqrt"),
        ("triton_poi_fused__to_copy_1", "_to_copy"),
        ("triton_per_fused__softmax__to_copy_native_layer_norm_12", "_softmax _to_copy native_layer_norm"),
        ("triton_poi_fused_0", ""),
        (
            "triton_poi_fused_add_masked_fill_native_layer_norm_backward_3",
            "add masked_fill native_layer_norm_backward",
        ),
        ("triton_tem_fused_mm_7", "mm"),
        ("attn_fwd", ""),
    ],
)
def test_names_are_cut_at_operators(name, ops):
    assert " ".join(fused_ops(name)) == ops


def test_operators_of_the_recording_are_known_too():
    name = "triton_poi_fused_constant_pad_nd_moe_forward_0"
    assert fused_ops(name) == ("constant_pad_nd", "moe", "forward")
    assert fused_ops(name, ["moe_forward"]) == ("constant_pad_nd", "moe_forward")


def test_only_inductors_names_are_taken_for_its_kernels():
    assert is_inductor("triton_red_fused_add_0") and name_of_category("triton_red_fused_add_0") == "reduction"
    assert not is_inductor("kernel_unified_attention_2d") and name_of_category("attn_fwd") == ""
