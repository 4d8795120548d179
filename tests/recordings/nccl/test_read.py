"""What nccl-tests, Inspector and RAS say; their kind is told from the content."""

from __future__ import annotations

import json
import random

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
        (b"3", "neither"),
        (b'{"entries": [], "pg_config": {}}', "flight recorder"),
        (b'{"a": 1}', "neither"),
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


@pytest.mark.parametrize("value", [1e30, 0.5, "3", True, "many", -1, [1], float("nan"), float("inf")])
def test_whatever_is_no_zero_of_wrong_elements_counts_as_wrong(tmp_path, value):
    document = speed({1024: 9.0})
    for place in ("out_of_place", "in_place"):
        document["results"][0][place] |= {"nwrong": value, "bus_bw": 999.0}
    found = _one(write(tmp_path / "x", document))
    assert found.speeds == {} and any("2 results wrong" in one for one in found.missing)
    assert "999" not in found.sentences[0], "no bandwidth of wrong data"


def test_results_that_were_not_validated_are_told_from_right_ones(tmp_path):
    document = speed({1024: 9.0})
    document["results"][0]["out_of_place"]["nwrong"] = None
    document["results"][0]["in_place"]["nwrong"] = "N/A"
    found = _one(write(tmp_path / "x", document))
    assert any("2 results not validated" in one for one in found.sentences) and found.speeds


def test_in_place_never_stands_for_out_of_place_and_a_cpus_time_for_neither(tmp_path):
    document = speed({1024: 9.0, 4096: 20.0})
    document["results"][0]["in_place"]["time"] = 2.0
    document["results"][1]["out_of_place"] = None
    assert _one(write(tmp_path / "x", document)).speeds == {
        ("all_reduce", 1024, 8): 9.0,
        ("all_reduce", 4096, 8): pytest.approx(22.0),
    }
    for result in document["results"]:
        for place in filter(None, (result["out_of_place"], result["in_place"])):
            place["cpu_time"] = place.pop("time")
    found = _one(write(tmp_path / "y", document))
    assert found.speeds == {} and any("3 results timed on the CPU" in one for one in found.missing)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"devices": []}, "how many ranks took part is not known"),
        ({"devices": [{"rank": n, "group": int(n > 2)} for n in range(8)]}, "different numbers of ranks"),
        ({"results": [3, "x"]}, "2 entries of its results are none"),
        ({"results": [{"size": 8, "out_of_place": {"time": 0, "nwrong": 0}}]}, "1 result without a time"),
        ({"results": [{"size": "x", "out_of_place": {"time": 5, "nwrong": 0}}]}, "1 result without a size"),
    ],
)
def test_what_cannot_be_compared_with_anything_is_said(tmp_path, changes, text):
    found = _one(write(tmp_path / "x", {**speed({1024: 9.0}), **changes}))
    assert found.speeds == {} and any(text in one for one in found.missing)


def test_ranks_of_several_groups_are_those_of_one_group(tmp_path):
    devices = [{"rank": n, "group": n % 2} for n in range(8)]
    found = _one(write(tmp_path / "x", speed({1024: 9.0}, devices=devices)))
    assert list(found.speeds) == [("all_reduce", 1024, 4)] and "over 4 ranks" in found.sentences[0]


def calls(**header):
    lines = [operation(rank, serial, 50.0) for rank in range(4) for serial in range(3)]
    for line in lines[: 3 if header.pop("one", False) else None]:
        line["header"] |= header
    return lines


def test_inspector_never_ends_without_a_word_where_nothing_can_be_said(tmp_path):
    header = {"header": {"id": "0x1", "rank": 0, "n_ranks": 2}, "metadata": {"pid": 1}}
    none = _one(write(tmp_path / "a", header))
    assert any("no call is recorded by every rank" in one for one in none.missing)
    apart = [operation(rank, 10 * rank + n, 5.0) for rank in range(4) for n in range(3)]
    assert any(
        "no call is recorded by every rank" in one for one in _one(write(tmp_path / "b", *apart)).missing
    )
    unsaid = _one(write(tmp_path / "c", *calls(n_ranks=None)))
    assert any("how many ranks it has is not said" in one for one in unsaid.missing)
    mixed = _one(write(tmp_path / "d", *calls(), 3, {"a": 1}))
    assert any("2 operations of another kind" in one for one in mixed.missing)


def test_inspectors_impossible_and_unlike_ranks_are_said_and_break_nothing(tmp_path):
    beyond = _one(write(tmp_path / "a", *calls(rank=9, one=True)))
    assert any("of a rank that its communicator cannot have" in one for one in beyond.missing)
    assert any("no file of rank 0" in one for one in beyond.missing) and beyond.late_ranks == []
    other = _one(write(tmp_path / "b", *calls(n_ranks=7, one=True)))
    assert any("another number of ranks" in one for one in other.missing)
    lines = calls()
    lines[0]["coll_perf"]["coll"] = "AllGather"  # rank 0 is one collective ahead
    lines[1]["coll_perf"]["coll_msg_size_bytes"] = 8
    unlike = _one(write(tmp_path / "c", *lines))
    assert [row["complete"] for row in unlike.rows] == [False, False, True]
    assert any("2 operations are another collective or size" in one for one in unlike.missing)
    lines = calls()
    for line in lines:
        line["coll_perf"]["coll_exec_time_us"] = 0.0
    assert _one(write(tmp_path / "d", *lines)).speeds == {}, "no time to divide by"
    del lines[0]["coll_perf"]["coll_timing_source"]
    assert any("what timed them" in one for one in _one(write(tmp_path / "e", *lines)).missing)


def test_one_answer_of_ras_given_twice_is_one_answer_and_no_hang(tmp_path):
    first = write(tmp_path / "a", ras({0: 9, 1: 7}))
    for second in (ras({0: 9, 1: 7}), ras({0: 12, 1: 12})):  # a copy, and another file of the same moment
        found = _one(first, write(tmp_path / "b", second))
        assert found.late_ranks == [] and any("of the same moment" in one for one in found.missing)
        assert any("one answer cannot tell" in one for one in found.missing)


def test_answers_are_in_the_order_of_their_dates_or_else_it_is_said(tmp_path):
    later = write(tmp_path / "a", ras({0: 19, 1: 17}, timestamp="Fri Nov 20 10:00:09 2026"))
    sooner = write(tmp_path / "b", ras({0: 9, 1: 9}, timestamp="Fri Nov 20 10:00:01 2026"))
    assert "rank 1 launched 2 AllReduces fewer" in _one(later, sooner).sentences[0]
    unknown = write(tmp_path / "c", ras({0: 1, 1: 1}, timestamp="some day"))
    assert any("in the order given" in one for one in _one(later, unknown).missing)


def test_a_rank_that_stands_still_while_others_move_is_no_rank_that_is_only_behind(tmp_path):
    first = write(tmp_path / "a", ras({0: 9, 1: 9, 2: 7}))
    found = _one(first, write(tmp_path / "b", ras({0: 12, 1: 12, 2: 7}, timestamp="2")))
    assert [rank for rank, _ in found.late_ranks] == [2]
    assert "stands still while others move" in found.sentences[0]


def test_equal_counts_that_do_not_move_are_no_all_clear(tmp_path):
    pair = [write(tmp_path / name, ras({0: 9, 1: 9}, timestamp=name)) for name in "12"]
    found = _one(*pair)
    assert any("idle, or all wait in one" in one for one in found.missing)
    assert "namely none" in _one(write(tmp_path / "0", ras({0: 0, 1: 0}))).sentences[0]


def test_ranks_that_ras_lists_without_number_or_counts_or_not_at_all_are_said(tmp_path):
    document = ras({0: 9, 1: 9, 2: 9, 3: 9})
    one = document["communicators"][0]
    one["ranks"][1]["rank"] = 0
    one["ranks"][2]["collective_counts"] = {}
    one["ranks"][3]["collective_counts"] = {"AllReduce": "x"}
    one["size"] = 6
    found = _one(write(tmp_path / "x", document))
    assert any("3 ranks without a number of its own, or without counts" in text for text in found.missing)
    assert any("2 of its ranks are not listed" in text for text in found.missing)
    assert "fewer" not in " ".join([*found.sentences, *found.missing])


def test_two_communicators_of_one_hash_are_two_and_no_two_answers(tmp_path):
    document = ras({0: 9, 1: 7})
    other = ras({0: 9, 1: 7})["communicators"][0]
    document["communicators"] += [
        {**other, "secondary_hash": "0x2"},
        {**other, "secondary_hash": "0x3"},
        other,
    ]
    found = _one(write(tmp_path / "x", document))
    assert found.late_ranks == [] and sum("one answer cannot tell" in one for one in found.missing) == 3
    assert any("communicator 0x1 is there twice" in one for one in found.missing)


def test_values_replaced_at_random_end_in_words_and_never_in_another_error(tmp_path):
    dice = random.Random(7)
    odd = [None, -1, 1e308, "x", "", [], {}, True, float("nan"), 10**30, "\x1b[2J", [[]], {"a": None}]
    made = [
        lambda: [speed({1024: 9.0, 4096: 12.0})],
        lambda: [operation(rank, n, 50.0 + rank) for rank in range(4) for n in range(2)],
        lambda: [ras({0: 9, 1: 8, 2: 9}, missing=1)],
    ]
    for turn in range(300):
        documents = made[turn % 3]()
        places: list = [(documents, at) for at in range(len(documents))]
        for holder, at in places:
            inner = holder[at]
            keys = (
                list(inner)
                if isinstance(inner, dict)
                else range(len(inner) if isinstance(inner, list) else 0)
            )
            places += [(inner, key) for key in keys]
        for holder, at in dice.sample(places[1:], 3):
            holder[at] = dice.choice(odd)
        try:
            for found in read_evidence([write(tmp_path / "x", *documents)]):
                assert all(found.sentences) and "\x1b" not in "".join([*found.sentences, *found.missing])
        except BadDataError:
            pass


@pytest.mark.parametrize(("limit", "text"), [("FILES", "2 files in one folder"), ("OBJECTS", "1 values")])
def test_more_than_is_read_is_an_error_and_not_left_out(tmp_path, monkeypatch, limit, text):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}\n{}")
    monkeypatch.setattr(f"lab.recordings.nccl.read.MOST_{limit}", 1)
    with pytest.raises(BadDataError, match=text):
        read_evidence([tmp_path] if limit == "FILES" else [tmp_path / "a.json"])


PRINTED = """nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  12 on node-a device  0 [0x07] NVIDIA A100-SXM4-80GB
#   Rank  1 Pid  12 on node-a device  1 [0x0f] NVIDIA A100-SXM4-80GB
#
#   size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       8      2  float    sum    -1  {first}   0.00   0.00  {wrong}  10.53   0.00   0.00      0
          16             4     float     sum      -1    11.28    0.00    0.00    N/A    10.
# Out of bounds values : {wrong} {verdict}
"""


@pytest.mark.parametrize("command", ["", "mpirun -np 2 ./build/all_gather_perf -b 8 -e 16\n"])
def test_what_nccl_tests_prints_is_read_as_its_json(tmp_path, command):
    path = tmp_path / ("run.txt" if command else "all_gather_perf.log")
    path.write_text(command + "# " + PRINTED.format(first=10.66, wrong=0, verdict="OK"))
    found = _one(path)
    assert found.speeds == {("all_gather", 8, 2): 10.66, ("all_gather", 16, 2): 11.28}
    assert [row["wrong"] for row in found.rows] == [0, 0, -1, -1]


def test_wrong_values_in_what_nccl_tests_prints_are_said(tmp_path):
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text("# " + PRINTED.format(first=10.66, wrong=2, verdict="FAILED"))
    found = _one(path)
    assert found.speeds[("all_reduce", 8, 2)] == 10.53
    assert "all_reduce_perf.txt: nccl-tests says that results are out of bounds" in found.missing


@pytest.mark.parametrize("form", ["json", "lines", "csv"])
def test_rows_of_rccl_tests_are_read_with_their_number_of_gpus(tmp_path, form):
    gpus = {"ranks": 4, "gpusPerRank": 2} if form == "json" else {"gpus": 8}
    rows = [
        {
            "numCycle": 0,
            "name": "AllToAllv",
            **gpus,
            "size": size,
            "type": "float",
            "redop": "none",
            "inPlace": place,
        }
        | {"time": size / 100 + place, "algBw": 1.0, "busBw": 0.9, "wrong": "0"}
        for size in (1024, 2048)
        for place in (0, 1)
    ]
    texts = {
        "json": json.dumps(rows),
        "lines": "\n".join(map(json.dumps, rows)),
        "csv": "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]),
    }
    (tmp_path / "out").write_text(texts[form])
    found = _one(tmp_path / "out")
    assert (
        found.speeds == {("all_to_all", 1024, 8): 10.24, ("all_to_all", 2048, 8): 20.48}
        and len(found.rows) == 4
    )


@pytest.mark.data
@pytest.mark.parametrize("name", ["all_reduce_perf.txt", "with_version.txt", "rccl_tests.json"])
def test_made_outputs_give_the_planted_times(shared_data, name):
    folder = shared_data / "cases/ranks"
    truth = json.loads((folder / "truth.json").read_text())["import"][name]
    found = _one(folder / "import" / name)
    collective = truth["collective"].split()[0]
    wanted = {(collective, int(size), truth["ranks"]): us for size, us in truth["out_of_place_us"].items()}
    assert found.speeds == wanted and not found.missing
