"""The fast forms against the plain one, and the plain one against enumeration."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf.model import api, log_domain, naive  # noqa: E402
from lab.rooms.semicrf.model import native as choose  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import balanced, random_problem, worst  # noqa: E402

pytestmark = pytest.mark.torch
FORMS = ["torch"] if choose.missing_reason("cpu") else ["torch", "native"]
compiled = pytest.mark.skipif(len(FORMS) == 1, reason="no C++ compiler for the native form")


def solve(problem, backend="auto"):
    return api.posteriors(**problem.arguments(), backend=backend)


@pytest.mark.parametrize("masked", [0.0, 0.4])
def test_the_naive_form_sums_over_all_segmentations(masked):
    problem = random_problem(3, 6, 3, 2, masked=masked, seed=3)
    log_z = naive.log_partition(problem)
    for b in range(3):
        paths, scores = naive.enumerate_segmentations(problem, b)
        assert len({tuple(path) for path in paths}) == len(paths)
        assert torch.logsumexp(scores, 0).item() == pytest.approx(log_z[b].item(), abs=1e-12)


@pytest.mark.parametrize("backend", ["naive", *FORMS])
def test_no_probability_leaves_0_to_1_by_rounding(backend):
    for seed in range(20):
        problem = random_problem(3, 9, 4, 2, scale=30.0, seed=seed)
        found = api.posteriors(**problem.arguments(), backend=backend)
        for probability in (found.label_BTC, found.starts_BTC, found.ends_BTC):
            assert float(probability.min()) >= 0 and float(probability.max()) <= 1


@settings(max_examples=25)
@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from([0.1, 1.0, 10.0, 300.0]),
    st.sampled_from([0.0, 0.3, 0.7]),
    st.integers(0, 99),
)
def test_the_fast_forms_equal_the_naive_one(batch, frames, longest, labels, scale, masked, seed):
    problem = random_problem(batch, frames, longest, labels, scale=scale, masked=masked, seed=seed)
    expected = naive.posteriors(problem)
    finite = torch.isfinite(expected.log_z_B)
    for backend in FORMS:
        found = solve(problem, backend)
        assert torch.equal(finite, torch.isfinite(found.log_z_B))
        gap = (found.log_z_B - expected.log_z_B)[finite].abs()
        assert bool((gap <= 1e-12 * expected.log_z_B[finite].abs() + 1e-11).all())
        assert worst(expected, found) <= 1e-10


def test_float32_scores_give_a_float64_log_z_and_float32_gradients():
    problem = random_problem(2, 9, 4, 3, dtype=torch.float32)
    score = problem.score_BTC.clone().requires_grad_()
    log_z = api.log_partition(score, problem.transition_CC, problem.duration_KC, problem.lengths_B)
    assert log_z.dtype == torch.float64
    log_z.sum().backward()
    assert score.grad.dtype == torch.float32
    assert torch.allclose(score.grad.sum(-1)[0], torch.ones(9), atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_slow_drift_between_labels_that_never_meet_is_not_lost(sign):
    """One label leads by e^2000, then the other gains e^4000: a linear pass has dropped it long before, that
    from the left or that from the right.
    """
    score = torch.zeros(1, 300, 2, dtype=torch.float64)
    score[:, :150, 0], score[:, 150:, 0] = 14.0, -28.0
    score = score if sign > 0 else score.flip(1)
    transition = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=torch.float64)
    problem = make_problem(score, transition, torch.zeros(4, 2, dtype=torch.float64))
    right = log_domain.posteriors(problem)
    assert right.log_z_B.item() == pytest.approx(naive.log_partition(problem).item(), rel=1e-13)
    assert worst(right, solve(problem)) <= 1e-9


@pytest.mark.parametrize("scale", [1.0, 30.0, 200.0])
def test_the_ledger_balances(scale):
    problem = random_problem(3, 60, 9, 4, scale=scale, masked=0.2, seed=4)
    assert balanced(problem, solve(problem))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score_BTC": torch.zeros(3, 2)}, "must be 3D"),
        ({"duration_KC": torch.zeros(2, 5)}, "duration must be"),
        ({"transition_CC": torch.zeros(2, 2)}, "transition must be"),
        ({"lengths_B": torch.tensor([0])}, "lengths must be positive, got min=0"),
        ({"lengths_B": torch.tensor([9])}, "lengths cannot exceed T=4, got max=9"),
        ({"start_C": torch.zeros(1)}, "start must be"),
        (
            {"transition_CC": torch.zeros(3, 3, dtype=torch.complex64)},
            "transition must be real, got torch.complex64",
        ),
    ],
)
def test_wrong_shapes_are_named(change, words):
    given_ = {
        "score_BTC": torch.zeros(1, 4, 3),
        "transition_CC": torch.zeros(3, 3),
        "duration_KC": torch.zeros(2, 3),
    }
    with pytest.raises(UsageError, match=words):
        make_problem(**{**given_, **change})


@pytest.mark.parametrize(
    ("labels", "reason", "chosen"), [(3, None, "native"), (3, "no", "torch"), (129, None, "torch")]
)
def test_auto_takes_what_is_compiled_for_this_gpu_and_for_as_many_labels(monkeypatch, labels, reason, chosen):
    monkeypatch.setattr(api.native, "missing_reason", lambda kind: reason)
    score = SimpleNamespace(is_cuda=True, shape=(1, 2, labels), device=torch.device("cuda", 0))
    assert api.resolve_backend("auto", score) == chosen
