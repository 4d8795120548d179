"""What every backend's counts must add up to, and what happens where they do not."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from lab.rooms.semicrf import log_partition  # noqa: E402
from lab.rooms.semicrf.model import autograd, ledger, naive  # noqa: E402
from lab.rooms.semicrf.model import native as choose  # noqa: E402
from lab.rooms.semicrf.workload.cases import Case, solve  # noqa: E402
from lab.rooms.semicrf.workload.check import hostile_case  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
compiled = pytest.mark.skipif(
    choose.missing_reason("cpu") is not None, reason="no C++ compiler for the native form"
)
BACKENDS = ("torch", pytest.param("native", marks=compiled))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_free_duration_beside_one_that_costs_500_has_its_three_segments(backend):
    duration = torch.tensor([[-500.0], [0.0]], requires_grad=True)
    log_partition(torch.zeros(1, 6, 1), torch.zeros(1, 1), duration, backend=backend).sum().backward()
    assert duration.grad.flatten().tolist() == pytest.approx([0, 3], abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("penalty", [40.0, 450.0, 660.0, 1000.0])
@pytest.mark.parametrize("free", [0, 1])
def test_marginals_where_only_one_duration_is_free(backend, penalty, free):
    dice = torch.Generator().manual_seed(int(penalty))
    duration = torch.full((2, 4), -penalty, dtype=torch.float64)
    duration[free] = 0
    score, transition = (torch.randn(*shape, generator=dice).double() for shape in ((2, 30, 4), (4, 4)))
    case = Case(
        score, transition, duration, torch.tensor([30, 29]), torch.zeros(4).double(), torch.zeros(4).double()
    )
    assert max(solve(case, backend).errors(solve(case, "naive")).values()) < 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, limit", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_hostile_batches_equal_the_definition_value_by_value(backend, dtype, limit):
    """Masks of any size, soft penalties of 40 to 700 on any subset; and a sound form needs no mending."""
    dice = torch.Generator().manual_seed(7)
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(40):
            case, kinds = hostile_case(dice, 12)
            case = case.to(dtype=dtype)
            found, exact = solve(case, backend), solve(case.to(dtype=torch.float64), "naive")
            compared += len(case.lengths_B)
            assert max(found.errors(exact).values()) < limit, kinds
    assert compared > 60


def counts(seed=3):
    problem = random_problem(3, 12, 4, 3, seed=seed)
    return problem, naive.posteriors(problem)


FAULTS = {
    "a duration's count dropped": lambda f: f.duration_BKC[1, 2].zero_(),
    "a duration's count of one label moved": lambda f: f.duration_BKC[1, :, 0].copy_(
        f.duration_BKC[1, :, 0].flip(0)
    ),
    "a label above certainty": lambda f: (f.label_BTC[1, 4, 0].fill_(1.2), f.label_BTC[1, 4, 1].sub_(0.2)),
    "a transition lost": lambda f: f.transition[1, 0, 1].zero_(),
    "a start lost": lambda f: f.starts_BTC[1, 3].zero_(),
    "an end lost": lambda f: f.ends_BTC[1, 3].zero_(),
    "NaN in a label": lambda f: f.label_BTC[1, 2, 0].fill_(float("nan")),
    "NaN in a transition": lambda f: f.transition[1, 0, 0].fill_(float("nan")),
    "the mass of a frame": lambda f: f.mass_error_B[1].fill_(1e-3),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_seen_in_its_sequence_and_mended_with_a_warning(name):
    problem, found = counts()
    right = replace(
        found, **{field: getattr(found, field).clone() for field in ("label_BTC", "duration_BKC")}
    )
    FAULTS[name](found)
    worst_B = ledger.imbalance(problem, found)
    assert not float(worst_B[1]) <= 1e-6 and float(worst_B[[0, 2]].max()) < 1e-9
    with pytest.warns(RuntimeWarning, match="counts of 1 sequence did not add up"):
        autograd.finish(problem, found)
    assert torch.allclose(found.label_BTC, right.label_BTC, atol=1e-9)
    assert torch.allclose(found.duration_BKC, right.duration_BKC, atol=1e-9)
    assert not float(found.mass_error_B[1]) <= 1e-6, "a watch still sees that the form was wrong"


def test_sound_counts_pass_without_a_word():
    problem, found = counts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not autograd.finish(problem, found)


def test_a_log_z_that_was_wrong_is_told_with_its_factor():
    problem, found = counts()
    found.log_z_B[2] += 1
    found.starts_BTC[2, 0].zero_()
    with pytest.warns(RuntimeWarning, match=r"log Z is off by a factor 2\.718"):
        autograd.finish(problem, found)
