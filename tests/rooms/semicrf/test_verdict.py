"""From rows to one cause."""

from __future__ import annotations

import pytest

from lab.rooms.semicrf import matrix, verdict

AXES = [
    (b, lengths, reg) for b in ("triton", "torch") for lengths in ("variable", "fixed") for reg in (0.0, 0.01)
]


def cells(fails=lambda b, lengths, reg: False, weights=lambda *_: "w"):
    return [
        {
            "backend": b,
            "lengths": lengths,
            "reg": reg,
            "order": 0,
            "repeat": repeat,
            "step": 3,
            "transition_max": 1.0,
            "duration_max": 2.0,
            "outcome": "failed" if fails(b, lengths, reg) else "passed",
            "message": "Non-finite partition",
            "weights": weights(b, repeat),
        }
        for b, lengths, reg in AXES
        for repeat in range(2)
    ]


def probe(cause, backend="", name="a probe"):
    return {
        "probe": name,
        "cause": cause,
        "backend": backend,
        "clean": False,
        "text": "what was seen",
        "value": 1,
        "limit": 0,
    }


CLEAN = {**probe("kernel", "triton"), "clean": True}


def cause(rows=()):
    return verdict.diagnose(cells(), [CLEAN, *rows], "triton", "torch").cause


def test_nothing_dirty_and_nothing_failed_is_no_fault():
    found = verdict.diagnose(cells(), [CLEAN], "triton", "torch")
    assert found.cause == "none" and found.status == "ok" and "every probe is clean" in found.sentences[0]


@pytest.mark.parametrize(
    "rows, right",
    [
        ([probe("kernel", "triton"), probe("input")], "input"),
        ([probe("objective"), probe("race", "triton")], "objective"),
        ([probe("boundary"), probe("kernel", "triton")], "boundary"),
        ([probe("race", "triton"), probe("kernel", "triton"), probe("boundary", "triton")], "race"),
        ([probe("boundary", "triton"), probe("kernel", "triton", "another")], "boundary"),
        ([probe("kernel", "triton")], "kernel"),
        ([probe("kernel", "triton"), probe("kernel", "torch")], "shared"),
        ([probe("precision", "triton")], "precision"),
    ],
)
def test_the_rules_stand_in_the_order_of_the_argument(rows, right):
    assert cause(rows) == right


@pytest.mark.parametrize(
    "fails, right",
    [
        (lambda b, lengths, reg: b == "triton", "kernel"),
        (lambda b, lengths, reg: True, "shared"),
        (lambda b, lengths, reg: lengths == "variable", "boundary"),
        (lambda b, lengths, reg: reg == 0.0, "objective"),
    ],
)
def test_the_matrix_alone_is_read_as_the_guide_reads_it(fails, right):
    found = verdict.diagnose(cells(fails), [], "triton", "torch")
    assert found.cause == right and "Non-finite partition" in found.evidence[0]


def test_one_lone_failure_among_clean_probes_speaks_for_the_optimiser():
    lone = cells()
    lone[0]["outcome"], lone[-1]["outcome"] = "failed", "failed"
    only_triton = [c for c in lone if c["backend"] == "triton"]
    assert verdict.diagnose(only_triton, [CLEAN], "triton", "torch").cause in (
        "objective",
        "boundary",
        "optimiser",
    )


def test_repeats_that_end_with_different_weights_name_their_backend():
    sentences = matrix.matrix_sentences(
        cells(weights=lambda b, repeat: f"{b}{repeat if b == 'triton' else 0}")
    )
    assert any(
        "4 of 8 repeated trainings ended with different weights, all on triton" in text for text in sentences
    )


def test_drift_above_the_guides_threshold_is_a_sentence():
    drifting = cells()
    drifting[0]["duration_max"] = 25.0
    assert "25.0" in matrix.drift_sentences(drifting)[0] and not matrix.drift_sentences(cells())


def test_the_guides_four_steps_are_answered_from_the_matrix():
    steps = matrix.classic_steps(
        cells(lambda b, lengths, reg: b == "triton" and lengths == "variable"), "triton", "torch"
    )
    assert [s["answer"] for s in steps] == [
        "every run has a cache of its own; 0 of 2 pass",
        "2 of 2 pass",
        "2 of 2 pass",
        "no parameter above 20",
    ]
