"""How collectives ran: by the log, else by the block; and whether that is what was requested."""

from __future__ import annotations

from collections import Counter

from lab.rooms.sweep.effective import Choice, How, LogChoices, by_block, how_of, word_verdict

RING_LL = "ncclDevKernel_AllGather_RING_LL"


def _how(said: LogChoices, **changes: object) -> How:
    known = {"kernel": RING_LL, "block": 288, "threads": 256}
    return how_of(said, "all_gather", 1 << 20, **{**known, **changes})  # type: ignore[arg-type]


def test_the_log_goes_before_the_block_and_the_name():
    said = LogChoices({("allgather", 1 << 20): Counter({Choice("nvls", "simple", 16): 3})}, nvls=16)
    assert _how(said, block=640) == How("nvls", "simple", "log")
    assert _how(LogChoices(nvls=0), block=640) == How("ring", "ll128", "block")
    assert _how(LogChoices(nvls=16), block=640) == How()


def test_calls_of_one_size_that_ran_differently_are_all_named_and_honour_nothing():
    mixed = Counter({Choice("ring", "simple"): 5, Choice("ring", "ll128"): 1})
    how = _how(LogChoices({("allgather", 1 << 20): mixed}))
    assert how == How("ring", "ll128/simple", "log")
    assert word_verdict("ring", how.algorithm) == "honoured"
    assert word_verdict("simple", how.protocol) == "ignored"


def test_nothing_told_and_nothing_requested_are_unknown():
    assert word_verdict("ring", "") == word_verdict("", "ring") == "unknown"


def test_a_block_tells_the_protocol_only_where_nothing_else_has_it():
    plain, sharp = LogChoices(nvls=0), LogChoices(nvls=16)
    assert by_block("", 288, 256, sharp) == Choice("ring", "simple")
    assert by_block("", 640, 256, plain) == Choice("ring", "ll128")
    assert by_block("", 640, 256, sharp) is None and by_block("", 288, 0, plain) is None
    assert by_block("x_TREE_LL", 640, 256, plain) == Choice("tree", "ll128")
