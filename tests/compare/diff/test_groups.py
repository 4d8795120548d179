"""The change by phase, module, op and kernel: each adds up to the whole."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from lab.compare.cli import diff as command
from lab.compare.diff.comparison import compare_sides
from lab.compare.diff.groups import DEEPEST, KINDS, NO_MODULE, NO_PHASE
from tests.compare.diff.test_comparison import SERVE, shared
from tests.compare.made import event, layer, trace

PHASE_OPS = 4  # of each layer: forward is the first, backward the second


def with_modules(path, *, layers=2, slow_layer=None, phases=True, modules=True):
    """Two steps of `layers` equal layers, forward then backward on a thread of its own."""
    steps = [[one for number in range(layers) for one in layer(1.5 if number == slow_layer else 1.0)]] * 2
    trace(path, steps)
    whole = json.loads(path.read_text()) | {"with_modules": int(modules)}
    for step in range(2):
        begin = step * 1000
        for number in range(layers):
            first = begin + 5 + 16.0 * number
            if modules:
                args = (1, 1)
                whole["traceEvents"] += [
                    event("python_function", f"nn.Module: Block_{number}", first - 0.5, 15.5, *args),
                    event("python_function", f"nn.Module: Linear_{number}", first - 0.25, 3.5, *args),
                ]
            if phases:
                name = "forward" if number < layers / 2 else "backward"
                whole["traceEvents"].append(event("user_annotation", name, first - 0.75, 15.9, 1, 1))
    path.write_text(json.dumps(whole))
    return path


def grouped(a, b, by=KINDS):
    return compare_sides(a, b, by=by).difference.shown


def test_every_grouping_adds_up_to_the_change_of_kernel_time(tmp_path):
    found = grouped(with_modules(tmp_path / "a.json"), with_modules(tmp_path / "b.json", slow_layer=1))
    assert found.delta_kernel_ns == pytest.approx(27_500)
    for name in KINDS:
        assert sum(one.change_ns for one in found.groups[name]) == pytest.approx(27_500), name
        assert sum(one.n_a for one in found.groups[name]) == pytest.approx(8), name


def test_the_slow_layer_is_found_in_its_module_and_phase(tmp_path):
    found = grouped(with_modules(tmp_path / "a.json"), with_modules(tmp_path / "b.json", slow_layer=1))
    phases = {one.key: one.change_ns for one in found.groups["phase"]}
    assert phases == {"backward": pytest.approx(27_500), "forward": pytest.approx(0)}
    modules = {one.key: one for one in found.groups["module"]}
    assert modules["backward / Block / Linear"].change_ns == pytest.approx(20_000)
    assert modules["backward / Block"].whole_change_ns == pytest.approx(27_500)
    assert modules["backward / Block"].change_ns == pytest.approx(7_500)


def test_phases_of_other_names_are_said_to_be_unknown(tmp_path):
    b = with_modules(tmp_path / "b.json")
    b.write_text(b.read_text().replace('"forward"', '"my_part"'))
    (note,) = [one for one in grouped(with_modules(tmp_path / "a.json"), b).notes if "phase" in one]
    assert re.fullmatch(r"B: (\d+)% of the kernel time is in no phase that is known by its name", note)


def test_a_side_without_modules_is_said_and_forced_into_nothing(tmp_path):
    a = with_modules(tmp_path / "a.json")
    found = grouped(a, with_modules(tmp_path / "b.json", modules=False, phases=False))
    assert any(note.startswith("B records no modules") for note in found.notes)
    assert any(note.startswith("B names no phase") for note in found.notes)
    rows = {one.key: (one.on, one.n_a, one.n_b) for one in found.groups["module"]}
    assert rows[NO_MODULE] == ("only in B", 0, 8)
    assert {one.key: one.on for one in found.groups["phase"]}[NO_PHASE] == "only in B"
    assert sum(one.change_ns for one in found.groups["module"]) == pytest.approx(found.delta_kernel_ns)


def test_a_backward_operation_lies_in_the_module_of_its_forward_operator(tmp_path):
    a = with_modules(tmp_path / "a.json", layers=1, phases=False)
    whole = json.loads(a.read_text())
    ops = [one for one in whole["traceEvents"] if one["cat"] == "cpu_op"]
    ops[0]["args"]["Sequence number"] = 7
    whole["traceEvents"].append(event("user_annotation", "backward", 500, 100, 1, 1))
    back = {"Sequence number": 7, "External id": 99, "Input Dims": [[64, 64]], "Input type": ["float"]}
    whole["traceEvents"] += [
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 520, 9, 1, 2, back),
        event("cuda_runtime", "cudaLaunchKernel", 522, 1, 1, 2, {"External id": 99, "correlation": 99}),
        event(
            "kernel", "dgrad", 600, 50, 0, 7, {"External id": 99, "correlation": 99, "device": 0, "stream": 7}
        ),
    ]
    a.write_text(json.dumps(whole))
    modules = {one.key: one.n_a for one in grouped(a, a).groups["module"]}
    assert modules["backward / Block / Linear"] == 0.5  # one in two steps


def test_modules_inside_each_other_beyond_all_measure_are_cut(tmp_path):
    a = with_modules(tmp_path / "a.json", layers=1, phases=False)
    whole = json.loads(a.read_text())
    deep = [
        event("python_function", f"nn.Module: M_{n}", 1 + n / 1000, 900 - n / 500, 1, 1) for n in range(3000)
    ]
    whole["traceEvents"] += deep
    a.write_text(json.dumps(whole))
    found = grouped(a, a)
    assert max(one.key.count(" / ") for one in found.groups["module"]) <= DEEPEST
    assert sum(one.n_a for one in found.groups["module"]) == pytest.approx(4)


def test_by_prints_all_rows_and_their_sum(tmp_path):
    a, b = with_modules(tmp_path / "a.json"), with_modules(tmp_path / "b.json", slow_layer=0)
    done = CliRunner().invoke(command, [str(a), str(b), "--by", "module", "--by", "op", "--top", "1"])
    assert done.exit_code == 0, done.output
    assert "Kernel time by module" in done.output and "3 further rows" in done.output
    assert [line.split()[-1] for line in done.output.splitlines() if line.strip().startswith("all ")] == [
        "–",
        "27.50",
    ]


@shared
@pytest.mark.parametrize(
    ("a", "b"), [("falconsai_h100", "falconsai_mi300"), ("qwen_h100", "qwen_mi300"), ("a_base01", "a_swap01")]
)
def test_on_the_golden_pairs_every_grouping_adds_up_within_a_thousandth(a, b):
    found = grouped(SERVE / f"{a}.json.gz", SERVE / f"{b}.json.gz")
    for name in KINDS:
        whole = sum(one.change_ns for one in found.groups[name])
        assert whole == pytest.approx(found.delta_kernel_ns, rel=1e-3), name


@shared
def test_of_a_real_pair_all_layers_are_one_row_and_the_slowest_parts_are_named():
    modules = {
        one.key: one
        for one in grouped(
            SERVE / "falconsai_h100.json.gz", SERVE / "falconsai_mi300.json.gz", ["module"]
        ).groups["module"]
    }
    layers = modules["ViTModel / ViTEncoder / ViTLayer x12"]
    assert (layers.on, layers.times) == ("both", 12)
    inner = modules["ViTModel / ViTEncoder / ViTLayer x12 / ViTSdpaAttention / ViTSdpaSelfAttention"]
    assert inner.change_ns == pytest.approx(251_800, rel=0.01)
    assert all(one.on == "both" for one in modules.values())
