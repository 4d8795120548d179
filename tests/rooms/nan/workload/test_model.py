"""Random-weight models."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from tests.rooms.nan.workload.runs import tiny  # noqa: E402


def test_the_same_seed_gives_the_same_model_in_every_dtype():
    wide, narrow = tiny(dtype="float32"), tiny(dtype="bfloat16")
    for a, b in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)
