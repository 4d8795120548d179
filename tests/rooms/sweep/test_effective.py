"""Whether requested channels and threads took effect: kernels' grids and blocks, and NCCL's log."""

from __future__ import annotations

from collections import Counter

import pytest

from lab.rooms.sweep.effective import (
    Choice,
    How,
    LogChoices,
    channels_verdict,
    how_of,
    read_logs,
    threads_verdict,
    verdict_over_sizes,
    word_verdict,
)
from tests.rooms.sweep.tuner.made import applied, tuning


@pytest.mark.parametrize(
    ("requested", "effective", "log", "verdict"),
    [
        (28, 28, 28, "honoured"),
        (28, 27, 28, "clamped"),
        (70, 64, 64, "clamped"),
        (70, -1, 64, "clamped"),
        (28, 28, -1, "honoured"),
        (32, 32, 16, "honoured"),  # most communicators of the job are smaller ones
        (32, 16, 16, "clamped"),
        (32, 24, 32, "clamped"),
        (28, 56, -1, "ignored"),
        (28, -1, 28, "unknown"),
        (0, 28, 28, "unknown"),
    ],
)
def test_channels_are_judged_by_grid_and_log(requested, effective, log, verdict):
    assert channels_verdict(requested, effective, log) == verdict


@pytest.mark.parametrize(
    ("requested", "effective", "verdict"),
    [
        (256, 256, "honoured"),
        (256, 288, "honoured"),
        (512, 544, "honoured"),
        (256, 640, "ignored"),
        (512, 256, "ignored"),
        (256, -1, "unknown"),
        (0, 256, "unknown"),
    ],
)
def test_threads_are_judged_by_the_block_and_nccls_extra_warp(requested, effective, verdict):
    assert threads_verdict(requested, effective) == verdict


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "unknown"),
        ([(8, "unknown")], "unknown"),
        ([(8, "honoured"), (9, "unknown")], "honoured"),
        ([(8 << 20, "ignored"), (96 << 20, "honoured")], "honoured for >= 96 MiB, ignored below"),
        ([(512, "clamped"), (2048, "honoured")], "honoured for >= 2 KiB, clamped below"),
        ([(8, "honoured"), (9, "ignored")], "mixed: honoured, ignored; honoured for 1 of 2 sizes"),
    ],
)
def test_verdicts_over_sizes_become_one_sentence(verdicts, sentence):
    assert verdict_over_sizes(verdicts) == sentence


RING_LL = "ncclDevKernel_AllGather_RING_LL"


def _how(said: LogChoices, **changes: object) -> How:
    known = {"kernel": RING_LL, "block": 288, "threads": 256}
    return how_of(said, "all_gather", 1 << 20, **{**known, **changes})  # type: ignore[arg-type]


def test_the_log_goes_before_the_block_and_the_name():
    said = LogChoices({("allgather", 1 << 20): Counter({Choice("nvls", "simple"): 3})}, nvls=16)
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
    assert _how(sharp, block=288) == How("ring", "simple", "block")
    assert _how(sharp, block=640) == _how(plain, block=288, threads=0) == How()
    assert _how(plain, kernel="x_TREE_LL", block=640) == How("tree", "ll128", "block")


def _said(tmp_path, text: str):
    (tmp_path / "nccl.log").write_text(text)
    return read_logs([tmp_path / "nccl.log"])


def test_a_call_is_told_by_words_or_by_numbers(tmp_path):
    old = "h:1:1 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008\n"
    said = _said(tmp_path, tuning(1024, "NVLS_TREE", "LL128", 15) + tuning(2048, "Tree", "Simple") + old)
    assert {key: [*choices] for key, choices in said.choices.items()} == {
        ("allreduce", 1024): [Choice("nvls_tree", "ll128")],
        ("allreduce", 2048): [Choice("tree", "simple")],
        ("allgather", 37756928): [Choice("ring", "simple")],
    }


def test_what_a_tuner_applied_and_what_became_of_the_plugin_is_read(tmp_path):
    plugin = "h:1:1 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v4 symbol.\n"
    said = _said(tmp_path, applied(1024, 12) * 3 + plugin + "x 16 coll channels, 0 nvls channels\n")
    assert said.applied["allreduce", 1024] == {Choice("ring", "simple"): 3}
    assert list(said.plugin) == ["Failed to find ncclTunerPlugin_v4 symbol."] and said.nvls == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\xff" * 100_000,
        "AllReduce: 9 Bytes -> Algo 77 proto 9",
        "AllReduce: x Bytes -> Algo RING proto LL",
    ],
)
def test_odd_logs_say_nothing(tmp_path, text):
    said = _said(tmp_path, text)
    assert not said.choices and not said.applied and said.nvls == -1


def test_the_log_counts_the_channels_of_most_communicators(tmp_path):
    lines = ["x NCCL INFO 28 coll channels, 28 collnet channels"] * 3 + ["NCCL INFO 4 coll channels"]
    (tmp_path / "nccl.a.log").write_bytes(b"\xff\x00 noise\n" + "\n".join(lines).encode())
    assert read_logs(tmp_path.glob("*.log")).channels == 28
    assert read_logs([]).channels == -1
