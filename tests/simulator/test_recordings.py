"""Whatever is drawn: lab's commands print the truth, or say that they may not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings

from tests.simulator.draws import Draw, recordings


@settings(max_examples=300)
@given(recordings())
def test_no_figure_is_silently_different_from_the_truth(drawn: Draw):
    with tempfile.TemporaryDirectory() as folder:
        _, sentences = drawn.outcome(Path(folder))
    assert not sentences
