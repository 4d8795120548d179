"""Where a file is cut into pieces of whole events."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from lab.recordings.pieces import elements, last_boundary

JSON = st.recursive(
    st.text(alphabet='ab{}[],"\\ \n', max_size=8) | st.integers(-9, 9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\{},', max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text("k", min_size=1, max_size=2), JSON, max_size=3), min_size=1, max_size=5)
)
def test_boundaries_and_elements_agree_with_the_json_itself(objects):
    texts = [json.dumps(item) for item in objects]
    text = ", ".join(texts).encode()
    found = elements(text + b"] , {")
    assert [json.loads(text[a:b]) for a, b in found.spans] == objects
    assert found.stray == -1
    end = last_boundary(text + b",{")
    assert end == len(text)
