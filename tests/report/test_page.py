"""The page: one safe, self-contained file in which every number has a source."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from lab.errors import StorageError
from lab.report.page import render, write_page
from lab.report.parts import Card, Chart, Figure, Page, Prose, Section, Series, Table, title_of

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def page(label: str = "plain", rows: int = 3) -> Page:
    frame = pd.DataFrame({"name": [label] * rows, "total_time_ms": [1.5] * rows})
    table = Table(frame, label, "tables/a.csv")
    return Page(
        title=label,
        question=label,
        verdict=[label, label],
        status="ok",
        cards=[Card(label, label, "tables/a.csv", label, label)],
        sections=[Section(label, [Prose(label), table]), Section("two", [table])],
        provenance={label: {label: label}},
        footnotes=[label],
        room=label,
        kind=label,
    )


class Tags(HTMLParser):
    """Collects every element with its attributes, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(html)
    return parser.found


def test_hostile_text_anywhere_makes_no_element_and_no_attribute() -> None:
    plain, hostile = tags(render(page())), tags(render(page(HOSTILE)))
    shape = [(tag, sorted(set(attrs) - {"class"})) for tag, attrs in hostile]
    assert shape == [(tag, sorted(set(attrs) - {"class"})) for tag, attrs in plain]
    assert not any(name.startswith("on") for _, attrs in hostile for name in attrs)


def test_the_page_refers_to_nothing_outside_its_folder() -> None:
    html = render(page())
    assert "http://" not in html and "https://" not in html and "url(" not in html
    links = [attrs[name] for _, attrs in tags(html) for name in ("href", "src") if name in attrs]
    assert links and all(link and not re.match(r"[a-z]+:|//|/", link) for link in links)


def test_a_source_with_a_scheme_becomes_a_plain_relative_path() -> None:
    html = render(Page("t", "q", ["v"], "ok", cards=[Card("a", "1", "javascript:alert(1)")]))
    assert 'href="javascript%3Aalert%281%29"' in html


def test_only_the_pages_own_script_may_run() -> None:
    html = render(page())
    policy = next(attrs["content"] for tag, attrs in tags(html) if "http-equiv" in attrs)
    assert policy is not None and "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", policy)


def test_every_card_names_the_csv_it_comes_from() -> None:
    cards = [attrs for tag, attrs in tags(render(page())) if attrs.get("class") == "card"]
    assert cards and all((attrs["data-source"] or "").endswith(".csv") for attrs in cards)


def test_numbers_are_right_aligned_with_the_unit_in_the_header_and_full_value_for_sorting() -> None:
    html = render(page())
    assert re.search(
        r'<th scope="col" class="num"><button type="button">total time <span class="unit">ms', html
    )
    assert '<td class="num" data-v="1.5">1.500</td>' in html


def test_a_long_table_is_folded_with_its_count_and_cut_with_a_word_on_the_rest() -> None:
    short, long, longest = (render(page(rows=rows)) for rows in (3, 60, 401))
    assert "<details>" not in short
    assert "<details>" in long and "60 rows" in long and 'type="search"' in long
    assert "first 400 of 401 rows here, all of them in" in longest


@pytest.mark.parametrize(
    ("status", "word"), [("ok", "ok"), ("warn", "with reservations"), ("fail", "no result")]
)
def test_the_status_is_a_word_and_not_only_a_colour(status: str, word: str) -> None:
    html = render(Page("t", "q", ["v"], status))  # type: ignore[arg-type]
    assert re.search(rf'<p class="status">. {word}</p>', html)


def test_a_figure_links_its_image_and_its_data() -> None:
    figure = Figure("<svg></svg>", "caption", "figures/a.png", "tables/a.csv")
    html = render(Page("t", "q", ["v"], "ok", sections=[Section("s", [figure])]))
    assert '<a href="figures/a.png">' in html and '<a href="tables/a.csv">' in html and "<svg></svg>" in html


def test_a_page_is_written_whole_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_page(page(), tmp_path / "new" / "report.html")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"report.html", "findings.json"}
    assert (tmp_path / "new" / "report.html").read_text() == render(page())


def test_a_page_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError):
        write_page(page(), tmp_path / "taken" / "report.html")


@pytest.mark.browser
def test_a_drag_zooms_a_chart_and_its_legend_hides_a_series(browse, tmp_path: Path) -> None:
    points = [(0, 1.0, "a"), (1, 2.0, "b")]
    series = [Series(name, role, points) for name, role in (("base", "series1"), ("other", "series2"))]
    chart = Chart("times", "run", "time, ms", series, "Drag to zoom.", "times.csv")
    html = render(replace(page(), sections=[Section("Times", [chart])]))
    html = re.sub(r"<meta http-equiv[^>]*>", "", html)  # let the test's own script run
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
    path = tmp_path / "page.html"
    path.write_text(html.replace("</body>", f"<script>{probe}</script></body>"))
    dom, errors = browse(path, "--dump-dom", "--window-size=1280,2000")
    assert "CONSOLE" not in errors
    assert "<title>true,true,true</title>" in dom


def test_a_title_has_its_room_once() -> None:
    assert title_of("Trials", "trials_20260101_120000") == "trials_20260101_120000"
    assert title_of("Trials", "out") == "Trials out"
