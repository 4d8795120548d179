"""Truncated, damaged and foreign files: an error with its byte, or the readable part."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.errors import BadDataError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto
from tests.recordings.kineto.plain import SMALL, same, some_trace


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_file_is_refused_with_its_place_or_salvaged_in_part(tmp_path, share, packed):
    whole = read_kineto(some_trace().write(tmp_path / "whole.json"))
    name = "t.json.gz" if packed else "t.json"
    path = some_trace().write(tmp_path / name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(BadDataError) as caught:
        read_kineto(path, piece_bytes=SMALL)
    assert str(path) in caught.value.location and "byte" in caught.value.location
    part = read_kineto(path, salvage=True, piece_bytes=SMALL)
    assert part.truncated and not whole.truncated and "missing" in "".join(part.problems)
    n = len(part.operators)
    assert 0 < n < len(whole.operators)
    assert part.operators.external_id.tolist() == whole.operators.external_id[:n].tolist()
    assert part.meta.rank == 3


def test_a_cut_file_that_kept_its_base_time_at_the_end_says_that_it_is_lost(tmp_path):
    document = some_trace("amd").document()
    base_ns = document.pop("baseTimeNanoseconds")
    text = json.dumps({**document, "baseTimeNanoseconds": base_ns})  # as on ROCm
    (tmp_path / "t.json").write_text(text[:-400])
    part = read_kineto(tmp_path / "t.json", salvage=True)
    assert (part.meta.base_ns, part.meta.rank) == (0, 3)
    assert any("base time is missing" in problem for problem in part.problems)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Capture]:
    path = some_trace().write(tmp_path_factory.mktemp("whole") / "t.json", "one_line_per_block")
    return path.read_bytes(), read_kineto(path)


@settings(max_examples=80)
@given(share=st.floats(0, 1), packed=st.booleans(), piece=st.sampled_from([64, 700, 1 << 20]))
@example(share=0.00057, packed=True, piece=64)  # one byte of gzip's magic
def test_wherever_a_file_is_cut_salvage_gives_its_beginning(whole, tmp_path_factory, share, packed, piece):
    text, full = whole
    path = tmp_path_factory.mktemp("cut") / "t.json"
    raw = gzip.compress(text, 1) if packed else text
    path.write_bytes(raw[: int(len(raw) * share)])
    try:
        part = read_kineto(path, salvage=True, piece_bytes=piece)
    except BadDataError as error:
        assert "cut before its first event" in error.problem or "empty" in error.problem
        return
    n = len(part.operators)
    assert part.operators.start_ns.tolist() == full.operators.start_ns[:n].tolist()
    assert part.text(part.operators.dims_id).tolist() == full.text(full.operators.dims_id[:n]).tolist()
    assert part.truncated or share == 1


@settings(max_examples=80)
@given(at=st.floats(0, 0.999), byte=st.integers(0, 255), piece=st.sampled_from([700, 1 << 20]))
def test_one_wrong_byte_is_an_error_or_a_sentence_and_costs_few_events(
    whole, tmp_path_factory, at, byte, piece
):
    text, full = whole
    path = tmp_path_factory.mktemp("flip") / "t.json"
    raw = bytearray(text)
    raw[int(len(raw) * at)] = byte
    path.write_bytes(raw)
    try:
        part = read_kineto(path, salvage=True, piece_bytes=piece)
    except BadDataError as error:
        assert error.location and str(path) in error.location
        return
    lost = len(full.ops) - len(part.ops)
    assert lost <= 2 or part.problems or part.truncated


def test_damaged_gzip_data_never_pass_as_whole(tmp_path):
    path = some_trace().write(tmp_path / "t.json.gz")
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 0xFF  # the checksum
    path.write_bytes(raw)
    with pytest.raises(BadDataError, match="gzip"):
        read_kineto(path)
    assert read_kineto(path, salvage=True).truncated


def test_gzip_in_several_members_reads_as_one(tmp_path):
    text = some_trace().write(tmp_path / "a.json").read_bytes()
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text[:999]) + gzip.compress(text[999:]) + b"\0" * 20)
    assert same(read_kineto(tmp_path / "a.json"), read_kineto(tmp_path / "b.json.gz"))


def test_text_between_events_is_damage_with_its_byte(tmp_path):
    text = '{"traceEvents":[{"ph":"X"},\n oops {"ph":"X"}]}'
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(BadDataError, match="damaged") as caught:
        read_kineto(tmp_path / "t.json")
    assert f"byte {text.index(',')}" in caught.value.location
    assert "left out" in read_kineto(tmp_path / "t.json", salvage=True).problems[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("<html>not found</html>", "not a Kineto trace"),
        ("[]", "not a Kineto trace"),
        ('{"nodes": []}', "not a Kineto trace"),
        ('{"traceEvents": null}', "not a Kineto trace"),
        ('{"schemaVersion": 1, "deviceProp', "cut before"),
        ('{"traceEvents": []} trailing', "not JSON"),
        ('{"traceEvents": [], "a": 1, "traceEvents": [{"ph": "X"}]}', "traceEvents is there twice"),
        ('{"traceEv\\u0065nts": [{"ph": "X"}], "traceEvents": []}', "traceEvents is there twice"),
    ],
)
def test_foreign_files_are_named_and_refused(tmp_path, text, what):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(BadDataError, match=what) as caught:
        read_kineto(path)
    assert str(path) in caught.value.location and caught.value.fix


def test_a_document_in_the_header_may_have_events_of_its_own(tmp_path):
    text = some_trace().write(tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text('{"other": {"traceEvents": []},' + text[1:])
    assert same(read_kineto(tmp_path / "a.json"), read_kineto(tmp_path / "b.json"))


def test_of_two_lists_of_events_a_salvaged_trace_is_called_cut(tmp_path):
    text = some_trace().write(tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text(text.rstrip()[:-1] + ', "traceEvents": [{"ph": "X"}]}')
    found = read_kineto(tmp_path / "b.json", salvage=True)
    assert found.truncated and any("traceEvents" in one for one in found.problems)


def test_a_missing_trace_is_said_to_be_missing(tmp_path):
    with pytest.raises(MissingError):
        read_kineto(tmp_path / "none.json")
    with pytest.raises(MissingError):
        read_kineto(tmp_path)


@pytest.mark.data
def test_an_execution_trace_is_told_from_a_kineto_trace(shared_data):
    with pytest.raises(BadDataError, match="not a Kineto trace"):
        read_kineto(shared_data / "kernels_h200/bloom560m_et.json.gz")
