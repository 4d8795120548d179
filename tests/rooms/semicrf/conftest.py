"""Every test of this room computes in one thread: results and times do not hang on who else is there."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
