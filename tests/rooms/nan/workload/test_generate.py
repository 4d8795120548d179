"""Greedy tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from lab.rooms.nan.workload.model import (  # noqa: E402
    ByteTokenizer,
    generate,
)
from tests.rooms.nan.workload.runs import tiny  # noqa: E402


def test_generation_is_exactly_as_long_as_asked_and_left_padding_changes_no_token():
    model = tiny(dtype="float32")
    alone = generate(model, *ByteTokenizer()(("dizzy",)), 5, None)
    batch = generate(model, *ByteTokenizer()(("dizzy", "a much longer prompt")), 5, None)
    assert [len(row) for row in batch.tokens] == [5, 5] and batch.tokens[0] == alone.tokens[0]
