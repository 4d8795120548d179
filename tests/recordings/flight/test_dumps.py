"""Dumps come from outside: nothing in them runs, and what they are is said."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.flight import read_dumps


class Runs:
    def __reduce__(self):
        return os.mkdir, ("/tmp/lab_pickle_ran",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_wants_to_run_something_is_refused_and_does_not(tmp_path, protocol):
    (tmp_path / "rank0.pkl").write_bytes(pickle.dumps({"entries": [Runs()]}, protocol=protocol))
    with pytest.raises(BadDataError, match="run code"):
        read_dumps(tmp_path)
    assert not Path("/tmp/lab_pickle_ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04",
        b"",
        b"not a pickle",
        b'{"entries": ',
        b"[1, 2]",
        pickle.dumps([1, 2, 3]),
        pickle.dumps({"entries": "many"}),
        b"\x80\x04]r\xff\xff\xff\x7f.",  # a memo of two billion places
        b"(lp0\n0g0\n.",
    ],
)
def test_what_is_no_dump_is_said_with_its_file(tmp_path, data):
    (tmp_path / "rank0.pkl").write_bytes(data)
    with pytest.raises(BadDataError) as caught:
        read_dumps(tmp_path)
    assert str(caught.value.location).endswith("rank0.pkl")


def test_odd_values_in_entries_are_unknown_and_texts_are_made_printable(tmp_path):
    odd = {"process_group": 7, "collective_seq_id": "x", "input_sizes": "big", "frames": [3, {"line": None}]}
    named = {"process_group": ["\x1b[31mred", ""], "profiling_name": "nccl:all\x07reduce", "state": None}
    (tmp_path / "rank3.json").write_text(json.dumps({"entries": [odd, named, 5]}))
    dumps = read_dumps(tmp_path)
    first, second = dumps[3].entries
    assert (first.seq, first.input_sizes) == (-1, ()) and "\x1b" not in second.group + second.name


def test_names_tell_the_rank_in_many_ways(tmp_path):
    for name in ("nccl_trace_rank_0", "dump.host2.1", "rank02.pkl", "job7_rank-3.json"):
        (tmp_path / "x").mkdir(exist_ok=True)
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / name).write_bytes(pickle.dumps({"entries": []}))
        dumps = read_dumps(folder)
        assert list(dumps) == [int(name.replace(".pkl", "").replace(".json", "")[-1])]


def test_no_folder_and_no_dumps_are_missing(tmp_path):
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(MissingError):
            read_dumps(path)


def test_shared_lists_huge_numbers_and_repeated_entries_stay_small(tmp_path):
    """Written out, the list would have 10^30 texts, and the number more digits than Python prints."""
    laughs = ["ha"]
    for _ in range(30):
        laughs = [laughs] * 10
    odd = {"process_group": [laughs, ""], "profiling_name": laughs, "state": 10**9999, "collective_seq_id": 1}
    odd |= {"record_id": 10**9999, "input_sizes": [[10**9999, laughs]], "frames": [{"filename": laughs}]}
    config = {"0": {"name": laughs, "desc": laughs, "ranks": laughs}}
    (tmp_path / "rank0.pkl").write_bytes(pickle.dumps({"entries": [odd] * 1000, "pg_config": config}))
    dumps = read_dumps(tmp_path)
    (entry,) = dumps[0].entries
    assert (entry.input_sizes, entry.state) == (((-1, -1),), "?")
    assert max(map(len, (entry.group, entry.name, entry.frames[0], *dumps[0].groups))) < 320


def nested_key(how: str) -> bytes:
    """A key whose hash takes 2^64 steps, in some 300 bytes."""
    program = [b"\x80\x02}", b"K\x01\x85"]
    for number in range(64):
        double = b"2" if how == "dup" else b"q%ch%c" % (number, number)
        program += [double, b"\x86"]
    return b"".join([*program, b"K\x01s."])


@pytest.mark.parametrize("how", ["dup", "memo"])
def test_a_key_that_takes_for_ever_to_hash_is_refused(tmp_path, how):
    (tmp_path / "rank0.pkl").write_bytes(nested_key(how))
    with pytest.raises(BadDataError, match="not a plain dump"):
        read_dumps(tmp_path)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_tuples_that_entries_share_are_read(tmp_path, protocol):
    group = ("0", "default")
    entries = [
        {"process_group": group, "collective_seq_id": n, "input_sizes": [[n, 2]], "frames": []}
        for n in range(3)
    ]
    (tmp_path / "rank0.pkl").write_bytes(pickle.dumps({"entries": entries}, protocol=protocol))
    dumps = read_dumps(tmp_path)
    assert [(one.group, one.seq, one.input_sizes) for one in dumps[0].entries] == [
        ("0", n, ((n, 2),)) for n in range(3)
    ]


def test_dumps_of_several_hosts_are_one_job_unless_a_rank_is_there_twice(tmp_path):
    for name in ("host1_rank0.json", "host2_rank1.json"):
        (tmp_path / name).write_text(json.dumps({"entries": []}))
    (tmp_path / "host2_rank1.stack.txt").write_text('File "train.py", line 3')
    dumps = read_dumps(tmp_path)
    assert "line 3" in dumps[1].stack and not dumps[0].stack
    (tmp_path / "host3_rank1.json").write_text(json.dumps({"entries": []}))
    with pytest.raises(BadDataError, match="two dumps of rank 1: host2_rank1"):
        read_dumps(tmp_path)


def test_more_files_than_are_read_are_an_error_and_not_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).touch()
    monkeypatch.setattr("lab.recordings.pieces.MOST_FILES", 1)
    with pytest.raises(BadDataError, match="2 files in one folder: more than 1"):
        read_dumps(tmp_path)
