"""Whether the requested channels and threads took effect, from planted rows."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.rooms.sweep.verdict import honoured

MIB = 1 << 20


def row(asked, got, verdict, *, size=MIB, log=-1, knob="channels"):
    found = {f"requested_{knob}": asked, f"effective_{knob}": got, f"{knob}_verdict": verdict}
    return {"requested_channels": 0, **found, "msg_bytes": size, "log_channels": log}


def told(*rows, knob="channels"):
    return honoured(pd.DataFrame(list(rows)), knob)


def test_values_that_behave_alike_share_a_sentence():
    rows = [row(asked, asked, "honoured", size=size) for asked in (42, 28) for size in (MIB, 2 * MIB)]
    assert told(*rows) == ["Channels 28, 42: honoured."]


def test_values_that_behave_differently_have_a_sentence_each():
    assert told(row(28, 28, "honoured"), row(42, 32, "clamped")) == [
        "Channels 28: honoured.",
        "Channels 42: clamped (42 -> 32).",
    ]


@pytest.mark.parametrize("asked", [0, -1])
def test_what_was_not_requested_is_not_judged(asked):
    assert told(row(asked, 28, "ignored")) == []


def test_a_request_of_one_is_judged():
    assert told(row(1, 1, "honoured")) == ["Channels 1: honoured."]


def test_large_messages_alone_are_honoured_from_their_size_on():
    rows = [row(28, 16, "clamped"), row(28, 28, "honoured", size=2 * MIB), row(28, 16, "clamped")]
    assert told(*rows) == ["Channels 28: honoured for >= 2 MiB, clamped below (28 -> 16)."]


def test_what_is_unknown_at_some_sizes_is_never_honoured_at_all():
    assert told(row(28, -1, "unknown")) == ["Channels 28: unknown."]
    (text,) = told(row(28, 28, "honoured"), row(28, -1, "unknown", size=2 * MIB))
    assert text == "Channels 28: honoured, unknown at 2 MiB."


def test_pairs_are_told_once_in_order_and_by_the_log_where_there_is_no_grid():
    rows = [row(42, 24, "clamped"), row(28, 24, "clamped"), row(28, -1, "clamped", log=16)]
    (text,) = told(*rows, *rows)
    assert text == "Channels 28, 42: clamped (28 -> 16, 28 -> 24, 42 -> 24)."


def test_threads_are_never_held_against_the_logs_channels():
    rows = [{**row(256, 640, "ignored", log=99, knob="threads"), "requested_channels": 28}]
    assert told(*rows, knob="threads") == ["Threads 256: ignored (256 -> 640)."]
