"""From folder to findings: what is missing is reported, replays and energy runs have pages of their own."""

from __future__ import annotations

import json

import msgspec
import pandas as pd
import pytest

from lab.errors import BadDataError, MissingError
from lab.rooms.kernels import analyze
from lab.rooms.kernels.findings import analyse_kernels, analyse_profile, read_all
from lab.rooms.kernels.schema import Launch
from lab.rooms.kernels.trails import read_lines, trails
from tests.rooms.kernels.energy import made as energy
from tests.rooms.kernels.made import profile_folder
from tests.rooms.kernels.replay import made as replay


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
    for name in ("by_class", "by_op", "by_module", "by_phase"):
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
    with pytest.raises(MissingError, match="no trace_rank"):
        analyse_profile(tmp_path, tmp_path, None, lambda _: None)


def test_an_energy_run_leaves_json_csv_and_page_and_reports_a_step_that_left_nothing(tmp_path):
    (tmp_path / "energy").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(energy.a_plan()))
    (tmp_path / "energy_config.json").write_text("{}")
    lost = analyse_kernels(tmp_path, tmp_path, None, lambda _: None)
    assert (lost.status, lost.lacking) == ("fail", ["no window was measured: energy_raw.json is missing"])
    (tmp_path / "energy/energy_raw.json").write_bytes(msgspec.json.encode(energy.a_raw()))
    found = analyse_kernels(tmp_path, tmp_path / "out", None, lambda _: None)
    assert [path.name for path in found.files] == ["energy.json", "energy.csv", "report.html"]
    assert all(path.stat().st_size for path in found.files)


def test_a_replay_leaves_its_rows_and_a_torn_one_is_an_error(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(replay.a_plan()))
    assert analyse_kernels(tmp_path, tmp_path, None, lambda _: None).status == "fail"
    raw = msgspec.json.encode(replay.a_raw())
    (tmp_path / "replay/replay_raw.json").write_bytes(raw)
    found = analyse_kernels(tmp_path, tmp_path / "out", None, lambda _: None)
    rows = json.loads((tmp_path / "out/replay.json").read_text())["rows"]
    assert {(row["sig_id"], row["position"]) for row in rows} == {("a", 0), ("a", 1), ("b", 0)}
    assert len((tmp_path / "out/tables/replay.csv").read_text().splitlines()) == 4
    assert "100.00 % of kernel time" in found.terminal
    (tmp_path / "replay/replay_raw.json").write_bytes(raw[:-20])
    with pytest.raises(BadDataError, match="RawReplay"):
        analyse_kernels(tmp_path, tmp_path, None, lambda _: None)


def test_layers_of_a_model_fold_into_one():
    assert analyze.folded("transformer.h.12.mlp.dense_4h_to_h") == "transformer.h.*.mlp.dense_4h_to_h"
    assert analyze.folded("model.layers.0") == "model.layers.*" and analyze.folded("lm_head2") == "lm_head2"


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "launches.jsonl").write_text('{"rank": 0}\n')
    with pytest.raises(BadDataError, match="not a Launch") as caught:
        list(read_lines(tmp_path / "launches.jsonl", Launch))
    assert caught.value.location.endswith("launches.jsonl:1")
