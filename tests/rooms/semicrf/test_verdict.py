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


def read(cells, tested="triton", reference="torch", probes=()):
    return verdict.diagnose(cells, list(probes), tested, reference)


@pytest.mark.parametrize(
    ("right", "status"),
    [
        ("none", "ok"),
        ("precision", "warn"),
        ("optimiser", "warn"),
        *((name, "fail") for name in ("input", "boundary", "objective", "race", "kernel", "shared")),
    ],
)
def test_only_precision_and_the_optimiser_are_mere_warnings(right, status):
    assert verdict.Diagnosis(right, []).status == status and right in verdict.CAUSES


def test_a_finding_of_the_probes_gives_cause_matrix_and_advice_in_this_order():
    found = read(cells(lambda b, *_: b == "triton"), probes=[CLEAN, probe("objective")])
    assert found.cause == "objective" and len(found.sentences) == 3
    head, of_matrix, advice = found.sentences
    assert "parameter drift" in head and head.endswith(": what was seen.")
    assert of_matrix.startswith("8 of 16 trainings") and advice.startswith("What to do: use one definition")


@pytest.mark.parametrize(
    ("rows", "evidence"),
    [
        (["race", "boundary", "kernel", "precision"], ["race", "boundary", "kernel"]),
        (["boundary", "kernel", "precision"], ["boundary", "kernel"]),
        (["kernel", "precision"], ["kernel"]),
        (["input", "kernel"], ["input"]),
        (["objective", "race"], ["objective"]),
        (["precision"], ["precision"]),
    ],
)
def test_the_evidence_is_every_probe_that_the_cause_can_dirty(rows, evidence):
    found = read(cells(), probes=[CLEAN, *(probe(name, "triton", name) for name in rows)])
    assert found.evidence == [f"{name} (triton): what was seen." for name in evidence]


def test_shared_code_is_proved_by_the_probes_of_both_backends():
    rows = [probe("kernel", "triton"), probe("kernel", "torch"), probe("precision", "torch", "another")]
    found = read(cells(), probes=rows)
    assert found.cause == "shared"
    assert found.evidence == ["a probe (triton): what was seen.", "a probe (torch): what was seen."]


def test_a_probe_without_a_backend_names_none():
    assert read(cells(), probes=[probe("input")]).evidence == ["a probe: what was seen."]


@pytest.mark.parametrize(
    ("fails", "tested", "reference", "right"),
    [
        (lambda b, lengths, reg: b == "triton" and lengths == "variable", "triton", "torch", "boundary"),
        (lambda b, lengths, reg: b == "triton" and reg == 0.0, "triton", "torch", "kernel"),
        (lambda b, lengths, reg: b == "torch", "triton", "torch", "optimiser"),
        (lambda b, lengths, reg: b == "torch" and reg == 0.0, "triton", "torch", "objective"),
        (lambda b, lengths, reg: b == "triton", "triton", "triton", "optimiser"),
        (lambda b, lengths, reg: lengths == "fixed", "triton", "torch", "shared"),
        (lambda b, lengths, reg: reg == 0.01, "triton", "torch", "shared"),
    ],
)
def test_the_halves_of_the_matrix_that_fail_decide(fails, tested, reference, right):
    found = read(cells(fails), tested, reference)
    assert found.cause == right
    assert verdict.CAUSES[right] in found.sentences[0] and " of 16 trainings" in found.sentences[1]


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_one_backend_alone_shares_nothing_and_is_not_held_against_another(backend):
    only = [cell for cell in cells(lambda *_: True) if cell["backend"] == backend]
    found = read(only)
    assert found.cause == "optimiser" and "learning rate or clipping" in found.sentences[0]


def test_the_cause_read_from_the_matrix_names_the_backends_and_the_first_failure():
    rows = cells(lambda b, *_: b == "triton")
    rows[0]["message"] = "the first"
    found = read(rows)
    assert "triton fails and torch passes" in found.sentences[0] and found.evidence == ["the first."]
    assert "triton and torch both fail" in read(cells(lambda *_: True)).sentences[0]


def test_what_passed_is_told_of_trainings_and_probes_that_were_run():
    head, *rest = read(cells(), probes=[CLEAN]).sentences
    assert "every training of the matrix passed and every probe is clean" in head and rest == []
    head, rest = read(cells()).sentences
    assert head.endswith("every training of the matrix passed.") and "probes did not run" in rest
    (head,) = read([], probes=[CLEAN]).sentences
    assert head.endswith(": every probe is clean.")


def test_drift_is_told_even_where_nothing_failed():
    rows = cells()
    rows[3]["transition_max"] = 33.0
    found = read(rows, probes=[CLEAN])
    assert found.cause == "none" and "33.0" in found.sentences[1]
