"""From rows to one cause."""

from __future__ import annotations

import pytest

from lab.rooms.semicrf import verdict

AXES = [
    (b, lengths, reg) for b in ("native", "torch") for lengths in ("variable", "fixed") for reg in (0.0, 0.01)
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


CLEAN = {**probe("kernel", "native"), "clean": True}


def cause(rows=()):
    return verdict.diagnose(cells(), [CLEAN, *rows], "native", "torch").cause


def test_nothing_dirty_and_nothing_failed_is_no_fault():
    found = verdict.diagnose(cells(), [CLEAN], "native", "torch")
    assert found.cause == "none" and found.status == "ok" and "a probe" in found.sentences[0]


@pytest.mark.parametrize(
    "rows, right",
    [
        ([probe("kernel", "native"), probe("input")], "input"),
        ([probe("objective"), probe("race", "native")], "objective"),
        ([probe("race", "native"), probe("kernel", "native"), probe("boundary", "native")], "race"),
        ([probe("boundary", "native"), probe("kernel", "native", "another")], "boundary"),
        ([probe("kernel", "native")], "kernel"),
        ([probe("kernel", "native"), probe("kernel", "torch")], "shared"),
        ([probe("precision", "native")], "precision"),
    ],
)
def test_the_rules_stand_in_the_order_of_the_argument(rows, right):
    assert cause(rows) == right


@pytest.mark.parametrize(
    "fails, right",
    [
        (lambda b, lengths, reg: b == "native", "kernel"),
        (lambda b, lengths, reg: True, "shared"),
        (lambda b, lengths, reg: lengths == "variable", "boundary"),
        (lambda b, lengths, reg: reg == 0.0, "objective"),
    ],
)
def test_the_matrix_alone_is_read_as_the_guide_reads_it(fails, right):
    found = verdict.diagnose(cells(fails), [], "native", "torch")
    assert found.cause == right and "Non-finite partition" in found.evidence[0]


def test_repeats_that_end_with_different_weights_name_their_backend():
    sentences = verdict.matrix_sentences(
        cells(weights=lambda b, repeat: f"{b}{repeat if b == 'native' else 0}")
    )
    assert any(
        "4 of 8 repeated trainings ended with different weights, all on native" in text for text in sentences
    )


def read(cells, tested="native", reference="torch", probes=()):
    return verdict.diagnose(cells, list(probes), tested, reference)


@pytest.mark.parametrize("cause", sorted(set(verdict.CAUSES) - {"none"}))
def test_whatever_has_a_cause_is_a_fault(cause):
    assert verdict.Diagnosis(cause, []).status == "fail" and verdict.Diagnosis("none", []).status == "ok"


def test_a_finding_of_the_probes_gives_cause_matrix_and_advice_in_this_order():
    found = read(cells(lambda b, *_: b == "native"), probes=[CLEAN, probe("objective")])
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
    found = read(cells(), probes=[CLEAN, *(probe(name, "native", name) for name in rows)])
    assert found.evidence == [f"{name} (native): what was seen." for name in evidence]


def test_shared_code_is_proved_by_the_probes_of_both_backends():
    rows = [probe("kernel", "native"), probe("kernel", "torch"), probe("precision", "torch", "another")]
    found = read(cells(), probes=rows)
    assert found.cause == "shared"
    assert found.evidence == ["a probe (native): what was seen.", "a probe (torch): what was seen."]


def test_a_probe_without_a_backend_names_none():
    assert read(cells(), probes=[probe("input")]).evidence == ["a probe: what was seen."]


@pytest.mark.parametrize(
    ("fails", "tested", "reference", "right"),
    [
        (lambda b, lengths, reg: b == "native" and lengths == "variable", "native", "torch", "boundary"),
        (lambda b, lengths, reg: b == "native" and reg == 0.0, "native", "torch", "kernel"),
        (lambda b, lengths, reg: b == "torch", "native", "torch", "optimiser"),
        (lambda b, lengths, reg: b == "torch" and reg == 0.0, "native", "torch", "objective"),
        (lambda b, lengths, reg: b == "native", "native", "native", "optimiser"),
        (lambda b, lengths, reg: lengths == "fixed", "native", "torch", "shared"),
        (lambda b, lengths, reg: reg == 0.01, "native", "torch", "shared"),
    ],
)
def test_the_halves_of_the_matrix_that_fail_decide(fails, tested, reference, right):
    found = read(cells(fails), tested, reference)
    assert found.cause == right
    assert verdict.CAUSES[right] in found.sentences[0] and " of 16 trainings" in found.sentences[1]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_one_backend_alone_shares_nothing_and_is_not_held_against_another(backend):
    only = [cell for cell in cells(lambda *_: True) if cell["backend"] == backend]
    found = read(only)
    assert found.cause == "optimiser" and "a training still failed" in found.sentences[0]


def test_the_cause_read_from_the_matrix_names_the_backends_and_the_first_failure():
    rows = cells(lambda b, *_: b == "native")
    rows[0]["message"] = "the first"
    found = read(rows)
    assert "native fails and torch passes" in found.sentences[0] and found.evidence == ["the first."]
    assert "native and torch both fail" in read(cells(lambda *_: True)).sentences[0]


def test_an_all_clear_lists_what_was_looked_at():
    (head,) = read(cells(), probes=[CLEAN]).sentences
    assert head == (
        "Nothing was found. Looked at: 8 trainings on native, 8 trainings on torch, 48 steps in all by loss, "
        "gradient and parameters, a probe."
    )
    head, missing = read(cells()).sentences
    assert "8 trainings on torch" in head and "probes did not run" in missing
    (head,) = read([], probes=[CLEAN]).sentences
    assert head == "Nothing was found. Looked at: a probe."


def test_a_training_that_drifts_is_no_all_clear():
    rows = cells()
    rows[3] |= {"transition_max": 33.0, "lr": 0.1}
    found = read(rows, probes=[CLEAN])
    assert (found.cause, found.status) == ("optimiser", "fail")
    assert found.sentences[0] == (
        "The cause is the optimiser: the training is drifting at the learning rate 0.1: its largest "
        "parameter reached 33."
    )


def test_a_kernel_is_judged_by_the_first_probe_that_fails():
    rows = [{**CLEAN, "probe": "log Z"}, probe("boundary", name="lengths"), probe("kernel", name="masks")]
    found = verdict.of_kernel(rows, "pkg:f")
    assert (found.cause, found.status) == ("boundary", "fail")
    assert found.sentences == [
        "pkg:f fails at the probe 'lengths': what was seen.",
        "So do 1 later probe, which may follow from it: masks.",
    ]
    sound = verdict.of_kernel(rows[:1], "pkg:f")
    assert (sound.status, sound.sentences) == (
        "ok",
        ["Nothing was found in pkg:f. Looked at, against float64: log Z."],
    )
    assert verdict.of_kernel([], "pkg:f").status == "fail"


def test_a_training_that_diverged_is_named_with_its_rate_and_not_called_sound():
    rows = cells()
    rows[3] |= {"duration_max": 4985.0, "lr": 1000.0, "trail": [{"loss": 91.0}, {"loss": 15730.0}]}
    rows[5] |= {"outcome": "failed"}  # as scores beyond the door's limit do
    found = verdict.diagnose(rows, [CLEAN], "native", "torch")
    assert (found.cause, found.status) == ("optimiser", "fail")
    assert found.sentences[0] == (
        "The cause is the optimiser: the training diverged at the learning rate 1000: its largest parameter "
        "reached 4985, the loss went from 91 to 1.573e+04."
    )
    assert "lower --lr" in found.sentences[1]


def test_where_nothing_ran_nothing_was_looked_at():
    found = verdict.diagnose([], [], "native", "torch")
    assert (found.cause, found.status) == ("unseen", "fail")
    assert found.sentences == ["Nothing was looked at: no part of this run finished."]


@pytest.mark.parametrize("cause", verdict.RULES)
def test_every_rule_names_what_was_seen_and_what_to_do(cause):
    rows = (
        [probe("kernel", name) for name in ("native", "torch")]
        if cause == "shared"
        else [probe(cause, "native")]
    )
    diagnosis = verdict.diagnose([], rows, "native", "torch")
    seen = "native and torch fail the same probes (a probe)" if cause == "shared" else "what was seen"
    assert diagnosis.cause == cause and seen in diagnosis.sentences[0]
    assert ("native" in diagnosis.sentences[0]) == (cause in ("race", "shared", "boundary", "kernel"))
    assert diagnosis.sentences[-1] == f"What to do: {verdict.ADVICE[cause]}."


def test_one_backend_that_is_its_own_reference_shares_nothing():
    assert verdict.diagnose([], [probe("kernel", "naive")], "naive", "naive").cause == "kernel"
