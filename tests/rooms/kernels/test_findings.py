"""From folder to findings: what is missing is reported, replay and energy runs join the page."""

from __future__ import annotations

import msgspec
import pandas as pd
import pytest

from lab.core.manifest import Manifest
from lab.core.provenance import lab_identity
from lab.core.run import Run
from lab.errors import MissingError
from lab.rooms.kernels.findings import analyse_profile, read_all, sibling
from lab.rooms.kernels.replay.proof.result import Result as ReplayResult
from lab.rooms.kernels.trails import trails
from tests.rooms.kernels.made import profile_folder
from tests.rooms.kernels.report.made import replayed


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return analyse_profile(folder, out, None, lambda _: None), out


def test_the_verdict_counts_launches_forwards_and_ranks(found):
    said = found[0].verdict
    assert said[0].startswith("30 launches, ") and "1 prefill, 2 decode over 2 ranks" in said[0]
    assert any("A decode forward: 5 launches" in text for text in said)


def test_every_file_the_findings_name_is_there_and_the_page_links_its_data(found):
    findings, out = found
    assert all(path.is_file() for path in findings.files) and not findings.lacking and findings.status == "ok"
    page = (out / "report.html").read_text()
    for name in ("unique_kernels.csv", "by_class.csv", "by_op.csv", "gantt.csv", "launches.jsonl"):
        assert name in page and (out / "tables" / name).is_file()


def test_shares_add_up_to_the_whole(found):
    for name in ("by_class", "by_op", "by_module", "by_phase", "argument_sources"):
        table = pd.read_csv(found[1] / "tables" / f"{name}.csv")
        assert table["share_percent"].sum() == pytest.approx(100.0)
        assert table["launches"].sum() == 30


def test_a_rank_that_cannot_be_read_is_missing_and_the_other_is_analysed(tmp_path):
    profile_folder(tmp_path, world_size=2)
    broken = tmp_path / "profile" / "trace_rank1.json.gz"
    broken.write_bytes(broken.read_bytes()[:400])
    catalogue, lost = read_all(trails(tmp_path))
    assert [rank.rank for rank in catalogue.ranks] == [0] and len(lost) == 1 and lost[0].startswith("rank 1")
    found = analyse_profile(tmp_path, tmp_path / "out", None, lambda _: None)
    assert (
        found.lacking == lost
        and found.status == "warn"
        and lost[0].split(":")[0] in (tmp_path / "out" / "report.html").read_text()
    )


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(MissingError, match="holds no trace"):
        analyse_profile(tmp_path, tmp_path, None, lambda _: None)


def test_a_replay_of_this_run_that_lies_beside_it_joins_the_page(tmp_path):
    folder = profile_folder(tmp_path / "kernels_1")
    replay = msgspec.json.encode(replayed())
    (tmp_path / "kernels_3").mkdir()
    (tmp_path / "kernels_3/replay.json").write_bytes(replay)
    assert sibling(folder, "replay.json", ReplayResult)[0] is None, (
        "nothing says that it was made from this run"
    )
    manifest = Manifest(
        id="kernels_2",
        room="kernels",
        created_utc="2026-01-01T00:00:00+00:00",
        lab=lab_identity(),
        engine="local",
        command=("lab",),
        host={},
        config={"source": str(folder)},
        steps=[],
    )
    Run.create(tmp_path / "kernels_2", manifest)
    (tmp_path / "kernels_2/replay.json").write_bytes(replay)
    result, home, unread = sibling(folder, "replay.json", ReplayResult)
    assert unread == []
    assert result.rows[0].kernel == "nvjet_gemm" and home.name == "kernels_2"
    analyse_profile(folder, folder, None, lambda _: None)
    page = (folder / "report.html").read_text()
    assert '"../kernels_2/tables/replay.csv"' in page, "links lead to the run that holds the data"
    assert (
        "98 % of time: not met" in page
        and "closure: met" in page
        and "10.00 \\u00b5s recorded, 10.20" in page
    )
    (tmp_path / "kernels_2/replay.json").write_bytes(replay[:-9])
    found = analyse_profile(folder, folder, None, lambda _: None)
    assert len(found.lacking) == 1 and found.lacking[0].startswith("kernels_2/replay.json cannot be read")


def test_a_result_of_the_run_itself_that_cannot_be_read_is_said_once(tmp_path):
    folder = profile_folder(tmp_path / "kernels_1")
    (folder / "replay.json").write_text("{")
    found, home, (why,) = sibling(folder, "replay.json", ReplayResult)
    assert found is None and home == folder and why.startswith("kernels_1/replay.json cannot be read")
