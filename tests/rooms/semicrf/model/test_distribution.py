"""The distribution over segmentations against a list of all of them, in fractions."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf.model import decoding, naive  # noqa: E402
from lab.rooms.semicrf.model.distribution import SegmentDistribution  # noqa: E402
from lab.rooms.semicrf.model.head import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model.native import choose as native  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
INF = math.inf


def of(problem, **kw):
    return SegmentDistribution(**arguments_of(problem), **kw)


def arguments_of(problem):
    return {name: getattr(problem, name) for name in (*problem.names(), "lengths_B")}


def listing(problem, b):
    """All segmentations of a sequence and their exact scores, Fractions; -inf as None."""
    longest, labels = problem.shape[2:]
    paths = list(naive.segmentations(int(problem.lengths_B[b]), longest, labels))
    frame = problem.score_BTC[b].double().tolist()
    opens, closes, own = (
        None if value is None else value[b].double().tolist()
        for value in (problem.seg_start_BTC, problem.seg_end_BTC, problem.segment_BTKC)
    )
    duration, start, end = (
        x.double().tolist() for x in (problem.duration_KC, problem.start_C, problem.end_C)
    )
    scores = []
    for path in paths:
        terms = [start[path[0][2]], end[path[-1][2]]]
        for at, (s, e, c) in enumerate(path):
            terms += [*(frame[u][c] for u in range(s, e)), duration[e - s - 1][c]]
            terms += [opens[s][c]] if opens else []
            terms += [closes[e - 1][c]] if closes else []
            terms += [own[s][e - s - 1][c]] if own else []
            if at:
                crossing = naive.transition_score(problem, b, s, e)
                terms.append(crossing[path[at - 1][2], c].item())
        scores.append(None if -INF in terms else sum(map(Fraction, terms)))
    return paths, scores


def log_probs(scores):
    """[] where nothing is feasible."""
    live = [score for score in scores if score is not None]
    if not live:
        return []
    logs = [-INF if score is None else float(score - max(live)) for score in scores]
    log_z = math.log(math.fsum(map(math.exp, logs)))
    return [value - log_z for value in logs]


def expectation(logs, values):
    """sum p * value, where p is not rounded to 0."""
    return math.fsum(math.exp(p) * value for p, value in zip(logs, values, strict=True) if math.exp(p) > 0)


def drawn(generator, values, *shape):
    chosen = torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), shape, generator=generator)]
    return torch.randn(shape, generator=generator, dtype=torch.float64) + chosen


HOSTILE = {
    "masks and soft penalties": ([0.0, 0.0, -1e30, -INF, -100.0], [0.0, 0.0, -100.0, -40.0]),
    "soft rewards": ([0.0, 0.0, 40.0, -700.0, 700.0], [0.0, 0.0, 450.0, -660.0, -INF, 700.0]),
}


def hostile_problem(kind, seed, like=None):
    generator = torch.Generator().manual_seed(seed)
    batch, frames, longest, labels = (
        int(torch.randint(1, n + 1, (), generator=generator)) for n in (3, 5, 7, 3)
    )
    lengths = torch.randint(1, frames + 1, (batch,), generator=generator)
    if like is not None:
        (batch, frames, _, labels), lengths = like.shape, like.lengths_B
    frame_values, other = HOSTILE[kind]
    return make_problem(
        drawn(generator, frame_values, batch, frames, labels),
        drawn(generator, other, labels, labels),
        drawn(generator, other, longest, labels),
        lengths,
        drawn(generator, other, labels),
        drawn(generator, other, labels),
    )


def close(found, expected, tolerance=1e-9):
    if math.isinf(expected):
        return found == expected
    return abs(found - expected) <= tolerance * max(1, abs(expected))


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_entropy_of_hostile_problems_is_that_of_the_list(kind):
    for seed in range(30):
        problem = hostile_problem(kind, seed)
        found = of(problem).entropy()
        for b in range(problem.shape[0]):
            logs = log_probs(listing(problem, b)[1])
            expected = expectation(logs, [-p for p in logs]) if logs else 0.0
            assert close(found[b].item(), expected), (seed, b)


def test_no_entropy_is_less_than_0_where_a_segmentation_is_all_but_certain():
    for seed in range(10):
        problem = random_problem(3, 6, 4, 3, scale=60.0, seed=seed)
        leaf = problem.score_BTC.clone().requires_grad_()
        p, q = of(replace(problem, score_BTC=leaf)), of(random_problem(3, 6, 4, 3, scale=60.0, seed=seed))
        entropy_B, cross_B = p.entropy(), p.cross_entropy(q)
        assert bool((entropy_B >= 0).all()) and bool((cross_B >= 0).all()), seed
        assert not torch.isnan(entropy_B.sqrt()).any()
        (gradient,) = torch.autograd.grad(entropy_B.sum(), leaf)
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("kind", HOSTILE)
def test_divergences_of_hostile_problems_are_those_of_the_list(kind):
    for seed in range(20):
        p = hostile_problem(kind, seed)
        q = hostile_problem(kind, seed + 1000, like=p)
        kl, cross = of(p).kl(of(q)), of(p).cross_entropy(of(q))
        for b in range(p.shape[0]):
            own = dict(zip(map(tuple, listing(p, b)[0]), log_probs(listing(p, b)[1]), strict=False))
            other = dict(zip(map(tuple, listing(q, b)[0]), log_probs(listing(q, b)[1]), strict=False))
            under_q = [other.get(path, -INF) for path in own]
            expected = expectation(own.values(), [-x for x in under_q])
            assert close(cross[b].item(), expected), (seed, b)
            apart = [a - x for a, x in zip(own.values(), under_q, strict=True)]
            assert close(kl[b].item(), expectation(own.values(), apart)), (seed, b)
            assert kl[b].item() >= 0


def test_all_segmentations_have_the_probabilities_of_the_list_and_they_sum_to_1():
    for by_duration in (False, True):
        problem = random_problem(1, 4, 3, 2, masked=0.2, by_duration=by_duration, seed=3)
        p = of(problem)
        paths, scores = listing(problem, 0)
        found = [p.log_prob([path]).item() for path in paths]
        assert found == pytest.approx(log_probs(scores), abs=1e-12)
        assert math.fsum(map(math.exp, found)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("kind", HOSTILE)
def test_log_prob_and_topk_of_hostile_problems_are_those_of_the_list(kind):
    for seed in range(25):
        problem = hostile_problem(kind, seed)
        p = of(problem)
        ranked = p.topk(4)
        for b in range(problem.shape[0]):
            paths, scores = listing(problem, b)
            logs = log_probs(scores)
            kept = sorted((x for x in logs if x > -INF), reverse=True)[:4]
            assert len(ranked[b]) == len(kept), (seed, b)
            assert all(close(x, y) for (x, _), y in zip(ranked[b], kept, strict=True)), (seed, b)
            for path, log in [*zip(paths, logs, strict=False)][:20]:
                whole = [[(t, t + 1, 0) for t in range(int(n))] for n in problem.lengths_B]
                whole[b] = path
                try:
                    found = p.log_prob(whole)[b].item()
                except UsageError:
                    raise AssertionError((seed, b, path)) from None
                assert close(found, log), (seed, b, path)


def test_labels_mean_their_maximal_runs_or_what_starts_say():
    problem = random_problem(2, 5, 3, 2, seed=1)
    problem = replace(problem, lengths_B=torch.tensor([5, 3]))
    labels = torch.tensor([[0, 0, 1, 1, 0], [1, 0, 0, 7, -3]])
    starts = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    p = of(problem)
    runs = [[(0, 2, 0), (2, 4, 1), (4, 5, 0)], [(0, 1, 1), (1, 3, 0)]]
    split = [[(0, 2, 0), (2, 3, 1), (3, 4, 1), (4, 5, 0)], [(0, 1, 1), (1, 2, 0), (2, 3, 0)]]
    assert torch.equal(p.log_prob(labels), p.log_prob(runs))
    assert torch.equal(p.log_prob(labels, starts), p.log_prob(split))
    for b in range(2):
        score = naive.path_score(problem, b, split[b]) - naive.log_partition(problem)[b]
        assert p.log_prob(split)[b].item() == pytest.approx(score.item(), abs=1e-12)


def test_a_label_that_changes_inside_a_segment_is_refused_but_not_in_the_padding():
    problem = replace(random_problem(2, 6, 3, 3, seed=2), lengths_B=torch.tensor([6, 4]))
    labels = torch.tensor([[0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 1, 2]])
    starts = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 0, 1, 0, 0, 0]])
    right = of(problem).log_prob([[(0, 1, 0), (1, 3, 1), (3, 4, 1), (4, 6, 2)], [(0, 2, 0), (2, 4, 0)]])
    assert torch.equal(of(problem).log_prob(labels, starts), right)
    starts[0, 1] = 0
    with pytest.raises(UsageError, match="sequence 0: the label changes inside a segment, at frame 1"):
        of(problem).log_prob(labels, starts)


def test_a_segment_longer_than_k_has_probability_0():
    p = of(random_problem(1, 5, 2, 2))
    assert p.log_prob([[(0, 3, 0), (3, 5, 1)]]).item() == -INF


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[(0, 2, 0)]], "one segmentation per sequence"),
        ([[(0, 2, 0)], [(0, 4, 0)]], "sequence 0: its segments cover 2 of 4"),
        ([[(0, 2, 0), (3, 4, 0)], [(0, 4, 0)]], "does not continue a tiling at frame 2"),
        ([[(0, 4, 2)], [(0, 4, 0)]], "a label in 0..1"),
        ([[], [(0, 4, 0)]], "sequence 0: its segments cover 0"),
        (torch.zeros(2, 3, dtype=torch.int64), "labels must be"),
        (torch.zeros(2, 4), "labels must be"),
        (torch.full((2, 4), 2), "a label in 0..1"),
    ],
)
def test_what_is_no_segmentation_is_named(value, words):
    p = SegmentDistribution(torch.zeros(2, 4, 2), torch.zeros(2, 2), torch.zeros(4, 2))
    with pytest.raises(UsageError, match=words):
        p.log_prob(value)


def test_expectations_are_those_of_the_list_and_do_not_read_what_has_no_mass():
    problem = random_problem(2, 5, 3, 2, masked=0.3, seed=4)
    lengths = problem.lengths_B
    other = random_problem(2, 5, 3, 2, seed=9)
    f = make_problem(*other.floats()[:3], lengths, *other.floats()[3:])
    f = replace(f, transition=torch.where(torch.isneginf(problem.transition), -INF, f.transition))
    found = of(problem).expected(dict(zip(f.names(), f.floats(), strict=True)))
    segments = of(problem).expected({"duration_KC": torch.ones(3, 2)})
    frames = of(problem).expected({"score_BTC": torch.ones(2, 5, 2)})
    assert torch.allclose(frames, lengths.double(), atol=1e-12)
    for b in range(2):
        paths, scores = listing(problem, b)
        logs = log_probs(scores)
        live = [at for at, log in enumerate(logs) if log > -INF]
        values = [naive.path_score(f, b, paths[at]).item() for at in live]
        kept = [logs[at] for at in live]
        assert found[b].item() == pytest.approx(expectation(kept, values), abs=1e-11)
        sizes = [len(paths[at]) for at in live]
        assert segments[b].item() == pytest.approx(expectation(kept, sizes), abs=1e-11)
    with pytest.raises(UsageError, match="no scores are called duration"):
        of(problem).expected({"duration": torch.ones(3, 2)})


def test_the_expectation_of_what_has_mass_and_is_forbidden_is_infinite_and_rounding_is_no_mass():
    problem = random_problem(8, 30, 4, 3, seed=4)
    way = problem.transition.clone()
    way[:, 2] = -INF  # label 2 can only be first: it ends with frame 4, though no later frame forbids it
    p = of(replace(problem, transition=way))
    frames = torch.zeros(8, 30, 3).double()
    frames[:, 4:, 2] = -1e30
    assert not p.expected({"score_BTC": frames}).any()
    frames[:, 5, 2] = -INF
    assert not p.expected({"score_BTC": frames}).any()
    frames[0, 0, 0] = -INF
    assert p.expected({"score_BTC": frames})[0].item() == -INF


def test_two_equal_models_have_a_divergence_of_exactly_0_and_near_ones_a_tiny_positive_one():
    problem = random_problem(12, 40, 6, 4, seed=5)
    assert not of(problem).kl(of(problem)).any()
    step = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    sizes = (1e-2, 1e-4)  # a divergence is the square of a small step
    far, near = (
        of(problem).kl(of(replace(problem, duration_KC=problem.duration_KC + x * step))) for x in sizes
    )
    assert torch.allclose(near, far * 1e-4, rtol=0.02, atol=0)


def test_the_gradient_of_a_divergence_is_right_where_the_models_share_numbers():
    p = random_problem(1, 4, 3, 2, masked=0.2, seed=3)
    p = p.with_floats([value.requires_grad_() for value in p.floats()])
    shared = replace(p.detached(), duration_KC=p.duration_KC.detach() - 1.5)
    for q, near in ((p.detached(), 1e-12), (shared, 1e-9)):
        found = torch.autograd.grad(of(p).kl(of(q)).sum(), p.floats())
        for ours, right in zip(found, gradient_of_the_list(p, [0], q), strict=True):
            assert float((ours - right).abs().max()) <= near


def test_a_frame_shift_common_to_all_labels_changes_no_information():
    problem = random_problem(2, 30, 5, 3, seed=6)
    other = replace(random_problem(2, 30, 5, 3, seed=7), lengths_B=problem.lengths_B)
    shift = 1e6 * torch.randn(2, 30, 1, generator=torch.Generator().manual_seed(0)).double()
    moved = replace(problem, score_BTC=problem.score_BTC + shift)
    assert torch.allclose(of(moved).entropy(), of(problem).entropy(), atol=1e-7)
    assert torch.allclose(of(moved).kl(of(other)), of(problem).kl(of(other)), atol=1e-7)
    assert torch.allclose(of(other).cross_entropy(of(moved)), of(other).cross_entropy(of(problem)), atol=1e-7)


def test_models_with_other_durations_are_compared_over_all_segmentations():
    p, q = random_problem(1, 4, 2, 2, seed=1), random_problem(1, 4, 3, 2, by_duration=True, seed=2)
    own, other = (
        dict(zip(map(tuple, paths), log_probs(x), strict=True)) for paths, x in map(listing, (p, q), (0, 0))
    )
    expected = math.fsum(math.exp(log) * (log - other[path]) for path, log in own.items())
    assert of(p).kl(of(q)).item() == pytest.approx(expected, abs=1e-12)
    assert of(q).kl(of(p)).item() == INF
    assert of(p).cross_entropy(of(q)).item() == pytest.approx(expected + of(p).entropy().item(), abs=1e-12)
    with pytest.raises(UsageError, match="over different segmentations"):
        of(p).kl(of(random_problem(1, 5, 2, 2)))


def enumerated(problem, b, other=None):
    """Entropy, or with `other` KL and cross-entropy, as autograd sees the list of all segmentations."""
    scores = naive.enumerate_segmentations(problem, b)[1]
    live = scores > -INF
    log_p = torch.log_softmax(scores[live], 0)
    if other is None:
        return -(log_p.exp() * log_p).sum()
    log_q = torch.log_softmax(naive.enumerate_segmentations(other, b)[1], 0)[live]
    return torch.stack([(log_p.exp() * (log_p - log_q)).sum(), -(log_p.exp() * log_q).sum()])


@pytest.mark.parametrize("by_duration", [False, True])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_gradients_are_those_of_the_list(by_duration, scale):
    weight = torch.tensor([0.7, -1.3]).double()
    for seed in range(3):
        p, q = (
            random_problem(2, 5, 3, 2, scale=scale, masked=mask, by_duration=by_duration, seed=seed + at)
            for at, mask in ((0, 0.2), (50, 0.0))
        )
        p, q = (
            replace(x, lengths_B=torch.tensor([5, 3])).with_floats([v.requires_grad_() for v in x.floats()])
            for x in (p, q)
        )
        leaves = [*p.floats(), *q.floats()]
        ways = {
            "entropy": (of(p).entropy(), [enumerated(p, b) for b in range(2)]),
            "kl": (of(p).kl(of(q)), [enumerated(p, b, q)[0] for b in range(2)]),
            "cross-entropy": (of(p).cross_entropy(of(q)), [enumerated(p, b, q)[1] for b in range(2)]),
        }
        for name, (found, right) in ways.items():
            expected = torch.stack(right)
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9), name
            pair = [
                torch.autograd.grad((value * weight).sum(), leaves, allow_unused=True)
                for value in (found, expected)
            ]
            for ours, listed, leaf in zip(*pair, leaves, strict=True):
                ours = torch.zeros_like(leaf) if ours is None else ours
                listed = torch.zeros_like(leaf) if listed is None else torch.nan_to_num(listed)
                assert torch.allclose(ours, listed, atol=1e-9 * scale), (name, seed)


def gradient_of_the_list(p, rows, q=None):
    """The gradient of the sum of entropies, or of KL(p||q), by p's scores: a covariance, term by term."""
    total = [torch.zeros_like(value).detach() for value in p.floats()]
    for b in rows:
        paths, scores = listing(p, b)
        own = dict(zip(map(tuple, paths), log_probs(scores), strict=True))
        values = {path: -log for path, log in own.items()}
        if q is not None:
            others, under_q = listing(q, b)
            under_q = dict(zip(map(tuple, others), log_probs(under_q), strict=True))
            values = {path: log - under_q.get(path, -INF) for path, log in own.items()}
        live = [path for path, log in own.items() if math.exp(log) > 0]
        mean = math.fsum(math.exp(own[path]) * values[path] for path in live)
        for path in live:
            weight = math.exp(own[path]) * (values[path] - mean)
            score, transition, duration, start, end = total
            for at, (s, e, c) in enumerate(path):
                score[b, s:e, c] += weight
                duration[e - s - 1, c] += weight
                if at:
                    transition[path[at - 1][2], c] += weight
            start[path[0][2]] += weight
            end[path[-1][2]] += weight
    return total


@pytest.mark.parametrize("kind", HOSTILE)
def test_gradients_of_hostile_problems_are_those_of_the_list(kind):
    for seed in range(12):
        p = hostile_problem(kind, seed)
        q = hostile_problem(kind, seed + 1000, like=p)
        p = p.with_floats([value.requires_grad_() for value in p.floats()])
        feasible = [b for b in range(p.shape[0]) if log_probs(listing(p, b)[1])]
        kl = of(p).kl(of(q))
        finite = [b for b in feasible if math.isfinite(kl[b].item())]
        for total, rows, other in ((of(p).entropy(), feasible, None), (kl, finite, q)):
            found = torch.autograd.grad(total[rows].sum(), p.floats())
            size = max([1.0, *total[rows].tolist()])
            for ours, right in zip(found, gradient_of_the_list(p, rows, other), strict=True):
                assert float((ours - right).abs().max()) <= 1e-9 * size, (seed, other is not None)


def test_the_gradient_of_log_prob_is_that_of_the_list():
    p = random_problem(2, 5, 3, 2, masked=0.2, seed=2)
    p = replace(p, lengths_B=torch.tensor([5, 3])).with_floats([v.requires_grad_() for v in p.floats()])
    paths = of(p).argmax()
    found = of(p).log_prob(paths)
    expected = torch.stack([naive.path_score(p, b, paths[b]) for b in range(2)]) - naive.log_partition(p)
    assert torch.allclose(found, expected, atol=1e-12)
    for ours, right in zip(
        *(torch.autograd.grad(x.sum(), p.floats()) for x in (found, expected)), strict=True
    ):
        assert torch.allclose(ours, right, atol=1e-12)


def test_what_was_computed_before_a_change_or_without_gradients_is_not_taken_for_later():
    problem = random_problem(1, 4, 2, 2)
    score = problem.score_BTC.clone().requires_grad_()
    p, fresh = (SegmentDistribution(score, problem.transition, problem.duration_KC) for _ in range(2))
    with torch.no_grad():
        before = p.partition, p.entropy(), p.log_prob(p.argmax())
    found, right = (torch.autograd.grad(x.entropy().sum() + x.partition.sum(), score)[0] for x in (p, fresh))
    assert torch.equal(found, right)
    with torch.no_grad():
        score.mul_(2)
        assert not torch.equal(p.partition, before[0]) and not torch.equal(p.entropy(), before[1])
        assert p.log_prob(p.argmax()).item() == pytest.approx(p.topk(1)[0][0][0], abs=1e-12)


@pytest.mark.parametrize("name", ["score_BTC", "transition", "duration_KC", "start_C", "end_C", "lengths_B"])
def test_a_change_of_any_input_in_place_is_followed(name):
    given = arguments_of(random_problem(2, 5, 3, 2, seed=1))
    p = SegmentDistribution(**given)
    before = p.partition, p.entropy(), p.marginals
    given[name][0] -= 1
    fresh = SegmentDistribution(**given)
    found, right = ((x.partition, x.entropy(), x.marginals) for x in (p, fresh))
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found, before, strict=True))
    assert torch.equal(p.log_prob(p.argmax()), fresh.log_prob(fresh.argmax()))


def test_what_was_computed_before_an_input_wanted_a_gradient_is_not_taken_for_later():
    given = arguments_of(random_problem(1, 4, 2, 2))
    p = SegmentDistribution(**given)
    assert not p.partition.requires_grad and not p.entropy().requires_grad
    given["duration_KC"].requires_grad_()
    (found,) = torch.autograd.grad(p.partition.sum() + p.entropy().sum(), given["duration_KC"])
    fresh = SegmentDistribution(**given)
    (right,) = torch.autograd.grad(fresh.partition.sum() + fresh.entropy().sum(), given["duration_KC"])
    assert torch.equal(found, right) and float(right.abs().max()) > 0


def test_a_distribution_is_read_in_inference_mode_and_after_it():
    p, fresh = (of(random_problem(1, 4, 2, 2)) for _ in range(2))
    with torch.inference_mode():
        inside = p.partition, p.entropy(), p.marginals
    for found in (inside, (p.partition, p.entropy(), p.marginals)):
        right = fresh.partition, fresh.entropy(), fresh.marginals
        assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_is_made_after_something_was_computed_and_computes_its_own(copied):
    given = arguments_of(random_problem(1, 4, 2, 2))
    given["end_C"].requires_grad_()
    p = SegmentDistribution(**given)
    before = p.partition
    other = copied(p)
    with torch.no_grad():
        other.problem.end_C.add_(1)
    assert torch.equal(p.partition, before)
    torch.testing.assert_close(other.partition, before + 1, atol=1e-12, rtol=0)
    assert torch.autograd.grad(other.partition.sum(), other.problem.end_C)[0].sum() == pytest.approx(1)


def test_changing_what_a_distribution_returned_does_not_change_the_distribution():
    p = of(random_problem(1, 4, 2, 2))
    right = p.entropy(), p.partition.clone()
    p.marginals.mul_(2)
    p.partition.add_(1)
    assert torch.equal(p.entropy(), right[0]) and torch.equal(p.partition, right[1])


def test_inference_mode_follows_changes_too():
    problem = random_problem(1, 4, 2, 2)
    with torch.inference_mode():
        score = problem.score_BTC.clone()
        p = SegmentDistribution(score, problem.transition, problem.duration_KC)
        before = p.entropy()
        score.mul_(3)
        assert not torch.equal(p.entropy(), before)
        fresh = SegmentDistribution(score, problem.transition, problem.duration_KC)
        assert torch.equal(p.entropy(), fresh.entropy())
        assert p.log_prob(p.argmax()).item() == pytest.approx(p.topk(1)[0][0][0], abs=1e-12)


@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_every_backend_gives_the_same_distribution(backend):
    p, q = random_problem(2, 6, 3, 2, seed=1), random_problem(2, 6, 3, 2, seed=2)
    q = replace(q, lengths_B=p.lengths_B)
    for name, arguments in (("entropy", ()), ("kl", (of(q),)), ("expected", (of(q),)), ("argmax", ())):
        found, expected = (getattr(of(p, backend=x), name)(*arguments) for x in (backend, "auto"))
        same = found == expected if name == "argmax" else torch.allclose(found, expected, atol=1e-11)
        assert same, name


def test_a_model_that_nothing_fits_spoils_no_batch():
    problem = random_problem(2, 4, 2, 2, seed=1)
    score = problem.score_BTC.clone()
    score[0, 2] = -INF
    score.requires_grad_()
    lengths = torch.tensor([4, 4])
    p = SegmentDistribution(score, problem.transition, problem.duration_KC, lengths)
    q = SegmentDistribution(
        score.detach().nan_to_num(neginf=0.0), problem.transition, problem.duration_KC, lengths
    )
    total = p.entropy().sum() + p.kl(q).sum() + p.cross_entropy(q).sum() + p.expected(q).sum()
    assert torch.isfinite(total)
    assert [x[0].item() for x in (p.entropy(), p.kl(q), p.cross_entropy(q), p.expected(q))] == [0.0] * 4
    assert q.kl(p).tolist()[0] == INF and q.cross_entropy(p).tolist()[0] == INF
    total.backward()
    assert not bool(score.grad.isnan().any()) and not bool(score.grad[0].any())
    assert p.argmax()[0] == [] and p.topk(2)[0] == [] and p.sample(2)[0] == [[], []]
    assert p.log_prob(p.argmax()).tolist()[0] == -INF
    assert p.log_prob([[(0, 2, 0), (2, 4, 0)]] * 2).tolist()[0] == -INF


def test_draws_of_a_distribution_are_those_of_its_model():
    p = of(random_problem(1, 4, 3, 2, seed=8))
    drawn = p.sample(400, generator=torch.Generator().manual_seed(3))[0]
    surprise = -math.fsum(p.log_prob([path]).item() for path in drawn) / 400
    assert abs(surprise - p.entropy().item()) < 0.25  # 5 standard deviations of the mean


@pytest.mark.skipif(native.missing_reason("cpu") is not None, reason="no compiled form here")
def test_a_distribution_decodes_and_draws_by_its_own_backend(monkeypatch):
    problem, asked = random_problem(2, 9, 3, 2, seed=8), []
    compiled_form = decoding.compiled_form
    monkeypatch.setattr(
        decoding, "compiled_form", lambda *inputs: asked.append(inputs[1]) or compiled_form(*inputs)
    )
    for backend in ("torch", "native"):
        p = of(problem, backend=backend)
        asked.clear()
        assert p.sample(5) and [paths[0][1] for paths in p.topk(2)] == p.argmax()
        assert set(asked) == {backend}
    with pytest.raises(UsageError, match="k must be 1 or more"):
        p.topk(0)
    with pytest.raises(UsageError, match="n must be 0 or more"):
        p.sample(-1)


def test_float32_inputs_have_float64_information():
    problem = random_problem(2, 30, 5, 3, seed=3, dtype=torch.float32)
    wide = problem.with_floats([value.double() for value in problem.floats()])
    other = replace(random_problem(2, 30, 5, 3, seed=4, dtype=torch.float32), lengths_B=problem.lengths_B)
    for found, expected in (
        (of(problem).entropy(), of(wide).entropy()),
        (of(problem).kl(of(other)), of(wide).kl(of(other))),
        (of(problem).log_prob(of(wide).argmax()), of(wide).log_prob(of(wide).argmax())),
    ):
        assert found.dtype == torch.float64 and torch.equal(found, expected)


def test_non_contiguous_inputs_and_nan_in_the_padding_change_nothing():
    problem = replace(random_problem(2, 8, 3, 2, seed=3), lengths_B=torch.tensor([8, 5]))
    score = problem.score_BTC.clone()
    score[1, 5:] = math.nan
    odd = replace(problem, score_BTC=score.transpose(0, 1).contiguous().transpose(0, 1))
    for name in ("entropy", "argmax", "sample"):
        found, expected = [], []
        for answers, x in ((found, odd), (expected, problem)):
            torch.manual_seed(1)
            answers.append(getattr(of(x), name)())
        (found,), (expected,) = found, expected
        assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected
    assert torch.equal(of(odd).kl(of(odd)), torch.zeros(2).double())
    assert torch.equal(of(odd).log_prob(of(odd).argmax()), of(problem).log_prob(of(problem).argmax()))


def test_the_head_gives_the_distribution_of_its_loss():
    torch.manual_seed(0)
    head = SemiCRF(3, 4, hidden_dim=6, allowed_CC=torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).bool())
    hidden, lengths = torch.randn(2, 7, 6), torch.tensor([7, 4])
    p = head.distribution(hidden, lengths)
    labels = torch.tensor([[0, 0, 1, 1, 2, 2, 2], [1, 2, 2, 2, 0, 0, 0]])
    nll = head.loss(hidden, lengths, labels, reduction="none")
    assert torch.allclose(-p.log_prob(labels), nll, atol=1e-5)
    (p.entropy().sum() - p.log_prob(labels).sum()).backward()
    assert all(bool(torch.isfinite(x.grad).all()) for x in head.parameters())
    assert float(head.projection.weight.grad.abs().sum()) > 0


EXTENDED = [
    ("shared", ("start", "end")),
    ("shared", ("segment",)),
    ("frame", ("start",)),
    ("duration", ("start", "end", "segment")),
    ("frame", ("start", "end", "segment")),
]


@pytest.mark.parametrize(("kind", "terms"), EXTENDED)
@pytest.mark.parametrize("soft", [0.0, 500.0])
def test_models_with_scores_of_single_segments_have_the_information_of_the_list(kind, terms, soft):
    for seed in range(4):
        p, q = (
            extended_problem(2, 4, 3, 2, kind=kind, terms=terms, masked=mask, soft=soft, seed=seed + at)
            for at, mask in ((0, 0.1), (30, 0.0))
        )
        q = replace(q, lengths_B=p.lengths_B)
        plain = replace(random_problem(2, 4, 3, 2, seed=seed + 60), lengths_B=p.lengths_B)
        paths = of(p).argmax()
        entropy, kl, log_prob = of(p).entropy(), of(p).kl(of(q)), of(p).log_prob(paths)
        f, to_plain, from_plain = of(p).expected(of(q)), of(p).kl(of(plain)), of(plain).kl(of(p))
        for b in range(2):
            segmentations = listing(p, b)[0]
            own, under_q, under_plain = (log_probs(listing(x, b)[1]) for x in (p, q, plain))
            if not own:
                assert [entropy[b].item(), kl[b].item(), log_prob[b].item(), f[b].item()] == [0, 0, -INF, 0]
                continue
            expected = expectation(own, [-log for log in own])
            assert close(entropy[b].item(), expected)
            expected = expectation(own, [a - x for a, x in zip(own, under_q, strict=True)])
            assert close(kl[b].item(), expected)
            assert close(log_prob[b].item(), own[segmentations.index(paths[b])]), seed
            assert close(f[b].item(), expectation(own, map(float, listing(q, b)[1])))
            expected = expectation(own, [a - x for a, x in zip(own, under_plain, strict=True)])
            assert close(to_plain[b].item(), expected)
            expected = expectation(under_plain, [x - a for a, x in zip(own, under_plain, strict=True)])
            assert close(from_plain[b].item(), expected)


def test_models_that_cannot_be_subtracted_are_refused():
    by_duration, by_frame = (extended_problem(1, 4, 3, 2, kind=kind) for kind in ("duration", "frame"))
    with pytest.raises(UsageError, match="depend on the duration, the other's on the frame"):
        of(by_duration).kl(of(by_frame))
    with pytest.raises(UsageError, match="depend on the duration, the other's on the frame"):
        of(by_frame).kl(of(by_duration))


def agrees(path, allowed_TC, boundaries_T):
    starts = {s for s, _, _ in path}
    length = path[-1][1]
    labels_fit = all(allowed_TC[t, c] for s, e, c in path for t in range(s, e))
    return labels_fit and all(
        (t in starts) == (boundaries_T[t] > 0) for t in range(1, length) if boundaries_T[t] != 0
    )


@pytest.mark.parametrize("hostile", [None, *HOSTILE])
@pytest.mark.parametrize("given", ["labels", "boundaries", "both"])
def test_a_partial_annotation_conditions_on_the_segmentations_that_agree_with_it(hostile, given):
    g = torch.Generator().manual_seed(1)
    for seed in range(8):
        if hostile:
            problem = hostile_problem(hostile, seed)
        else:
            kind, terms = EXTENDED[seed % 5]
            problem = extended_problem(2, 5, 3, 2, kind=kind, terms=terms, masked=0.1, seed=seed)
        batch, frames, _, labels = problem.shape
        allowed = torch.rand(batch, frames, labels, generator=g) < 0.8
        boundaries = torch.randint(-1, 2, (batch, frames), generator=g)
        boundaries *= (torch.rand(batch, frames, generator=g) < 0.6).long()
        allowed_BTC = allowed if given != "boundaries" else None
        boundaries_BT = boundaries if given != "labels" else None
        p = of(problem)
        conditional = p.constrained(allowed_BTC, boundaries_BT)
        partial, entropy = p.log_prob_partial(allowed_BTC, boundaries_BT), conditional.entropy()
        best, draws = conditional.argmax(), conditional.sample(3)
        assert torch.equal(conditional.partition > -INF, partial > -INF)
        for b in range(batch):
            paths, scores = listing(problem, b)
            free = log_probs(scores)
            kept = [
                agrees(
                    path,
                    allowed[b] if allowed_BTC is not None else torch.ones_like(allowed[b]),
                    boundaries[b] if boundaries_BT is not None else torch.zeros_like(boundaries[b]),
                )
                for path in paths
            ]
            agreeing = log_probs([score if keep else None for score, keep in zip(scores, kept, strict=True)])
            live = [score for score, keep in zip(scores, kept, strict=True) if keep and score is not None]
            if not live:
                assert (partial[b].item(), best[b], draws[b]) == (-INF, [], [[], [], []])
                continue
            top = max(
                live
            )  # the sum of what agrees, relative to its largest: it may be e^-1000 of the free one
            log_kept = float(top - max(score for score in scores if score is not None)) + math.log(
                math.fsum(math.exp(float(score - top)) for score in live)
            )
            expected = log_kept + max(free)
            assert close(partial[b].item(), expected), (seed, b)
            assert close(entropy[b].item(), expectation(agreeing, [-log for log in agreeing])), (seed, b)
            assert all(kept[paths.index(path)] for path in [best[b], *draws[b]])


def test_an_annotation_that_says_nothing_has_probability_1_and_a_whole_one_that_of_its_segmentation():
    problem = replace(random_problem(2, 5, 3, 2, seed=2), lengths_B=torch.tensor([5, 3]))
    p = of(problem)
    nothing = p.log_prob_partial(torch.ones(2, 5, 2).bool(), torch.zeros(2, 5, dtype=torch.int64))
    assert torch.equal(nothing, torch.zeros(2).double())
    path = [[(0, 2, 1), (2, 5, 0)], [(0, 1, 0), (1, 3, 0)]]
    allowed, boundaries = torch.zeros(2, 5, 2).bool(), torch.full((2, 5), -1)
    for b in range(2):
        for s, e, c in path[b]:
            allowed[b, s:e, c], boundaries[b, s] = True, 1
    boundaries[1, 3:], allowed[1, 3:] = -100, False  # the padding is not read
    assert torch.allclose(p.log_prob_partial(allowed, boundaries), p.log_prob(path), atol=1e-12)


@pytest.mark.parametrize(
    ("allowed", "boundaries", "words"),
    [
        (torch.ones(1, 4, 2), None, "allowed must be bool"),
        (torch.ones(1, 4).bool(), None, "allowed must be bool"),
        ([[[True] * 2] * 4], None, "allowed must be a tensor, got list"),
        (None, [[0] * 4], "boundaries must be a tensor, got list"),
        (None, torch.full((1, 4), 2), "boundaries must be -1, 0 or"),
        (None, torch.ones(1, 4).bool(), "boundaries must be -1, 0 or"),
        (None, torch.zeros(4, dtype=torch.int64), "boundaries must be -1, 0 or"),
    ],
)
def test_an_annotation_of_another_shape_is_named(allowed, boundaries, words):
    p = SegmentDistribution(torch.zeros(1, 4, 2), torch.zeros(2, 2), torch.zeros(4, 2))
    with pytest.raises(UsageError, match=words):
        p.constrained(allowed, boundaries)


def test_partial_supervision_trains():
    problem = random_problem(2, 6, 3, 2, seed=2)
    leaves = [value.clone().requires_grad_() for value in problem.floats()]
    allowed = torch.rand(2, 6, 2, generator=torch.Generator().manual_seed(3)) < 0.7
    boundaries = torch.tensor([[0, 1, 0, -1, 0, 0]] * 2)
    model = problem.with_floats(leaves)
    of(model).log_prob_partial(allowed, boundaries).exp().sum().backward()
    for leaf, name in zip(leaves, problem.names(), strict=True):
        at = tuple(int(x) - 1 for x in leaf.shape)
        totals = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                leaf[at] += step
                moved = of(problem.with_floats([x.clone() for x in leaves]))
                totals.append(moved.log_prob_partial(allowed, boundaries).exp().sum().item())
                leaf[at] -= step
        assert leaf.grad[at].item() == pytest.approx((totals[0] - totals[1]) / 2e-6, abs=1e-8), name


def test_segments_that_are_no_whole_numbers_are_refused():
    problem = random_problem(1, 4, 3, 2, seed=1)
    with pytest.raises(UsageError, match="must be whole numbers"):
        of(problem).log_prob([[(0, 1.5, 0), (1.5, int(problem.lengths_B[0]), 1)]])
