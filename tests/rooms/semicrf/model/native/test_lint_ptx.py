"""The race lint on small kernels whose races are known."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lab.errors import BadDataError  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.native import cuda_driver  # noqa: E402
from tests.rooms.semicrf.model.native.lint_ptx import kernels, lint  # noqa: E402

pytestmark = pytest.mark.torch
RING = """
extern "C" __global__ void __launch_bounds__(256) ring(float* buffer, float* out, int steps) {
    const int lane = threadIdx.x;
    float value = 0;
    for (int step = 0; step < steps; ++step) {
        value = buffer[(step + 1) % 2 * 256 + (lane + 1) % 256] + 1;
        BARRIER
        buffer[step % 2 * 256 + lane] = value;
        BARRIER
    }
    out[lane] = value;
}
"""
ATOMIC = """
extern "C" __global__ void __launch_bounds__(256) sum(float* out, const float* values) {
    atomicAdd(out + threadIdx.x % 2, values[threadIdx.x]);
}
"""
COPY = """
extern "C" __global__ void __launch_bounds__(256) copy(const float* values, float* out, int steps) {
    for (int step = 0; step < steps; ++step) out[step * 256 + threadIdx.x] = values[step * 256 + threadIdx.x];
}
"""


def ptx_of(source, defines=None):
    path = cuda_driver.find_nvrtc()
    if path is None:
        pytest.skip("no libnvrtc here (LAB_NVRTC names one)")
    return cuda_driver.compiled(path, source, "compute_75", defines or {}).decode()


def hazards(source, defines=None):
    """All hazards of each kernel of a source."""
    return {name: lint(piece, names) for name, piece, names in kernels(ptx_of(source, defines), source)}


def kinds(source):
    (found,) = hazards(source).values()
    return {(hazard.kind, hazard.argument) for hazard in found}


def test_a_racy_ring_is_flagged_and_names_its_buffer():
    found = kinds(RING.replace("BARRIER", ""))
    assert {("RAW", "buffer"), ("WAR", "buffer"), ("WAW", "buffer")} <= found
    assert not any(argument == "out" for _, argument in found)


def test_the_same_ring_with_barriers_passes():
    assert kinds(RING.replace("BARRIER", "__syncthreads();")) == set()


def test_an_atomic_is_flagged_for_its_order():
    assert ("atomic", "out") in kinds(ATOMIC)


def test_reading_one_buffer_and_writing_another_is_no_race():
    assert not {kind for kind, _ in kinds(COPY)} & {"RAW", "WAR", "atomic"}


def test_a_hazard_says_what_reaches_what():
    (found,) = hazards(RING.replace("BARRIER", "")).values()
    assert any(str(hazard).startswith("RAW on buffer: store at line ") for hazard in found)


def serious(found):
    """Pairs that could be of two threads: a store met again around a loop is another row, and what a stage
    takes up and puts down, and a slot of the ring, is each thread's own.
    """
    return [
        hazard
        for hazard in found
        if hazard.kind != "WAW"
        and not (hazard.kind == "WAR" and hazard.argument.startswith("stage_"))
        and hazard.argument not in ("ring", "spans")
    ]


@pytest.mark.parametrize("labels, dtype", [(24, torch.float32), (40, torch.float64)], ids=str)
def test_no_kernel_has_an_unordered_pair_or_an_atomic(labels, dtype):
    defines = native_cuda.defines(dtype, native_cuda.SIZES.padded(labels), native_cuda.SIZES)
    found = hazards(native_cuda.SOURCE.read_text(), defines)
    assert len(found) >= 15 and not [str(h) for pairs in found.values() for h in serious(pairs)]


def test_the_passes_are_flagged_without_the_barrier_between_blocks():
    text = native_cuda.SOURCE.read_text()
    barrier = "        __syncthreads(); // the next block's far part"
    assert text.count(barrier) == 1
    without = text.replace(barrier, "        // the next block's far part").replace(
        "        __syncthreads();\n        if (slice == 0) {", "        if (slice == 0) {"
    )
    defines = native_cuda.defines(torch.float32, 32, native_cuda.SIZES) | {"LABELS_SYNC()": ""}
    found = hazards(without, defines)["messages"]
    assert ("RAW", "gathered") in {(hazard.kind, hazard.argument) for hazard in found}


PAIR = """.visible .entry k(.param .u64 k_param_0)
.reqntid {threads}
{{
ld.param.b64 %rd1, [k_param_0];
st.global.b32 [%rd1], %r1;
bar.warp.sync -1;
ld.global.b32 %r2, [{address}];
ret;
}}
"""


@pytest.mark.parametrize("threads, flagged", [(32, set()), (64, {("RAW", "buffer")})])
def test_a_barrier_within_a_warp_orders_one_warp_only(threads, flagged):
    found = lint(PAIR.format(threads=threads, address="%rd1"), ["buffer"])
    assert {(hazard.kind, hazard.argument) for hazard in found} == flagged


def test_an_address_that_comes_from_no_argument_is_not_called_clean():
    found = lint(PAIR.format(threads=32, address="%rd9"), ["buffer"])
    assert [hazard.kind for hazard in found] == ["untraced"]
    assert str(found[0]) == "load at line 7: no argument is known that it points into"


def test_text_without_a_kernel_is_refused():
    with pytest.raises(BadDataError, match="no kernel"):
        lint("// nothing here\n")
