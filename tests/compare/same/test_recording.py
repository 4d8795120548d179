"""Files from outside: damaged, cut off, hostile."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner

from lab.compare.same.cli import same
from lab.errors import BadDataError, MissingError, UsageError
from lab.workload.recorder.format import read
from tests.compare.same.test_shared import write

ROW = {
    "i": 0, "kind": "op", "op": "aten.mm.default", "dtype": "float32", "shape": [2], "ck": "aa", "l2": 1.0,
    "absmax": 1.0, "sample_at": [0, 1], "sample": [0.5, 0.5],
}  # fmt: skip
META = {"meta": {"format": 1, "checksum": "mix64", "level": "op", "dtype": "float32"}}
END = {"end": {"rows": 1, "grads": 0, "error": ""}}


def test_a_file_without_its_end_mark_is_not_complete(tmp_path):
    assert read(write(tmp_path / "a", [META, ROW, END])).lacks == ()
    assert "cut off" in read(write(tmp_path / "b", [META, ROW])).lacks[0]
    assert "its end mark says 1" in read(write(tmp_path / "c", [META, ROW, ROW, END])).lacks[0]
    failed = {"end": {"rows": 1, "error": "RuntimeError"}}
    assert "ended with RuntimeError" in read(write(tmp_path / "d", [META, ROW, failed])).lacks[0]


def test_equal_bits_of_an_incomplete_recording_are_no_all_clear(tmp_path):
    whole, torn = write(tmp_path / "a", [META, ROW, END]), write(tmp_path / "b", [META, ROW])
    assert CliRunner().invoke(same, [str(whole), str(whole)]).exit_code == 0
    done = CliRunner().invoke(same, [str(whole), str(torn)])
    assert done.exit_code == 3
    assert "undecided" in done.output and "cut off" in done.output


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"left_out": 7}, "7 rows left out"),
        ({"unseen": {"Tensor (float32, sparse)": 2}}, "without readable bits: Tensor (float32, sparse)"),
    ],
)
def test_equal_bits_beside_tensors_that_no_row_has_are_no_all_clear(tmp_path, end, words):
    path = write(tmp_path / "a", [META, ROW, {"end": {"rows": 1, **end}}])
    done = CliRunner().invoke(same, [str(path), str(path)])
    assert done.exit_code == 3 and words in done.output


DAMAGED = {
    "empty": b"",
    "cut gzip": gzip.compress(json.dumps(META).encode(), mtime=0)[:-9],
    "gzip's first bytes": b"\x1f\x8b",
    "a list": b"[1]\n",
    "no version": b'{"meta": {}}\n{"op": 1}\n',
    "bytes": b"\x00\xff",
    "a rank of no job": b'{"meta": {"format": 2, "rank": 99999999}}\n',
    "a line of 2 MiB": b'{"meta": {}}\n' + b"x" * (1 << 21),
    "no checksum": json.dumps(META).encode() + b"\n" + json.dumps({**ROW, "ck": ""}).encode(),
    "a count below 0": json.dumps(META).encode() + b"\n" + json.dumps({**ROW, "nan": -3}).encode(),
    "too many samples": json.dumps(META).encode()
    + b"\n"
    + json.dumps({**ROW, "sample": [1.0] * 65}).encode(),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_cannot_be_read_is_an_error_with_its_place(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(BadDataError) as caught:
        read(tmp_path / "a")
    assert caught.value.location == str(tmp_path / "a")


def test_a_recording_of_nothing_is_an_error(tmp_path):
    path = write(tmp_path / "a", [META])
    done = CliRunner().invoke(same, [str(path), str(path)])
    assert isinstance(done.exception, BadDataError) and "has no rows" in str(done.exception)


def test_a_missing_file_and_a_folder_are_missing(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(MissingError):
            read(path)


@pytest.mark.parametrize("option", ["--floor", "--reference", "--level"])
def test_an_option_that_would_not_be_used_is_refused(tmp_path, option):
    path = write(tmp_path / "a", [META, ROW, END])
    given = "module" if option == "--level" else str(path)
    (tmp_path / "replay").mkdir()
    error = CliRunner().invoke(same, [str(tmp_path / "replay"), option, given]).exception
    assert isinstance(error, UsageError) and option in str(error)


def test_names_cannot_steer_the_terminal(tmp_path):
    hostile = {**ROW, "op": "\x1b[2Jaten.mm", "module": "\x1b]0;x\x07", "ck": "bb"}
    a, b = write(tmp_path / "a", [META, ROW, END]), write(tmp_path / "b", [META, hostile, END])
    done = CliRunner().invoke(same, [str(a), str(b)])
    assert "\x1b" not in done.output and "\x07" not in done.output
