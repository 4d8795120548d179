"""Begins and ends find each other; messages decode alike alone and in lockstep."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("perfetto")

from lab.errors import BadDataError
from lab.recordings.pftrace.pairing import paired
from lab.recordings.pftrace.trace import read_slices
from lab.recordings.protobuf import BadWire, fields, padded
from tests.recordings.pftrace.made import Writer


def slices_of(*events):
    """(track, ts, begins) -> [(track, start, end)]."""
    track, ts, begins = (list(column) for column in zip(*events, strict=True))
    pairs = paired(track, ts, [bool(begin) for begin in begins])
    spans = [(track[begin], ts[begin], ts[end]) for begin, end in pairs.rows]
    return sorted(spans), pairs.open_begins, pairs.lone_ends


@pytest.mark.parametrize(
    ("events", "spans"),
    [
        # nested and in order, with one of zero length inside
        ([(1, 0, 1), (1, 5, 1), (1, 5, 0), (1, 9, 0)], [(1, 0, 9), (1, 5, 5)]),
        # all begins first: touching slices, and one of zero length where they touch
        (
            [(1, 5, 1), (1, 0, 1), (1, 5, 1), (1, 5, 0), (1, 5, 0), (1, 9, 0)],
            [(1, 0, 5), (1, 5, 5), (1, 5, 9)],
        ),
        # all begins first, latest first, nested
        (
            [(1, 6, 1), (1, 2, 1), (1, 0, 1), (1, 9, 0), (1, 4, 0), (1, 8, 0)],
            [(1, 0, 9), (1, 2, 4), (1, 6, 8)],
        ),
        # two tracks whose events alternate
        ([(1, 0, 1), (2, 1, 1), (1, 3, 0), (2, 4, 0)], [(1, 0, 3), (2, 1, 4)]),
    ],
)
def test_an_end_finds_its_begin(events, spans):
    assert slices_of(*events) == (spans, 0, 0)


def test_events_without_a_partner_are_counted_and_cost_no_other_slice():
    events = [(1, 0, 0), (1, 1, 1), (1, 2, 0), (1, 3, 1), (2, 0, 1), (2, 4, 1), (2, 5, 0)]
    assert slices_of(*events) == ([(1, 1, 2), (2, 4, 5)], 2, 1)


def test_a_clock_of_the_sequence_s_own_is_refused(tmp_path):
    made = Writer()
    made.packet().trace_packet_defaults.timestamp_clock_id = 64
    made.slice(1, 5, 20, "kernel", "k")
    with pytest.raises(BadDataError, match="clock of the sequence's own \\(64\\)"):
        read_slices(made.write(tmp_path / "a"))


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(
    "message", [b"\x08", b"\x0a\x05ab", b"\x0b\x00", b"\x08" + b"\xff" * 11, b"\x00\x01", b"\x09\x01"]
)
def test_a_message_that_is_none_is_refused_alone_and_in_lockstep(message, count):
    data = padded(message * count)
    starts = np.arange(count) * len(message)
    with pytest.raises(BadWire):
        fields(data, starts, starts + len(message))


def test_lockstep_and_one_by_one_give_the_same_fields():
    generator = np.random.default_rng(3)
    messages = []
    for _ in range(200):
        parts = []
        for _ in range(generator.integers(0, 6)):
            number, kind = int(generator.integers(1, 3000)), int(generator.choice([0, 1, 2, 5]))
            tag = number << 3 | kind
            body = {
                0: bytes([0x80 | int(generator.integers(0, 128)), int(generator.integers(0, 128))]),
                1: generator.bytes(8),
                2: bytes([3]) + generator.bytes(3),
                5: generator.bytes(4),
            }[kind]
            parts.append(bytes([tag & 0x7F | 0x80, tag >> 7 & 0x7F | 0x80, tag >> 14]) + body)
        messages.append(b"".join(parts))
    ends = np.cumsum([len(one) for one in messages])
    starts = ends - [len(one) for one in messages]
    data = padded(b"".join(messages))
    together = fields(data, starts, ends)
    for index in range(len(messages)):
        alone = fields(data, starts[index : index + 1], ends[index : index + 1])
        mine = together.message == index
        for name in ("number", "value", "end"):
            assert getattr(alone, name).tolist() == getattr(together, name)[mine].tolist()
