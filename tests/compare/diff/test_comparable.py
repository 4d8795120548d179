"""What only one side recorded makes no difference: ops, shapes, API calls, another way to write names."""

from __future__ import annotations

import json

import pytest

from lab.compare.diff.comparison import compare
from lab.compare.side import plain_name
from tests.compare.diff.test_comparison import BASE, adds_up
from tests.compare.made import trace
from tests.recordings.sqlgen import Export

NORM_KINETO = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float, false>"
    "(int, float, c10::Half const*, float*)"
)
NORM_NSYS = (
    "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::Half, float, (bool)0>"
    "(int, T2, const T1 *, T2 *)"
)
GELU_KINETO = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl("
    "at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::"
    "{lambda(float)#1}, std::array<char*, 2ul> >"
    "(int, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#2})"
)
GELU_NSYS = (
    "void at::native::vectorized_elementwise_kernel<(int)8, at::native::GeluCUDAKernelImpl("
    "at::TensorIteratorBase &, at::native::GeluType)::[lambda() (instance 2)]::operator ()() const::"
    "[lambda(float) (instance 1)], "
    "std::array<char *, (unsigned long)2>>(int, T2, T3)"
)


@pytest.mark.parametrize(("kineto", "nsys"), [(NORM_KINETO, NORM_NSYS), (GELU_KINETO, GELU_NSYS)])
def test_both_ways_to_write_a_kernels_name_are_one(kineto, nsys):
    assert plain_name(kineto) == plain_name(nsys)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("spin_kernel(long)", "spin_kernel"),
        ("nvjet_sm90_tst_64x64", "nvjet_sm90_tst_64x64"),
        ("Memcpy DtoD (Device -> Device)", "memcpy D-D"),
        ("void f<4>(int)", "f<4>"),
        ("", ""),
        ("(int)4", "4"),
    ],
)
def test_a_plain_name_loses_arguments_casts_and_blanks_only(name, plain):
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        (("Memset (Device)", "[CUDA memset]", "Memset (Unknown)"), "memset"),
        (("Memcpy HtoD (Pageable -> Device)", "[CUDA memcpy Host-to-Device]"), "memcpy H-D"),
        (("Memcpy DtoH (Device -> Pinned)", "CopyDeviceToHost", "MEMORY_COPY_DEVICE_TO_HOST"), "memcpy D-H"),
        (("Memcpy PtoP (Device -> Device)", "[CUDA memcpy Peer-to-Peer]"), "memcpy P-P"),
    ],
)
def test_copies_and_fills_have_one_name_in_every_tool(names, plain):
    assert {plain_name(name) for name in names} == {plain}
    assert plain_name("[CUDA memcpy kind 77]") == "[CUDAmemcpykind77]"


def test_copies_and_fills_of_nsys_and_torch_profiler_are_the_same(tmp_path):
    """As both tools record a program whose kernels have plain names: only the copies tell them apart."""
    export, at = Export(), (1, 1)
    steps = [[("", [], "gemm", 40.0), ("", [], "Memcpy HtoD (Pageable -> Device)", 5.0)]] * 4
    for number in range(4):
        begin = number * 1_000_000
        export.range(f"step_{number}", at, begin, begin + 990_000)
        export.launch("gemm", at, (begin + 6_000, begin + 7_000), (begin + 50_000, begin + 90_000))
        copied = begin + 90_000, begin + 95_000
        export.copy(at, (begin + 10_000, begin + 11_000), copied, size=64)
    a = trace(tmp_path / "a.json", steps, prefix="step_")
    whole = json.loads(a.read_text())
    for event in whole["traceEvents"]:
        event["cat"] = "gpu_memcpy" if event["name"].startswith("Memcpy") else event["cat"]
    a.write_text(json.dumps(whole))
    found = compare(a, export.write(tmp_path / "b.sqlite")).shown
    assert {one.kind for one in found.findings} == {"api"} and found.parts["other_kernel"] == 0
    assert any("are written in two ways" in note for note in found.notes)
    same = compare(a, a).shown
    assert "Memcpy HtoD (Pageable -> Device)" in {row.kernel_a for row in same.rows}


def test_templates_that_differ_stay_apart():
    assert plain_name(NORM_NSYS) != plain_name(NORM_NSYS.replace("(bool)0", "(bool)1"))
    assert plain_name("void f<4>(int)") != plain_name("void f<8>(int)")


def without(tmp_path, keep, change=lambda event: None):
    whole = json.loads(trace(tmp_path / "whole.json", BASE).read_text())
    whole["traceEvents"] = [event for event in whole["traceEvents"] if keep(event)]
    for event in whole["traceEvents"]:
        change(event)
    path = tmp_path / "less.json"
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.parametrize("turned", [False, True])
def test_ops_on_one_side_only_are_left_out_and_said(tmp_path, turned):
    pair = [trace(tmp_path / "a.json", BASE), without(tmp_path, lambda event: event["cat"] != "cpu_op")]
    found = compare(*reversed(pair) if turned else pair).shown
    adds_up(found)
    assert found.comparable and found.findings == [] and set(found.parts.values()) == {0.0}
    assert any(f"{'A' if turned else 'B'} records no ops" in note for note in found.notes)


def test_shapes_on_one_side_only_are_left_out_and_said(tmp_path):
    less = without(tmp_path, lambda _: True, lambda event: event["args"].pop("Input Dims", None))
    found = compare(trace(tmp_path / "a.json", BASE), less).shown
    assert found.comparable and found.findings == []
    assert any("B records no shapes" in note for note in found.notes)


def test_api_calls_on_one_side_only_are_not_compared(tmp_path):
    less = without(tmp_path, lambda event: event["cat"] not in ("cuda_runtime", "cpu_op"))
    found = compare(trace(tmp_path / "a.json", BASE), less).shown
    assert [one.kind for one in found.findings] == []
    assert any("B records no API calls" in note for note in found.notes)


def test_steps_on_one_side_only_are_said(tmp_path):
    less = without(tmp_path, lambda event: event["cat"] != "user_annotation")
    found = compare(trace(tmp_path / "a.json", BASE), less).shown
    assert found.unit == "call of gemm_128" and any("only A marks steps" in note for note in found.notes)


def test_of_two_tools_functions_that_one_of_them_does_not_record_are_not_named(tmp_path):
    steps, other = ([[("", [], name, 40.0)]] * 4 for name in (GELU_KINETO, GELU_NSYS))
    a = trace(tmp_path / "a.json", steps, prefix="step_", calls=[(0, "cudaStreamIsCapturing")])
    created = nsys_of(tmp_path / "b.sqlite", other, calls=("cudaEventCreate_v3020",))
    found = compare(a, created).shown
    assert found.findings == [] and {"cudaEventCreate", "cudaStreamIsCapturing"} < {
        one.name for one in found.api
    }
    assert any(note.startswith("recorded by two tools") for note in found.notes)
    waits = nsys_of(tmp_path / "c.sqlite", other, calls=("cudaDeviceSynchronize_v3020",))
    assert [one.call for one in compare(a, waits).shown.findings] == ["cudaDeviceSynchronize"]


def nsys_of(path, steps, calls=()):
    """The same steps as an export of nsys: ranges `step_N`, names in nsys' way, no ops."""
    export, at = Export(), (1, 1)
    for number, launches in enumerate(steps):
        begin = number * 1_000_000
        export.range(f"step_{number}", at, begin, begin + 990_000)
        gpu = begin + 50_000
        for index, (_, _, kernel, dur_us) in enumerate(launches):
            cpu = begin + 5_000 + 4_000 * index
            ran = (gpu, gpu + round(1000 * dur_us))
            export.launch(kernel, at, (cpu, cpu + 1_000), ran)
            gpu = ran[1]
        for name in calls:
            export.call(name, at, (begin + 900_000, begin + 902_000))
    return export.write(path)


def test_nsys_against_torch_profiler_of_the_same_program(tmp_path):
    names = {"relu": (GELU_KINETO, GELU_NSYS), "gemm_128": (NORM_KINETO, NORM_NSYS)}

    def named(which, scale=1.0):
        return [
            [
                (op, dims, names.get(k, (k, k))[which], us * (scale if k == "gemm_128" else 1))
                for op, dims, k, us in s
            ]
            for s in BASE
        ]

    a = trace(tmp_path / "a.json", named(0), prefix="step_")
    equal = compare(a, nsys_of(tmp_path / "b.sqlite", named(1))).shown
    adds_up(equal)
    assert (equal.unit, equal.units_a, equal.units_b) == ("step", 4, 4)
    assert equal.findings == [] and equal.delta_kernel_ns == pytest.approx(0)
    slow = compare(a, nsys_of(tmp_path / "c.sqlite", named(1, 1.1))).shown
    assert [one.kind for one in slow.findings] == ["same_kernel_duration"]
    assert slow.delta_kernel_ns == pytest.approx(8000) and "layer_norm" in slow.findings[0].text


def test_holes_among_launches_or_operators_are_carried_into_the_diff(tmp_path):
    whole = json.loads(trace(tmp_path / "a.json", BASE).read_text())
    calls = [event for event in whole["traceEvents"] if event["cat"] == "cuda_runtime"]
    whole["traceEvents"].remove(calls[len(calls) // 2])
    lossy = tmp_path / "lossy.json"
    lossy.write_text(json.dumps(whole))
    found = compare(tmp_path / "a.json", lossy)
    assert len(found.blurred) == 1 and found.blurred[0].startswith("lossy.json: host: 1 of 32")
    assert found.torn == []


def ranged(path, *, calls=8):
    """Eight products of nsys, each in a range of its op; without the calls of those after `calls`."""
    export, at = Export(), (1, 1)
    for number in range(8):
        begin = number * 100_000
        export.range(f"aten::mm, op_id = {number}", at, begin, begin + 9_000)
        run = begin + 50_000, begin + 90_000
        if number < calls:
            export.launch("gemm", at, (begin + 6_000, begin + 7_000), run)
        else:
            export.kernel("gemm", 1, run, 100 + number)
    return export.write(path)


def test_calls_that_one_side_lost_at_an_edge_take_the_ops_with_them_and_that_is_said(tmp_path):
    a, b = ranged(tmp_path / "a.sqlite"), ranged(tmp_path / "b.sqlite", calls=5)
    (blurred,) = compare(a, b).blurred
    assert blurred.startswith("b.sqlite: 37.5% of GPU time has no known op")
    assert blurred.endswith("and 0.0% on the other side")
    assert compare(a, a).blurred == compare(b, b).blurred == []
