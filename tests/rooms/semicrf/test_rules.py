"""Each rule alone: what it fires on, what it says was seen, and what it leaves to the others."""

from __future__ import annotations

import pytest

from lab.rooms.semicrf import rules
from lab.rooms.semicrf.rules import RULES


def probe(cause, backend="", text="what was seen", name="a probe"):
    return {"probe": name, "cause": cause, "backend": backend, "text": text}


def ruled(rule, *dirty, tested="native", reference="torch"):
    return rule(list(dirty), tested, reference)


EVERYTHING = [probe(cause, "native", cause) for cause in ("race", "boundary", "kernel", "precision")] + [
    probe(cause, "", cause) for cause in ("input", "objective", "boundary")
]


@pytest.mark.parametrize(
    ("rule", "cause", "backend"),
    [
        (rules.input_fault, "input", ""),
        (rules.boundary_in_data, "boundary", ""),
        (rules.objective, "objective", ""),
        (rules.race, "race", "native"),
        (rules.boundary, "boundary", "native"),
        (rules.kernel, "kernel", "native"),
        (rules.precision, "precision", "native"),
    ],
)
def test_a_rule_picks_the_first_probe_of_its_cause_and_advises(rule, cause, backend):
    first, second = probe(cause, backend, "the first of two"), probe(cause, backend, "the second of two")
    others = [row for row in EVERYTHING if row["cause"] != cause]
    found = ruled(rule, *others, first, second)
    assert found.cause == cause and "the first of two" in found.evidence and "second" not in found.evidence
    assert found.evidence == first["text"] or backend in found.evidence
    assert len(found.advice) > 20
    assert ruled(rule, *others) is None and ruled(rule) is None


def test_a_boundary_fault_is_one_of_the_data_only_without_a_backend():
    of_kernel, of_data = probe("boundary", "native", "past the mask"), probe("boundary", "", "no frame")
    assert ruled(rules.boundary_in_data, of_kernel) is None
    assert ruled(rules.boundary_in_data, of_kernel, of_data).evidence == "no frame"
    assert "native kernel reads beyond the mask (past the mask)" in ruled(rules.boundary, of_kernel).evidence


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_race_and_a_wrong_kernel_name_their_backend(backend):
    assert ruled(rules.race, probe("race", backend)).evidence.startswith(f"{backend} gives different bits")
    assert ruled(rules.kernel, probe("kernel", backend)).evidence.startswith(f"{backend} is wrong")


def test_code_is_shared_if_both_backends_fail_the_same_probe():
    rows = [probe("kernel", backend, name=name) for backend in ("native", "torch") for name in ("two", "one")]
    found = ruled(rules.shared, *rows, probe("kernel", "native", name="three"))
    assert found.cause == "shared" and found.advice
    assert "native and torch fail the same probes (one, two)" in found.evidence


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([probe("kernel", "native"), probe("kernel", "torch", name="another")], ("native", "torch")),
        ([probe("kernel", "native")], ("native", "torch")),
        ([probe("kernel", "native"), probe("kernel", "cuda")], ("native", "torch")),
        ([probe("kernel", "torch")], ("torch", "torch")),
        ([], ("native", "torch")),
    ],
)
def test_other_probes_other_backends_or_one_backend_alone_share_nothing(rows, names):
    tested, reference = names
    assert ruled(rules.shared, *rows, tested=tested, reference=reference) is None


def test_the_rules_stand_in_the_order_of_the_argument():
    assert [rule.__name__ for rule in RULES] == [
        "input_fault",
        "boundary_in_data",
        "objective",
        "race",
        "shared",
        "boundary",
        "kernel",
        "precision",
    ]
