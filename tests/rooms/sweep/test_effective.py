"""Whether requested channels and threads took effect: kernels' grids and blocks, and NCCL's log."""

from __future__ import annotations

import pytest

from lab.rooms.sweep.effective import channels_verdict, threads_verdict, verdict_over_sizes


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
