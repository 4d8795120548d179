"""What nccl-tests and rccl-tests measured, printed or written."""

from __future__ import annotations

import json
import random

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.nccl import read_evidence
from tests.recordings.nccl_made import speed, write


def _one(*paths):
    return read_evidence(paths)


def test_nccl_tests_give_times_by_kind_size_and_ranks(tmp_path):
    found = _one(write(tmp_path / "x", speed({1024: 9.0, 4096: 12.0})))
    assert not found.missing
    assert found.speeds == {("all_reduce", 1024, 8): 9.0, ("all_reduce", 4096, 8): 12.0}
    assert "hunter2" not in json.dumps(found.rows + found.sentences)


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


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"),
        (b"nope", "not JSON"),
        (b"[" * 100_000, "nested"),
        (b"3", "neither"),
        (b'{"entries": [], "pg_config": {}}', "ranks hang"),
        (b'{"a": 1}', "neither"),
    ],
)
def test_what_is_none_of_these_is_said(tmp_path, data, text):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(BadDataError) as error:
        read_evidence([tmp_path / "x"])
    assert text in f"{error.value.problem} {error.value.fix}"


def test_no_file_is_missing(tmp_path):
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(MissingError):
            read_evidence([path])


def test_a_bad_file_among_good_ones_is_said(tmp_path):
    write(tmp_path / "a.json", speed({1024: 9.0}))
    (tmp_path / "b.json").write_text("x")
    assert any("b.json: not JSON" in text for text in _one(tmp_path).missing)


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


def test_values_replaced_at_random_end_in_words_and_never_in_another_error(tmp_path):
    dice = random.Random(7)
    odd = [None, -1, 1e308, "x", "", [], {}, True, float("nan"), 10**30, "\x1b[2J", [[]], {"a": None}]
    for _ in range(150):
        documents = [speed({1024: 9.0, 4096: 12.0})]
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
            found = read_evidence([write(tmp_path / "x", *documents)])
            assert all(found.sentences) and "\x1b" not in "".join([*found.sentences, *found.missing])
        except BadDataError:
            pass


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
