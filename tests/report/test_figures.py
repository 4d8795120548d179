"""Figures: the same input gives the same bytes, in colours that the page owns."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from lab.report import PALETTE, css_variables, light
from lab.report.figures import (
    Cell,
    cell_grid,
    roofline,
    save,
    stacked_bars,
    stacked_panels,
    timeline,
)
from lab.report.figures.style import short_path

PARTS = {"computation": np.array([1.0, 2.0]), "idle": np.array([0.5, np.nan])}
HOSTILE = '"><script>alert(1)</script>--><!--$\\frac{'


def bars(label: str = "b") -> Figure:
    marks = [(1.0, 1.5, 2.0), (np.nan, np.nan, np.nan)]
    return stacked_bars(["a", label], PARTS, axis="ms", marks=marks, mark_label="total")


def grid(text: str = "1") -> Figure:
    return cell_grid(
        [text, "r"], ["c"], lambda row, _: Cell(text, "ok", 0.5, text) if row else None, legend={text: "ok"}
    )


def test_the_same_figure_gives_the_same_svg_and_png(tmp_path: Path) -> None:
    first, second = (save(bars(), tmp_path / name, "x") for name in ("one", "two"))
    assert first == second
    assert (tmp_path / "one" / "x.png").read_bytes() == (tmp_path / "two" / "x.png").read_bytes()


def test_the_svg_has_no_colour_address_or_date_of_its_own(tmp_path: Path) -> None:
    for name, figure in (
        ("bars", bars()),
        ("grid", grid()),
        ("panels", stacked_panels(["t"], [["a", "b"]], [PARTS], axis="ms")),
    ):
        svg = save(figure, tmp_path, name)
        assert svg.startswith("<svg") and svg.rstrip().endswith("</svg>")
        assert "http" not in svg and "metadata" not in svg
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000"}
        assert "var(--" in svg


def test_hostile_labels_stay_text_in_the_svg(tmp_path: Path) -> None:
    for name, figure in (("bars", bars(HOSTILE)), ("grid", grid(HOSTILE))):
        svg = save(figure, tmp_path, name)
        assert "<script" not in svg and "<!--" not in svg
        assert "alert(1)" in svg


def test_two_figures_of_one_page_share_no_id(tmp_path: Path) -> None:
    ids = [set(re.findall(r'\bid="([^"]+)"', save(bars(), tmp_path, name))) for name in ("one", "two")]
    assert ids[0] and not ids[0] & ids[1]


def test_bars_say_their_value_on_hover(tmp_path: Path) -> None:
    assert 'data-tip="b: computation 2"' in save(bars(), tmp_path, "x")


def test_many_panels_and_columns_are_drawn(tmp_path: Path) -> None:
    panels = stacked_panels([str(n) for n in range(9)], [["a", "b"]] * 9, [PARTS] * 9, axis="ms")
    assert save(panels, tmp_path, "panels").count("data-tip") == 36
    wide = cell_grid(["r"], [str(n) for n in range(64)], lambda *_: Cell("1", "ok", 1.0), legend={})
    assert save(wide, tmp_path, "wide")


def test_every_colour_is_unique_in_light_so_that_it_can_be_told_by_its_value() -> None:
    assert len({ink.light for ink in PALETTE.values()}) == len(PALETTE)


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_text_has_contrast_on_both_papers(paper: str) -> None:
    ground = getattr(PALETTE["paper"], paper)
    for role in ("ink", "muted", "link", "ok", "warn", "fail"):
        assert contrast(getattr(PALETTE[role], paper), ground) >= 4.5, role  # WCAG 2 level AA


def test_the_page_carries_both_sets_of_colours() -> None:
    css = css_variables()
    assert light("computation") in css and PALETTE["computation"].dark in css


def contrast(one: str, two: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""
    bright, dim = sorted((luminance(one), luminance(two)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_roofline_bounds_its_points_and_names_its_roof(tmp_path: Path) -> None:
    drawing = roofline(
        {"GEMM": [(100.0, 40.0, "tip")], "softmax": [(0.6, 2.0, "")]},
        roofs={"GPU $x": (60.0, 4.0)},
        across="FLOP per byte",
        axis="TFLOP/s",
    )
    svg = save(drawing, tmp_path, "roof")
    assert "mathdefault" not in svg, "ticks are plain numbers"
    assert "GPU $x" in svg and 'data-tip="tip"' in svg and "GEMM" in svg
    (roof,) = [line for line in drawing.axes[0].get_lines() if len(line.get_xdata()) == 3]
    assert list(roof.get_ydata()[1:]) == [60.0, 60.0] and roof.get_xdata()[1] == 15.0


def test_bars_may_have_other_words_than_their_roles(tmp_path: Path) -> None:
    svg = save(stacked_bars(["a", "b"], PARTS, axis="ms", words={"idle": "waits"}), tmp_path, "x")
    assert ">waits<" in svg and ">idle<" not in svg and ">computation<" in svg


def over_time(drawn: np.ndarray) -> Figure:
    parts = {("compute", "computation"): drawn}
    return timeline(["a", "b"], parts, span=(0.0, 400.0), bands=(), shades=(), axis="ms")


def test_bars_of_one_colour_are_one_path_however_many_they_are(tmp_path: Path) -> None:
    def paths(count: int) -> int:
        columns = [np.zeros(count), np.arange(count), np.full(count, 0.5), np.ones(count)]
        return save(over_time(np.column_stack(columns)), tmp_path, f"n{count}").count("<path")

    assert paths(20) == paths(400)


def test_bars_of_two_strengths_keep_their_places_and_strengths() -> None:
    drawn = over_time(np.array([[0, 0.0, 2.0, 1.0], [0, 4.0, 2.0, 0.3], [1, 2.0, 3.0, 1.0]]))
    patches = [one for one in drawn.axes[0].get_children() if isinstance(one, PathPatch)]
    found = {}
    for one in patches:
        corners = one.get_path().vertices.reshape(-1, 5, 2)
        spans = [(round(box[:, 1].mean() - 0.072), *box[[0, 2], 0].tolist()) for box in corners]
        found[round(one.get_facecolor()[3], 2)] = spans
    assert found == {1.0: [(0, 0.0, 2.0), (1, 2.0, 5.0)], 0.3: [(0, 4.0, 6.0)]}


@pytest.mark.filterwarnings("error")
def test_a_legend_of_many_parts_leaves_a_short_figure_its_room_on_a_phone(tmp_path: Path) -> None:
    parts = {role: np.array([1.0]) for role in list(PALETTE)[:10]}
    draw = functools.partial(stacked_panels, ["step 1"], [["r0"]], [parts], axis="ms")
    markup = save(draw, tmp_path, "x")
    heights = [float(one) for one in re.findall(r'<svg[^>]* height="([0-9.]+)pt"', markup)]
    assert len(heights) == 2 and heights[1] > heights[0]


def corners_of(path: str) -> np.ndarray:
    """The plain reading of m, v, h, v, z: corners (n, 4, 2)."""
    x = y = 0.0
    found = []
    for move, down, across, up in re.findall(r"m([^v]+)v([^h]+)h([^v]+)v([^z]+)z", path):
        x, y = (one + float(part) for one, part in zip((x, y), move.split(), strict=True))
        assert float(up) == -float(down)
        right, low = x + float(across), y + float(down)
        found.append([(x, y), (x, low), (right, low), (right, y)])
    return np.array(found)


def test_short_paths_of_many_bars_keep_every_corner_to_a_thousandth_of_a_point() -> None:
    rng = np.random.default_rng(0)
    left, top = rng.uniform(-5, 1000, 20_000), rng.uniform(0, 300, 20_000)
    right, low = left + rng.choice([0.0, 0.0004, 0.02, 14.2, -3.0], 20_000), top + rng.uniform(-9, 18, 20_000)
    boxes = np.round(np.stack([left, top, left, low, right, low, right, top], axis=1).reshape(-1, 4, 2), 6)
    path = "".join("M {} {} \nL {} {} \nL {} {} \nL {} {} \nz\n".format(*box.ravel()) for box in boxes)
    short = short_path(path)
    assert abs(corners_of(short) - boxes).max() < 0.00101  # of an offset rounded twice
    assert len(short) < len(path) / 2


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("M 0 0 \nL 0 3.5 \n", "M0 0L0 3.5"),
        ("M 1.23456 -0.00049 \nL 2 3 \nz\n", "M1.235 0L2 3z"),
        ("M 0 0 \nC 0.7956 0 1.5588 -0.3161 2.1213 -0.8787 \nz\n", "M0 0C.796 0 1.559 -.316 2.121 -.879z"),
        ("M 0 0 \nL 1 2 \nL 3 4 \nL 5 6 \nz\n", "M0 0L1 2L3 4L5 6z"),  # no rectangle
        ("", ""),
    ],
)
def test_other_paths_keep_their_points(path: str, short: str) -> None:
    assert short_path(path) == short


def test_words_that_look_like_code_are_left_as_they_are(tmp_path: Path) -> None:
    words = f'id="a" d="1.23456" url(#b font-family: c; style="x" : {light("computation")}'
    svg = save(bars(words), tmp_path, "x")
    assert f">{words}</text>" in svg
    assert f"data-tip='{words}: computation 2'" in svg


def test_an_svg_keeps_the_ids_that_it_uses_and_leaves_fonts_to_the_page(tmp_path: Path) -> None:
    svg = save(bars(), tmp_path, "x")
    ids, used = (set(re.findall(one, svg)) for one in (r'\bid="([^"]*)', r'(?:href="#|url\(#)([^")]*)'))
    assert ids == used != set()
    assert "font-family" not in svg and "font-size" in svg and "\n" not in svg
