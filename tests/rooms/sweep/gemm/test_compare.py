"""The comparison page: what it claims, what it must not claim, and that it works in a browser."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import UsageError
from lab.rooms.sweep.gemm.compare.changes import config_changes, gemm_changes, holm
from lab.rooms.sweep.gemm.compare.page import PAGE, write_comparison
from lab.rooms.sweep.gemm.compare.sweeps import Sweep, environments
from tests.report.test_browser import browse  # noqa: F401  a fixture
from tests.rooms.sweep.gemm.recorded import write_sweep
from tests.rooms.sweep.made import sweep as made


def one(label: str, totals_ms: dict[tuple[int, int], list[float]], **facts: str) -> Sweep:
    return Sweep(label, Path(label), made(totals_ms), facts)


def judgement(before: list[float], after: list[float]) -> str:
    frame = config_changes(one("a", {(256, 28): before}), one("b", {(256, 28): after}))
    return str(frame["judgement"][0])


def test_one_run_each_is_never_called_faster_or_slower() -> None:
    assert judgement([100.0], [50.0]) == "one run each"


def test_three_repeats_cannot_reach_significance_and_the_page_says_so() -> None:
    assert judgement([100.0, 101.0, 102.0], [50.0, 51.0, 52.0]) == "too few repeats"


def test_clear_repeats_are_slower_or_faster() -> None:
    before, after = [100.0, 101.0, 102.0, 103.0], [150.0, 151.0, 152.0, 153.0]
    assert judgement(before, after) == "slower"
    assert judgement(after, before) == "faster"


def test_repeats_that_overlap_show_no_difference() -> None:
    assert judgement([100.0, 104.0, 108.0, 112.0], [102.0, 106.0, 110.0, 101.0]) == "no difference shown"


def test_change_is_the_median_over_the_base_minus_one() -> None:
    frame = config_changes(one("a", {(256, 28): [100.0]}), one("b", {(256, 28): [110.0]}))
    assert frame["change_percent"][0] == pytest.approx(10)


def test_a_configuration_of_one_sweep_only_is_a_row_without_a_claim() -> None:
    frame = config_changes(one("a", {(256, 28): [100.0], (512, 28): [90.0]}), one("b", {(256, 28): [100.0]}))
    row = frame[frame["threads"] == 512].iloc[0]
    assert row["judgement"] == "not in both" and np.isnan(row["change_percent"])


def test_gemms_are_matched_by_shape_and_sorted_by_the_time_that_changed() -> None:
    frame = gemm_changes(one("a", {(256, 28): [100.0]}), one("b", {(256, 28): [130.0]}))
    assert len(frame) == 2 and frame["change_percent"].tolist() == pytest.approx([30, 30])
    assert frame["changed_us"].abs().is_monotonic_decreasing


def test_what_differs_in_the_environment_comes_first() -> None:
    frame = environments([one("a", {}, torch="2.11", driver="1"), one("b", {}, torch="2.11")])
    assert frame["what"].tolist() == ["driver", "torch"]
    assert frame["b"].tolist() == ["not recorded", "2.11"]


@given(st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=8))
def test_holm_is_the_plain_definition(p_values: list[float]) -> None:
    found = holm(np.array(p_values, dtype=float))
    known = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    reached, expected = 0.0, [float("nan")] * len(p_values)
    for place, (p, i) in enumerate(known):
        reached = max(reached, (len(known) - place) * p)
        expected[i] = min(1.0, reached)
    assert np.allclose(found, expected, equal_nan=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three sweeps with a hostile label; the third lacks a setting."""
    root = tmp_path_factory.mktemp("compare")
    sweeps = [write_sweep(root / "a"), write_sweep(root / "b"), write_sweep(root / "c", threads=(256,))]
    write_comparison(sweeps, root / "out", labels=["base", '<script>alert("x")</script>', "third"], workers=1)
    return root / "out"


def test_the_page_is_one_file_that_loads_nothing(pages: Path) -> None:
    html = (pages / PAGE).read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert len(html) < 5_000_000


def test_labels_are_escaped_everywhere(pages: Path) -> None:
    html = (pages / PAGE).read_text()
    assert "<script>alert" not in html and "&lt;script&gt;alert" in html


def test_every_figure_on_the_page_names_a_table_that_is_there(pages: Path) -> None:
    sources = set(re.findall(r'data-source="([^"]+)"', (pages / PAGE).read_text()))
    assert sources and all((pages / source).exists() for source in sources)


def test_charts_hold_every_rank_of_every_sweep(pages: Path) -> None:
    chart = json.loads(unescape(re.search(r'data-chart="([^"]*)"', (pages / PAGE).read_text())[1]))
    assert [len(series["points"][0]) for series in chart["series"]] == [
        6,
        6,
        3,
    ]  # two ranks and a median each


def test_comparing_twice_gives_the_same_page(pages: Path, tmp_path: Path) -> None:
    sweeps = [pages.parent / name for name in "ab"]
    for _ in range(2):
        write_comparison(sweeps, tmp_path, workers=1)
        html = (tmp_path / PAGE).read_bytes()
    write_comparison(sweeps, tmp_path, workers=1)
    assert (tmp_path / PAGE).read_bytes() == html


def test_two_sweeps_and_fitting_labels_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least two"):
        write_comparison([tmp_path], tmp_path)
    with pytest.raises(UsageError, match="1 label for 2 sweeps"):
        write_comparison([tmp_path, tmp_path], tmp_path, labels=["one"])


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1280])
def test_charts_draw_without_a_console_error(browse, pages: Path, width: int) -> None:  # noqa: F811
    dom, errors = browse(pages / PAGE, "--dump-dom", f"--window-size={width},2000")
    assert "CONSOLE" not in errors
    assert dom.count('class="point"') > 15


@pytest.mark.browser
def test_a_drag_zooms_and_the_legend_hides(browse, pages: Path, tmp_path: Path) -> None:  # noqa: F811
    html = re.sub(r"<meta http-equiv[^>]*>", "", (pages / PAGE).read_text())  # let the test's own script run
    probe = """
    const svg = document.querySelector('.chart svg'), box = svg.getBoundingClientRect();
    const texts = () => [...svg.querySelectorAll('text')].map(t => t.textContent).join();
    const point = (x, y) => ({clientX: box.left + x, clientY: box.top + y, bubbles: true});
    const at = (type, x, y, on) => on.dispatchEvent(new PointerEvent(type, point(x, y)));
    const before = texts(), points = svg.querySelectorAll('.point').length;
    at('pointerdown', 120, 60, svg); at('pointermove', 300, 120, svg); at('pointerup', 300, 120, window);
    const zoomed = texts() !== before;
    svg.dispatchEvent(new MouseEvent('dblclick', {bubbles: true}));
    const back = texts() === before;
    document.querySelector('.tools .series').click();
    const fewer = svg.querySelectorAll('.point').length < points;
    document.title = [zoomed, back, fewer].join();
    """
    page = tmp_path / "page.html"
    page.write_text(html.replace("</body>", f"<script>{probe}</script></body>"))
    dom, errors = browse(page, "--dump-dom", "--window-size=1280,2000")
    assert "CONSOLE" not in errors
    assert "<title>true,true,true</title>" in dom
