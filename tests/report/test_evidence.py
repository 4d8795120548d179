"""findings.json: what a page says, with the rows that it rests on."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.core.files import sha256_of
from lab.core.findings import FINDINGS, load, note_lacking
from lab.report.page import number_in, write_page
from lab.report.parts import Card, Page, Section, Table


@pytest.mark.parametrize(
    "text, value",
    [
        ("12.5", 12.5),
        ("1,234", 1234.0),
        ("12\u202f345.5", 12345.5),
        ("−3", -3.0),
        ("+1e-05", 1e-5),
        ("28,42", None),
        ("1–2", None),
        ("inf", None),
        ("1e999", None),
        ("three", None),
        ("", None),
        ("٣", None),
    ],
)
def test_only_a_number_is_read_as_one(text, value):
    assert number_in(text) == value


def page_in(folder, cards):
    (folder / "tables").mkdir()
    frame = pd.DataFrame({"channels": [28, 42, 56], "step_ms": [10.04, 11.5, 12.0], "copies": [12, 12, 3]})
    frame.to_csv(folder / "tables" / "configs.csv", index=False)
    table = Table(frame, "All", "tables/configs.csv")
    page = Page(
        "A sweep",
        "Which?",
        ["28 wins.", "By far."],
        "warn",
        cards=cards,
        sections=[Section("T", [table])],
        room="sweep",
        provenance={"Run": {"id": "sweep_1"}},
    )
    write_page(page, folder / "report.html")
    return load(folder / FINDINGS)


def test_a_card_cites_its_row_where_one_cell_alone_reads_like_it(tmp_path):
    found = page_in(
        tmp_path,
        [
            Card("Fastest", "10.0", "tables/configs.csv", "ms"),
            Card("Copies", "12", "tables/configs.csv"),
            Card("Other", "99", "tables/configs.csv"),
            Card("Gone", "1", "tables/absent.csv"),
        ],
    )
    fastest, copies, other, gone = (one for one in found.findings if one.kind == "figure")
    (cited,) = fastest.evidence
    assert (cited.file, cited.row, cited.columns, cited.values) == (
        "tables/configs.csv",
        0,
        ("step_ms",),
        ("10.04",),
    )
    assert cited.sha256 == sha256_of(tmp_path / "tables/configs.csv")
    assert (fastest.value, fastest.unit, fastest.text) == (10.0, "ms", "10.0 ms")
    assert copies.evidence[0].row is None, "three cells read 12"
    assert other.evidence[0].row is None and other.evidence[0].file == "tables/configs.csv"
    assert gone.evidence[0].file == "report.html"


def test_the_verdict_cites_the_page_and_its_tables(tmp_path):
    found = page_in(tmp_path, [])
    assert (found.status, found.room, found.run, found.verdict) == (
        "warn",
        "sweep",
        "sweep_1",
        ["28 wins.", "By far."],
    )
    first = found.findings[0]
    assert first.severity == "warning"
    assert [one.file for one in first.evidence] == ["report.html", "tables/configs.csv"]
    assert first.evidence[0].sha256 == sha256_of(tmp_path / "report.html")


def test_what_the_analysis_lacks_is_noted_once_it_is_known(tmp_path):
    assert page_in(tmp_path, []).lacking is None
    note_lacking(tmp_path, ["rank 3 has no trace"])
    assert load(tmp_path / FINDINGS).lacking == ("rank 3 has no trace",)


def test_only_a_report_gets_findings(tmp_path):
    write_page(Page("A", "B", ["C"], "ok"), tmp_path / "gantt.html")
    assert not (tmp_path / FINDINGS).exists()
