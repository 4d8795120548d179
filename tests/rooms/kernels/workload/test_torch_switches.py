"""Switches of torch are set and put back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.workload.torch_switches import read_switches, restored  # noqa: E402


def test_switches_are_set_for_the_replay_and_put_back():
    before = read_switches()["deterministic"]
    with restored({"deterministic": not before, "unheard_of": 1}) as unknown:
        assert torch.are_deterministic_algorithms_enabled() is not before
        assert unknown == []
    assert read_switches()["deterministic"] is before
