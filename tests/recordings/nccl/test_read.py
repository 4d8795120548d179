"""What nccl-tests, Inspector and RAS say; their kind is told from the content."""

from __future__ import annotations

import json

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.nccl import read_evidence
from tests.recordings.nccl.made import operation, ras, speed, write


def _one(*paths):
    (found,) = read_evidence(paths)
    return found


def test_nccl_tests_give_times_by_kind_size_and_ranks(tmp_path):
    found = _one(write(tmp_path / "x", speed({1024: 9.0, 4096: 12.0})))
    assert found.kind == "nccl-tests" and not found.missing
    assert found.speeds == {("all_reduce", 1024, 8): 9.0, ("all_reduce", 4096, 8): 12.0}
    assert [row["p95_us"] for row in found.rows if row["place"] == "out_of_place"] == pytest.approx(
        [10.8, 14.4]
    )
    assert "NCCL_DEBUG=INFO" in found.sentences[0] and "hunter2" not in json.dumps(
        found.rows + found.sentences
    )


def test_wrong_results_count_for_nothing_and_are_said(tmp_path):
    document = speed({1024: 9.0, 4096: 12.0})
    for place in ("out_of_place", "in_place"):
        document["results"][0][place]["nwrong"] = 3
    found = _one(write(tmp_path / "x", document))
    assert list(found.speeds) == [("all_reduce", 4096, 8)] and "2 results wrong" in found.missing[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 2}, "version 2 is not 3"),
        ({"args": ["x"]}, "name no program"),
        ({"results": []}, "no result"),
        ({"out_of_bounds": {"okay": False}}, "out of bounds"),
        ({"errors": ["e"]}, "errors"),
    ],
)
def test_what_nccl_tests_lack_is_said(tmp_path, changes, text):
    assert any(text in one for one in _one(write(tmp_path / "x", {**speed({1024: 9.0}), **changes})).missing)


def test_inspector_pairs_ranks_by_number_and_names_who_comes_late(tmp_path):
    for rank in range(4):  # rank 2 comes 1 ms late each time: it alone spends no time waiting
        times = [50.0 if rank == 2 else 1050.0 for _ in range(6)]
        write(tmp_path / f"r{rank}.log", *(operation(rank, i, us) for i, us in enumerate(times)))
    found = _one(tmp_path)
    assert not found.missing and [row["transfer_us"] for row in found.rows] == [50.0] * 6
    assert found.speeds == {("all_reduce", 1 << 20, 4): 50.0}
    ((rank, ms),) = found.late_ranks
    assert rank == 2 and ms == pytest.approx(6.0)


def test_inspector_names_nobody_where_all_are_alike(tmp_path):
    write(tmp_path / "x", *(operation(rank, i, 50.0 + (rank * i) % 3) for rank in range(4) for i in range(9)))
    assert _one(tmp_path / "x").late_ranks == []


def test_inspectors_gaps_are_normal_and_missing_ranks_are_said(tmp_path):
    lines = [operation(rank, serial, 50.0) for rank in (0, 1, 3) for serial in (5, 9)]
    lines += [
        operation(0, 9, 1.0),
        operation(0, 11, 5.0, coll_timing_source="collective_cpu"),
        {"header": {"id": 1}, "metadata": {}, "p2p_perf": {"p2p_sn": 1}},
    ]
    found = _one(write(tmp_path / "x", *lines))
    assert any("no file of rank 2" in text for text in found.missing)
    assert {row["complete"] for row in found.rows} == {False} and found.late_ranks == []
    for words in ("twice", "timed on the host", "sends or receives"):
        assert any(words in text for text in found.missing)


def test_ras_needs_two_answers_to_call_it_a_hang(tmp_path):
    behind = {0: 9, 1: 9, 2: 7}
    first, second = write(tmp_path / "a", ras(behind)), write(tmp_path / "b", ras(behind, timestamp="2"))
    assert any("one answer cannot tell" in text for text in _one(first).missing)
    found = _one(first, second)
    assert not found.missing and [rank for rank, _ in found.late_ranks] == [2]
    assert "rank 2 launched 2 AllReduces fewer than the others, and nothing moved" in found.sentences[0]
    moving = _one(first, write(tmp_path / "c", ras({0: 19, 1: 19, 2: 17}, timestamp="2")))
    assert moving.late_ranks == [] and "behind, not hanging" in moving.sentences[0]
    alike = _one(write(tmp_path / "d", ras({0: 9, 1: 9})))
    assert not alike.missing and "all 2 ranks launched as many" in alike.sentences[0]


def test_ras_says_who_is_gone_or_in_trouble(tmp_path):
    found = _one(write(tmp_path / "x", ras({0: 9, 1: 9}, missing=1, async_error=1)))
    assert any("rank 90 is missing, considered dead" in text for text in found.sentences)
    assert any("rank 1: async error" in text for text in found.sentences)
    assert any("1 rank did not answer" in text for text in found.missing)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"),
        (b"nope", "not JSON"),
        (b"[" * 100_000, "nested"),
        (b"3", "no kind"),
        (b'{"entries": [], "pg_config": {}}', "flight recorder"),
        (b'{"a": 1}', "no kind"),
    ],
)
def test_what_is_none_of_these_is_said(tmp_path, data, text):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(BadDataError, match=text):
        read_evidence([tmp_path / "x"])


def test_no_file_is_missing(tmp_path):
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(MissingError):
            read_evidence([path])


def test_a_bad_file_among_good_ones_is_said_and_a_cut_one_counts_as_far_as_it_goes(tmp_path):
    write(tmp_path / "a.json", speed({1024: 9.0}))
    (tmp_path / "b.json").write_text("x")
    assert any("b.json: not JSON" in text for text in _one(tmp_path).missing)
    cut = write(tmp_path / "c/x", operation(0, 1, 5.0, ranks=1), operation(0, 2, 5.0, ranks=1))
    cut.write_bytes(cut.read_bytes()[:-20])
    found = _one(cut)
    assert len(found.rows) == 1 and any("cut" in text for text in found.missing)


def test_hostile_values_are_unknown(tmp_path):
    document = speed({1024: 9.0})
    document["results"] += [
        7,
        {"size": "9" * 400, "out_of_place": {"time": "x"}},
        {"size": 1e400, "in_place": {"time": True}},
    ]
    document["nccl_version"] = "\x1b[2J=cmd"
    found = _one(write(tmp_path / "x", document))
    assert "\x1b" not in "".join(found.sentences) and list(found.speeds) == [("all_reduce", 1024, 8)]
    lines = [operation(rank, 1, 5.0) for rank in range(2)]
    lines[0]["header"]["n_ranks"] = 1 << 60
    assert _one(write(tmp_path / "y", *lines)).late_ranks == []


@pytest.mark.parametrize(("limit", "text"), [("FILES", "2 files in one folder"), ("OBJECTS", "1 values")])
def test_more_than_is_read_is_an_error_and_not_left_out(tmp_path, monkeypatch, limit, text):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}\n{}")
    monkeypatch.setattr(f"lab.recordings.nccl.read.MOST_{limit}", 1)
    with pytest.raises(BadDataError, match=text):
        read_evidence([tmp_path] if limit == "FILES" else [tmp_path / "a.json"])
