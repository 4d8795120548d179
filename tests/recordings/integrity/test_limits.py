"""Rule B: what is faster than its board can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.recordings.capture import Device
from lab.recordings.integrity.physics import limit_lacks
from lab.recordings.load import load_capture
from tests.simulator.figures import lab
from tests.simulator.kineto import write_kineto
from tests.simulator.program import Copy, Op, Program, step
from tests.simulator.writers import FORMATS

# On an H100 (989 TFLOP/s) a product of 137 GFLOP takes 139 us at least.
SIZES = (4096, 4096, 4096)


def findings(tmp_path, *actions):
    job = Program((step(3, *actions),)).play()
    return [
        lack for lack in load_capture(write_kineto(job, tmp_path / "trace.json")).lacks if lack.rule == "B"
    ]


@pytest.mark.parametrize("kernels_ns", [(150_000,), (75_000,), (60_000, 12_000)])
def test_a_product_within_twice_the_peak_is_possible(kernels_ns, tmp_path):
    assert not findings(tmp_path, Op(kernels_ns, SIZES))


def test_a_product_beyond_twice_the_peak_is_not(tmp_path):
    (lack,) = findings(tmp_path, Op((60_000,), SIZES), Op((150_000,), SIZES), Op((60_000,)))
    assert (lack.axis, lack.n, lack.of, lack.unknown) == ("gpu", 1, 2, True)
    assert "up to 2.31 times its peak" in lack.text


def test_a_copy_from_the_host_cannot_beat_the_gpus_memory(tmp_path):
    assert not findings(tmp_path, Copy(1_000, 6_600_000))
    (lack,) = findings(tmp_path, Copy(1_000, 6_800_000), Copy(1_000, 6_800_000, fill=True))
    assert (lack.n, lack.of) == (1, 1)  # a fill of this size may run in the cache
    assert not findings(tmp_path, Copy(20_000, 250_000_000, fill=True))
    (lack,) = findings(tmp_path, Copy(40_000, 1 << 29, fill=True))
    assert lack.n == 1


def test_an_unknown_board_has_no_limit(tmp_path):
    job = Program((Op((1_000,), SIZES),)).play()
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "numSms": 16}]}
    capture = load_capture(write_kineto(job, tmp_path / "trace.json", head=head))
    assert capture.devices[0].name.endswith("1g.10gb") and not limit_lacks(capture)
    part = Device(0, "NVIDIA H100 80GB HBM3", num_sms=16)  # a slice that has the name of the board
    assert not any(lack.rule == "B" for lack in limit_lacks(replace(capture, devices=(part,))))


@pytest.mark.parametrize(("name", "megabytes"), [("nsys", 6), ("rocprofv3", 10)])
def test_copies_of_every_recorder_are_judged(name, megabytes, tmp_path):
    form = FORMATS[name]
    job = Program((Copy(1_000, megabytes * 10**6), Copy(1_000, megabytes * 10**6 + 10**6))).play(amd=form.amd)
    (lack,) = load_capture(form.write(job, tmp_path / form.file)).lacks
    assert (lack.rule, lack.n, lack.of) == ("B", 1, 2)


@pytest.mark.parametrize("command", ["inspect", "nsys summary", "kernels unique -o {}", "analyze -q -o {}"])
def test_impossible_durations_make_bounds_and_exit_code_1(command, tmp_path):
    path = write_kineto(Program((step(3, Op((1_000,), SIZES)),)).play(), tmp_path / "trace.json")
    answer = lab(command.format(tmp_path / "out"), path)
    assert answer.code == 1 and "at least" in answer.stdout
