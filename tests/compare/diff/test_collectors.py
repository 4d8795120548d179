"""One program, as each collector records it: every planted change is named alone and in its size."""

from __future__ import annotations

import random

import pytest

from lab.compare.diff.comparison import compare
from tests.compare.made import trace
from tests.recordings.rocpdgen import GUIDS, Process
from tests.recordings.rocpdgen import write as write_rocpd
from tests.recordings.rpdgen import Rpd
from tests.recordings.sqlgen import Export

STEP_NS = 1_000_000
WAIT = {"kineto": "cudaDeviceSynchronize", "nsys": "cudaDeviceSynchronize_v3020"}
KERNELS = (("gemm_128", 80), ("elementwise", 12), ("softmax", 30), ("relu", 9)) * 2  # µs
SCATTER = 0.003


def program(seed, *, slow=1.0, swap=False, added=False, gap_us=0.0):
    """Six steps of (kernel, µs, idle µs before it): `slow` and `swap` are of softmax, `added` a relu more."""
    generator = random.Random(seed)
    found = []
    for _ in range(6):
        step = []
        for at, (kernel, us) in enumerate(KERNELS):
            us *= generator.uniform(1 - SCATTER, 1 + SCATTER) * (slow if kernel == "softmax" else 1)
            name = "softmax_other" if swap and kernel == "softmax" else kernel
            step.append((name, round(us, 3), gap_us if at == 4 else 0.0))
        found.append([*step, ("relu", 9.0, 0.0)] if added else step)
    return found


def rows(steps):
    """(step, kernel, its launch, its run), ns: launches in time, so that a gap is the GPU's alone."""
    for number, launches in enumerate(steps):
        gpu = number * STEP_NS + 100_000
        for at, (kernel, us, gap_us) in enumerate(launches):
            call = number * STEP_NS + 5_000 + 4_000 * at
            gpu += round(1000 * gap_us)
            ran = gpu, gpu + round(1000 * us)
            yield number, kernel, (call, call + 1_000), ran
            gpu = ran[1]


def kineto(path, steps, waits):
    launches = [[("", [], kernel, us, gap) for kernel, us, gap in step] for step in steps]
    calls = [(number, WAIT["kineto"]) for number in range(len(steps))] if waits else []
    return trace(path.with_suffix(".json"), launches, calls=calls)


def nsys(path, steps, waits):
    export, at = Export(), (1, 1)
    for number in range(len(steps)):
        export.range(f"step_{number}", at, number * STEP_NS, (number + 1) * STEP_NS - 10_000)
        if waits:
            export.call(WAIT["nsys"], at, (number * STEP_NS + 900_000, number * STEP_NS + 902_000))
    for _, kernel, call, run in rows(steps):
        export.launch(kernel, at, call, run)
    return export.write(path.with_suffix(".sqlite"))


def rocpd(path, steps, waits):
    process, stack = Process(GUIDS[0], 5), 1
    for number in range(len(steps)):
        process.mark(f"step_{number}", (number * STEP_NS, (number + 1) * STEP_NS - 10_000), 10_000 + number)
        if waits:
            at = number * STEP_NS + 900_000
            process.call("hipDeviceSynchronize", (at, at + 2_000), 20_000 + number)
    for _, kernel, call, run in rows(steps):
        process.launch(kernel, call, run, stack)
        stack += 1
    return write_rocpd(path.with_suffix(".db"), process)


def rpd(path, steps, waits):
    made = Rpd()
    for number in range(len(steps)):
        args = f"step_{number}"
        made.call("UserMarker", (number * STEP_NS, (number + 1) * STEP_NS - 10_000), args=args)
        if waits:
            at = number * STEP_NS + 900_000
            made.call("hipDeviceSynchronize", (at, at + 2_000))
    for _, kernel, call, run in rows(steps):
        made.kernel(kernel, call, run)
    return made.write(path.with_suffix(".rpd"))


COLLECTORS = pytest.mark.parametrize("record", [kineto, nsys, rocpd, rpd], ids=lambda one: one.__name__)


def between(record, tmp_path, *, waits=False, **plants):
    a = record(tmp_path / "a", program(1), False)
    found = compare(a, record(tmp_path / "b", program(2, **plants), waits)).shown
    assert found.unit == "step" and (found.units_a, found.units_b) == (6, 6)
    assert sum(found.parts.values()) == pytest.approx(found.delta_kernel_ns) and abs(found.residual_ns) < 1
    return found


@COLLECTORS
@pytest.mark.parametrize(
    ("plants", "kind", "words", "ns"),
    [
        ({"slow": 1.05}, "same_kernel_duration", "softmax", 3_000),
        ({"added": True}, "count", "relu", 9_000),
        ({"gap_us": 40.0}, "idle", "", 40_000),
        ({"waits": True}, "api", "DeviceSynchronize: 0 -> 1 calls", None),
    ],
    ids=["slow", "added", "gap", "waits"],
)
def test_what_was_planted_is_named_alone_with_its_size(record, tmp_path, plants, kind, words, ns):
    # A launch more is a call more, too, under each tool's name of it.
    named = [one for one in between(record, tmp_path, **plants).findings if "LaunchKernel" not in one.text]
    assert [one.kind for one in named] == [kind] and words in named[0].text.replace("_v3020", "")
    assert named[0].ns == (None if ns is None else pytest.approx(ns, rel=0.1))


@COLLECTORS
def test_another_kernel(record, tmp_path):
    found = between(record, tmp_path, swap=True)
    assert {one.kind for one in found.findings} <= {"other_kernel", "op_gone", "op_new", "replaced_block"}
    named = " ".join(one.text for one in found.findings)
    assert "softmax_other" in named and not {"gemm", "relu", "elementwise"} & set(named.split())
    assert abs(found.delta_kernel_ns) < 1_500


@COLLECTORS
def test_of_equal_pairs_none_names_anything(record, tmp_path):
    for seed in range(3):
        a, b = record(tmp_path / "a", program(seed), False), record(tmp_path / "b", program(50 + seed), False)
        assert compare(a, b).shown.findings == []
        a.unlink()
        b.unlink()
