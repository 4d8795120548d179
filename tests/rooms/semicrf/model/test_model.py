"""Terms of single segments: every form against enumeration and the definition."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from lab.errors import BadDataError, UsageError  # noqa: E402
from lab.rooms.semicrf.model import api, autograd, ledger, log_domain, naive, paths  # noqa: E402
from lab.rooms.semicrf.model.problem import Posteriors, make_problem  # noqa: E402
from tests.rooms.semicrf.problems import balanced, extended_problem, inputs_of, parts, random_problem  # noqa: E402

pytestmark = pytest.mark.torch

ALL = ("start", "end", "segment")


def apart(found: Posteriors, right: Posteriors) -> float:
    """The largest difference of any count, and of log Z where it is finite; inf where shapes differ."""
    feasible = torch.isfinite(right.log_z_B)
    assert torch.equal(feasible, torch.isfinite(found.log_z_B))
    worst = 0.0
    for mine, its in zip(parts(found), parts(right), strict=True):
        assert mine.shape == its.shape
        mine, its = (x[feasible] if x.dim() == 1 else x for x in (mine, its))
        worst = max([worst, *(mine - its).abs().flatten().tolist()])
    return worst


@pytest.mark.parametrize("masked", [0.0, 0.15])
def test_the_definition_sums_over_all_segmentations(masked):
    problem = extended_problem(3, 5, 3, 2, terms=ALL, masked=masked, seed=1)
    found = naive.posteriors(problem)
    feasible = 0
    for b in range(3):
        every, scores = naive.enumerate_segmentations(problem, b)
        assert float(found.log_z_B[b]) == pytest.approx(float(torch.logsumexp(scores, 0)), abs=1e-12)
        if not torch.isfinite(found.log_z_B[b]):
            continue
        feasible += 1
        own, crossed = torch.zeros_like(found.segment_BTKC[b]), torch.zeros_like(found.transition[b])
        for path, mass in zip(every, (scores - found.log_z_B[b]).exp(), strict=True):
            for start, end, label in path:
                own[start, end - start - 1, label] += mass
            for (_, _, before), (_, _, label) in itertools.pairwise(path):
                crossed[before, label] += mass
        assert torch.allclose(found.segment_BTKC[b], own, atol=1e-12)
        assert torch.allclose(found.transition[b], crossed, atol=1e-12)
    assert feasible


def test_a_score_is_what_its_terms_say():
    """The path (0, 2, label 1), (2, 3, label 0), every term a power of two: a sum says what it holds."""
    zero = {"dtype": torch.float64}
    score, seg_start, seg_end = (torch.zeros(1, 3, 2, **zero) for _ in range(3))
    transition, segment = torch.zeros(2, 2, **zero), torch.zeros(1, 3, 2, 2, **zero)
    seg_start[0, 0, 1], seg_start[0, 2, 0], seg_end[0, 1, 1], seg_end[0, 2, 0] = 1, 2, 4, 8
    transition[1, 0], segment[0, 0, 1, 1], segment[0, 2, 0, 0] = 16, 32, 64
    given = {"seg_start_BTC": seg_start, "seg_end_BTC": seg_end, "segment_BTKC": segment}
    inputs = (score, transition, torch.zeros(2, 2, **zero))
    problem = make_problem(*inputs, **given)
    assert float(naive.path_score(problem, 0, [(0, 2, 1), (2, 3, 0)])) == 127
    assert float(naive.path_score(problem, 0, [(0, 2, 0), (2, 3, 1)])) == 0
    for backend in ("auto", "naive", "torch"):
        best_B, best = api.viterbi(*inputs, backend=backend, **given)
        assert (float(best_B), best) == (127, [[(0, 2, 1), (2, 3, 0)]])


@pytest.mark.parametrize("terms", [(), ("start",), ("end",), ("segment",), ALL])
def test_every_form_has_the_counts_of_the_definition(terms):
    for seed in range(6):
        batch, frames, longest, labels = [(3, 9, 4, 3), (2, 3, 6, 2), (2, 7, 1, 3), (1, 1, 2, 1)][seed % 4]
        problem = extended_problem(
            batch, frames, longest, labels, terms=terms, masked=0.2 * (seed % 3), seed=seed
        )
        right = naive.posteriors(problem)
        assert apart(log_domain.posteriors(problem), right) < 1e-10
        assert apart(log_domain.derived_posteriors(problem), right) < 1e-10
        assert balanced(problem, right)


@pytest.mark.parametrize("penalty", [40.0, 700.0, 1e9, -40.0, -700.0])
def test_soft_penalties_and_rewards_on_any_subset(penalty):
    for seed in range(4):
        problem = extended_problem(2, 12, 4, 3, terms=ALL, soft=penalty, seed=seed)
        right = naive.posteriors(problem)
        scale = max(1.0, float(right.log_z_B.abs().max()) * 1e-4, penalty * 1e-6)
        assert apart(log_domain.posteriors(problem), right) < 1e-9 * scale, seed


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("dtype, limit", [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_every_input_has_the_gradient_of_the_definition(backend, dtype, limit):
    problem = extended_problem(3, 8, 4, 3, terms=ALL, masked=0.15, seed=4, dtype=dtype)
    weight_B = torch.tensor([0.3, -2.0, 1.1], dtype=torch.float64)
    grads = []
    for form in ("naive", backend):
        leaves = [value.clone().requires_grad_() for value in problem.floats()]
        log_z_B = api.log_partition(**inputs_of(problem.with_floats(leaves)), backend=form)
        kept_B = torch.isfinite(log_z_B)
        (log_z_B[kept_B] * weight_B[kept_B]).sum().backward()
        grads.append([leaf.grad for leaf in leaves])
        assert [g.dtype for g in grads[-1]] == [dtype] * 8
    for name, right, found in zip(problem.names(), *grads, strict=True):
        assert torch.allclose(found, right, atol=limit), name


def test_nothing_of_the_padding_is_read():
    """NaN past the end, and in segments that outlast their sequence."""
    problem = extended_problem(3, 9, 4, 2, terms=ALL, seed=5)
    spoilt = poisoned(problem)
    for form in (naive.posteriors, log_domain.posteriors):
        right, found = form(problem), form(spoilt)
        assert all(torch.equal(a, b) for a, b in zip(parts(found), parts(right), strict=True))
    assert torch.equal(api.log_partition(**inputs_of(spoilt)), api.log_partition(**inputs_of(problem)))
    assert paths.sample(spoilt, 3, 1) == paths.sample(problem, 3, 1)
    assert paths.best(spoilt, 2) == paths.best(problem, 2)


def poisoned(problem):
    nan, values = float("nan"), [value.clone() for value in problem.floats()]
    for name, value in zip(problem.names(), values, strict=True):
        for b, length in enumerate(problem.lengths_B.tolist()):
            if name in ("score_BTC", "seg_start_BTC", "seg_end_BTC"):
                value[b, length:] = nan
            if name == "segment_BTKC":
                for t in range(value.shape[1]):
                    value[b, t, max(length - t, 0) :] = nan
    return problem.with_floats(values)


@pytest.mark.parametrize("shape", [(4, 10, 3, 3), (7, 33, 9, 17), (16, 12, 24, 8)], ids=str)
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(shape):
    problem = extended_problem(*shape, terms=ALL, seed=6)
    for b in range(0, shape[0], 3):
        row = torch.tensor([b])
        alone, together = log_domain.posteriors(problem.rows(row)), log_domain.posteriors(problem)
        assert all(torch.equal(a, b[row]) for a, b in zip(parts(alone), parts(together), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2e12])
@pytest.mark.parametrize("where", ["seg_start_BTC", "seg_end_BTC", "segment_BTKC"])
def test_a_number_that_is_refused_is_named_with_its_place(where, bad):
    problem = extended_problem(2, 6, 3, 2, terms=ALL, seed=7)
    value = getattr(problem, where).clone()
    value[0, 2, 0] = bad
    with pytest.raises(BadDataError, match=f"{where.rpartition('_')[0] or where} is ") as caught:
        api.log_partition(**inputs_of(replace(problem, **{where: value})))
    assert "[0, 2, 0" in str(caught.value.location)


def test_zeros_as_terms_are_the_plain_model():
    problem = random_problem(3, 9, 4, 3, seed=11)
    whole = replace(
        problem,
        seg_start_BTC=torch.zeros(3, 9, 3),
        segment_BTKC=torch.zeros(3, 9, 4, 3),
    )
    assert problem.plain and not whole.plain
    right, found = api.posteriors(**inputs_of(problem)), api.posteriors(**inputs_of(whole))
    assert torch.allclose(found.log_z_B, right.log_z_B, atol=1e-11)
    assert torch.allclose(found.label_BTC, right.label_BTC, atol=1e-11)
    assert torch.allclose(found.transition, right.transition, atol=1e-11)


FAULTS = {
    "a segment's count lost": lambda f: f.segment_BTKC[1, 2, 1].zero_(),
    "a segment's count at another frame": lambda f: f.segment_BTKC[1].copy_(f.segment_BTKC[1].roll(1, 0)),
    "a segment's count of another duration": lambda f: f.segment_BTKC[1].copy_(f.segment_BTKC[1].roll(1, 1)),
    "NaN in a segment": lambda f: f.segment_BTKC[1, 0, 0, 0].fill_(float("nan")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_counts_of_single_segments_is_seen_and_mended(name):
    problem = replace(extended_problem(3, 8, 3, 2, terms=ALL, seed=12), lengths_B=torch.tensor([8, 8, 8]))
    found, right = naive.posteriors(problem), naive.posteriors(problem)
    FAULTS[name](found)
    assert not balanced(problem, found)
    worst_B = ledger.imbalance(problem, found)
    assert not float(worst_B[1]) <= 1e-6 and float(worst_B[[0, 2]].max()) < 1e-9
    with pytest.warns(autograd.MendedCounts, match="counts of 1 sequence did not add up"):
        autograd.finish(problem, found)
    assert apart(found, right) < 1e-10


@pytest.mark.parametrize(
    "name, shape",
    [
        ("seg_start_BTC", (2, 5, 2)),
        ("seg_end_BTC", (2, 6, 3)),
        ("segment_BTKC", (2, 6, 2, 3)),
        ("transition_CC", (2, 3, 2, 2)),
        ("transition_CC", (3, 2, 2)),
    ],
)
def test_a_term_of_another_shape_is_refused_in_words(name, shape):
    problem = extended_problem(2, 6, 3, 2, terms=ALL, seed=13)
    with pytest.raises(UsageError, match=name.split("_")[0]):
        make_problem(**{**inputs_of(problem), name: torch.zeros(shape)})
