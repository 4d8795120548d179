"""Whether the requested channels and threads took effect, from planted rows."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.rooms.sweep.verdict.honoured import honoured

MIB = 1 << 20


def row(asked, got, verdict, *, size=MIB, log=-1, knob="channels"):
    found = {f"requested_{knob}": asked, f"effective_{knob}": got, f"{knob}_verdict": verdict}
    return {"requested_channels": 0, **found, "msg_bytes": size, "log_channels": log}


def told(*rows, knob="channels"):
    return honoured(pd.DataFrame(list(rows)), knob)


def test_values_that_behave_alike_share_a_sentence():
    rows = [row(asked, asked, "honoured", size=size) for asked in (42, 28) for size in (MIB, 2 * MIB)]
    assert told(*rows) == ["Channels 28, 42: honoured at every message size."]


def test_values_that_behave_differently_have_a_sentence_each():
    first, second = told(row(28, 28, "honoured"), row(42, 32, "clamped"))
    assert first == "Channels 28: honoured at every message size."
    assert second == "Channels 42: clamped (42 -> 32) at 1 MiB."


def test_the_same_verdict_at_other_sizes_is_another_pattern():
    assert len(told(row(28, 16, "clamped"), row(42, 16, "clamped", size=2 * MIB))) == 2


@pytest.mark.parametrize("asked", [0, -1])
def test_what_was_not_requested_is_not_judged(asked):
    assert told(row(asked, 28, "ignored")) == []


def test_a_request_of_one_is_judged():
    assert told(row(1, 1, "honoured")) == ["Channels 1: honoured at every message size."]


def test_verdicts_stand_in_their_order_with_unheard_of_ones_last():
    verdicts = ("unheard-of", "unknown", "ignored", "clamped", "honoured")
    (text,) = told(*(row(28, 16, verdict, size=MIB << n) for n, verdict in enumerate(verdicts)))
    assert [text.index(f"{verdict} ") for verdict in verdicts] == sorted(
        (text.index(f"{verdict} ") for verdict in verdicts), reverse=True
    )
    assert "honoured at 16 MiB; clamped (28 -> 16) at 8 MiB; ignored (28 -> 16) at 4 MiB" in text
    assert "unknown at 2 MiB, because" in text and "unheard-of (28 -> 16) at 1 MiB." in text


def test_unknown_everywhere_is_not_honoured():
    (text,) = told(row(28, -1, "unknown"))
    assert text.startswith("Channels 28: unknown at 1 MiB, because") and "honoured" not in text


def test_the_pairs_of_a_clause_are_those_of_its_verdict_each_once_and_in_order():
    rows = [row(42, 24, "clamped"), row(28, 24, "clamped"), row(28, 16, "clamped"), row(28, 16, "clamped")]
    rows += [row(asked, 7, "ignored", size=2 * MIB) for asked in (28, 42)]
    (text,) = told(*rows)
    assert "clamped (28 -> 16, 28 -> 24, 42 -> 24) at 1 MiB" in text
    assert "ignored (28 -> 7, 42 -> 7) at 2 MiB" in text


@pytest.mark.parametrize(("logs", "said"), [((28, 28), True), ((30, 29), True), ((28, 27), False)])
def test_a_log_that_reports_all_channels_is_mentioned(logs, said):
    rows = [row(28, 16, "clamped", log=log) for log in logs]
    assert ("though the log reports all of them" in told(*rows)[0]) is said


def test_threads_are_never_held_against_the_logs_channels():
    rows = [{**row(256, 640, "ignored", log=99, knob="threads"), "requested_channels": 28}]
    assert told(*rows, knob="threads") == ["Threads 256: ignored (256 -> 640) at 1 MiB."]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((1,), "at 1 MiB."),
        ((1, 2), "at 1 MiB and 2 MiB."),
        ((4, 1, 2), "at 1 MiB, 2 MiB and 4 MiB."),
        ((1, 2, 4, 8), "at 1 MiB, 2 MiB, 4 MiB and 8 MiB."),
        ((16, 1, 2, 4, 8), "at 5 sizes from 1 MiB to 16 MiB."),
    ],
)
def test_up_to_four_sizes_are_listed_and_more_are_a_range(sizes, words):
    (text,) = told(*(row(28, 16, "clamped", size=size * MIB) for size in sizes))
    assert text.endswith(words)
