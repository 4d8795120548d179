"""The race lint on every kernel, compiled for an H100 as the backend launches it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.rooms.semicrf.model.triton import backend as triton_backend  # noqa: E402
from lab.rooms.semicrf.model.triton import best_path  # noqa: E402
from lab.rooms.semicrf.model.triton import linear as kernels  # noqa: E402
from tests.rooms.semicrf.model.triton.launches import Recorder, entries  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
SMALL = {"N": 4, "STAGE": 2, "COUNT_FRAMES": 16, "supports": lambda problem: None}
"""Short blocks: the same code with fewer rows to compile."""
LABELS = (24, 40)
"""One warp, and two."""


@pytest.fixture(scope="module")
def launches():
    """What the backend launches for short and for staged durations, by number of labels."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(triton_backend, name, value)
        patch.setattr(best_path, "BEST_N", 2)
        for labels in LABELS:
            recorder = Recorder(kernels)
            patch.setattr(triton_backend, "kernels", recorder)
            patch.setattr(best_path, "kernels", recorder)
            for longest in (3, 30):
                problem = random_problem(2, 40, longest, labels, dtype=torch.float32)
                triton_backend.backward(triton_backend.forward(problem))
                triton_backend.forward(problem, keep=False)
                reach = triton_backend.weigh(problem, saturate=True)
                triton_backend.run_messages(problem, reach, 2, keep=False, saturate=True)
                best_path.viterbi(problem)
            found[labels] = sorted(recorder.seen, key=str)
    return found


@pytest.mark.parametrize("labels", LABELS)
def test_every_kernel_is_launched_and_none_gets_one_buffer_under_two_names(launches, labels):
    assert {launch.kernel for launch in launches[labels]} == entries(kernels)
    assert not any(launch.aliases for launch in launches[labels])


def hazards(found):
    return [
        f"{one.kernel} {dict(one.constants)}: {hazard}" for one in found for hazard in one.hazards(kernels)
    ]


def in_stages(launch):
    return bool(dict(launch.constants).get("STAGE")) and launch.kernel == "messages"


@pytest.mark.parametrize("labels", LABELS)
def test_no_launch_has_an_unordered_pair(launches, labels):
    found = hazards(one for one in launches[labels] if not in_stages(one))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("labels", LABELS)
def test_no_launch_in_stages_has_an_unordered_pair(launches, labels):
    found = hazards(one for one in launches[labels] if in_stages(one))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["messages", "best_messages"])
def test_a_kernel_that_passes_blocks_through_memory_is_flagged_without_its_barrier(launches, name, tmp_path):
    path = tmp_path / "mutant.py"
    text = Path(kernels.__file__).read_text()
    path.write_text(re.sub(r"(?m)^ +tl\.debug_barrier\(\).*\n", "", text))
    assert path.read_text() != text
    spec = importlib.util.spec_from_file_location("mutant", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    launch = next(one for one in launches[24] if one.kernel == name)
    assert ("RAW", "gathered") in {(h.kind, h.argument) for h in launch.hazards(module)}
