"""The comparison page: complete, self-contained, and working in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from lab.errors import StepFailed, UsageError
from lab.rooms.sweep.gemm import changes
from lab.rooms.sweep.gemm.cli import gemm
from lab.rooms.sweep.gemm.comparison import PAGE, write_comparison
from lab.rooms.sweep.gemm.variance import VARIANCE
from tests.rooms.sweep.gemm.recorded import write_sweep


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three sweeps with a hostile label; the third lacks a setting."""
    root = tmp_path_factory.mktemp("compare")
    made = [
        write_sweep(root / "a"),
        write_sweep(root / "b", until_us=410),
        write_sweep(root / "c", threads=(256,)),
    ]
    write_comparison(made, root / "out", labels=["base", '<script>alert("x")</script>', "third"], workers=1)
    return root / "out"


def test_labels_are_escaped_everywhere(pages: Path) -> None:
    html = (pages / PAGE).read_text()
    assert "<script>alert" not in html and "&lt;script&gt;alert" in html


def test_no_table_has_digits_that_no_clock_gave(pages: Path) -> None:
    tables = sorted((pages / "comparison").glob("*.csv"))
    assert len(tables) == 4
    for table in tables:
        assert not re.findall(r"\d\.\d{7,}", table.read_text()), table.name


def test_the_command_compares_and_requires_complete_recordings(pages: Path, tmp_path: Path) -> None:
    a, b = (str(pages.parent / name) for name in "ab")
    done = CliRunner().invoke(gemm, ["compare", a, b, "-o", str(tmp_path), "-w", "1"])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / PAGE).is_file()
    required = CliRunner().invoke(
        gemm, ["compare", a, b, "-o", str(tmp_path), "-w", "1", "--require", "complete"]
    )
    verdicts = set(pd.read_csv(tmp_path / "comparison/ranks.csv")["recording"])
    assert isinstance(required.exception, StepFailed) == (verdicts != {"complete"})


def test_two_sweeps_and_fitting_labels_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least two"):
        write_comparison([tmp_path], tmp_path)
    with pytest.raises(UsageError, match="1 label for 2 sweeps"):
        write_comparison([tmp_path, tmp_path], tmp_path, labels=["one"])


def test_the_hosts_pace_is_told_of_every_setting_and_rank_first_and_twice_gives_the_same_page(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def pace(settings: Any) -> str:
        seen.append((len(settings), sum(len(one.account.ranks) for one in settings.values())))
        return "The hosts set the pace."

    monkeypatch.setattr(changes, "bound_by_hosts", pace)
    html = []
    for _ in range(2):
        done = write_comparison([pages.parent / name for name in "ab"], tmp_path, workers=1)
        html.append((tmp_path / PAGE).read_bytes())
    assert seen == [(2, 4)] * 4 and html[0] == html[1]
    assert done.findings[:2] == ["a: The hosts set the pace.", "b: The hosts set the pace."]


@pytest.mark.data
def test_the_five_plots_of_both_sweeps_stand_side_by_side_and_are_files(tmp_path, shared_data):
    sweep = shared_data / "cases/ranks/sweep_small"
    page = tmp_path / "out/both.html"
    words = ["compare", str(sweep), str(sweep), "-l", "before", "-l", "after", "-o", str(page), "-w", "1"]
    CliRunner().invoke(gemm, words)
    text = page.read_text()
    for name in VARIANCE:
        files = sorted((tmp_path / "out/comparison/plots").glob(f"*/{name}.png"))
        assert [path.parent.name for path in files] == ["0_before", "1_after"]
        assert len(set(re.findall(rf'id="{name}-([01])-', text))) in (0, 2)
    assert text.count("<div><p>before</p><svg") == text.count("<div><p>after</p><svg") == 5
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
