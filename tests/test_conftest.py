"""What the tests share loses none of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import mixed


def item(path: str, *markers: str) -> SimpleNamespace:
    return SimpleNamespace(
        path=Path(path), iter_markers=lambda: [SimpleNamespace(name=one) for one in markers]
    )


@pytest.mark.parametrize("waiting", [0, 1, 3])
@pytest.mark.parametrize("computing", [0, 1, 5, 6, 7, 12])
def test_workers_run_every_test_whatever_the_number_of_files(computing, waiting):
    items = [item(f"computes_{one}") for one in range(computing)]
    items += [item(f"waits_{one}", "browser") for one in range(waiting) for _ in range(2)]
    order = mixed(items)
    assert sorted(map(id, order)) == sorted(map(id, items))
