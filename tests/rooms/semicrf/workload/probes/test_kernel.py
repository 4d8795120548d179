"""Kernels with a planted fault are named at the right probe, and sound ones are clean."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from lab.rooms.semicrf.model import api  # noqa: E402
from lab.rooms.semicrf.workload.probes.kernel import PROBES, Kernel, kernel_probes  # noqa: E402
from lab.rooms.semicrf.workload.probes.named import documented, parameters_of  # noqa: E402
from tests.rooms.semicrf.workload.probes.planted import scan  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
RIGHT = {
    "race": "same input, same bits",
    "transposed transitions": "transitions",
    "durations shifted": "durations",
    "longest dropped": "durations",
    "length ignored": "lengths",
    "mask too wide": "lengths",
    "mask by product": "padding and poisoned memory",
    "missing guard": "masks",
    "sentinel over the mask": "masks",
    "one scale for the batch": "batch order and size",
    "transition gradient": "gradients",
    "incoming gradient ignored": "gradients",
    "clamp at 80": "large scores",
    "stale ring": "longer than the ring",
    "float16 accumulates": "precision",
}


def first_failure(kernel):
    return next((row["probe"] for row in kernel_probes(kernel) if not row["clean"]), None)


def user_kernel(function):
    return documented("mine:kernel", function, CPU, parameters_of(function))


@pytest.mark.parametrize("fault", RIGHT)
def test_a_broken_kernel_is_named_at_the_probe_that_asks_for_it(fault):
    def kernel(score, transition, duration, lengths, start_C, end_C):
        return scan(score, transition, duration, lengths, start_C, end_C, fault=fault)

    assert first_failure(user_kernel(kernel)) == RIGHT[fault]


class Module(torch.nn.Module):
    def forward(self, score, transition, duration, lengths):
        return scan(score, transition, duration, lengths)


def in_float64(score, transition, duration, lengths):
    return scan(score.double(), transition.double(), duration.double(), lengths)


SOUND = {
    "float32": scan,
    "module": Module(),
    "float64": in_float64,
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_is_clean(name):
    rows = list(kernel_probes(user_kernel(SOUND[name])))
    assert [row["text"] for row in rows if not row["clean"]] == []
    assert len(rows) >= len(PROBES) - 2


def test_the_compiled_form_is_clean():
    kernel = Kernel("auto", partial(api.log_partition, backend="auto"), CPU)
    assert first_failure(kernel) is None


def test_what_is_no_partition_function_is_named():
    def two(score, transition, duration, lengths):
        return score.sum((1, 2)).repeat(2)

    def detached(score, transition, duration, lengths):
        return scan(score, transition, duration, lengths).detach()

    for function, words in ((two, "one number per sequence"), (detached, "has no gradient")):
        first = next(iter(kernel_probes(user_kernel(function))))
        assert not first["clean"] and words in first["text"]
