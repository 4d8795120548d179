"""The race lint on small kernels whose races are known."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl

from lab.errors import BadDataError
from tests.rooms.semicrf.model.triton.lint_ptx import compile_ptx, lint


@triton.jit
def ring(buffer, out, steps, BARRIER: tl.constexpr, SIZE: tl.constexpr):
    """Each step reads its neighbour's value of the step before: a race unless a barrier lies between."""
    lane = tl.arange(0, SIZE)
    value = tl.zeros([SIZE], tl.float32)
    for step in range(steps):
        value = tl.load(buffer + ((step + 1) % 2) * SIZE + (lane + 1) % SIZE) + 1.0
        if BARRIER:
            tl.debug_barrier()
        tl.store(buffer + (step % 2) * SIZE + lane, value)
        if BARRIER:
            tl.debug_barrier()
    tl.store(out + lane, value)


@triton.jit
def atomic(out, values, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.atomic_add(out + lane % 2, tl.load(values + lane))


@triton.jit
def copy(values, out, steps, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    for step in range(steps):
        tl.store(out + step * SIZE + lane, tl.load(values + step * SIZE + lane))


RING = {"buffer": "*fp32", "out": "*fp32", "steps": "i32", "BARRIER": "constexpr", "SIZE": "constexpr"}


def kinds(kernel, signature, constants):
    ptx = compile_ptx(kernel, signature, constants)
    names = [name for name, kind in signature.items() if kind != "constexpr"]
    return {(hazard.kind, hazard.argument) for hazard in lint(ptx, names)}


def test_a_racy_ring_is_flagged_and_names_its_buffer():
    found = kinds(ring, RING, {"BARRIER": False, "SIZE": 256})
    assert {("RAW", "buffer"), ("WAR", "buffer"), ("WAW", "buffer")} <= found
    assert not any(argument == "out" for _, argument in found)


def test_the_same_ring_with_barriers_passes():
    assert kinds(ring, RING, {"BARRIER": True, "SIZE": 256}) == set()


def test_an_atomic_is_flagged_for_its_order():
    found = kinds(atomic, {"out": "*fp32", "values": "*fp32", "SIZE": "constexpr"}, {"SIZE": 256})
    assert ("atomic", "out") in found


def test_reading_one_buffer_and_writing_another_is_no_race():
    signature = {"values": "*fp32", "out": "*fp32", "steps": "i32", "SIZE": "constexpr"}
    assert not {kind for kind, _ in kinds(copy, signature, {"SIZE": 256})} & {"RAW", "WAR", "atomic"}


def test_a_hazard_says_what_reaches_what():
    found = lint(compile_ptx(ring, RING, {"BARRIER": False, "SIZE": 256}), ["buffer", "out", "steps"])
    assert any(str(hazard).startswith("RAW on buffer: store at line ") for hazard in found)


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
