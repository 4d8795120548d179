"""The distribution over segmentations against a list of all of them, in fractions."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf.model import naive  # noqa: E402
from lab.rooms.semicrf.model.distribution import SegmentDistribution  # noqa: E402
from lab.rooms.semicrf.model.head import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
INF = math.inf


def of(problem, **kw):
    return SegmentDistribution(**arguments_of(problem), **kw)


def arguments_of(problem):
    given = problem.arguments()
    return {"transition": given.pop("transition_CC"), **given}


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
                terms.append(problem.transition_CC[path[at - 1][2], c].item())
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


def hostile_problem(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    batch, frames, longest, labels = (
        int(torch.randint(1, n + 1, (), generator=generator)) for n in (3, 5, 7, 3)
    )
    lengths = torch.randint(1, frames + 1, (batch,), generator=generator)
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
        entropy_B = of(replace(problem, score_BTC=leaf)).entropy()
        assert bool((entropy_B >= 0).all()), seed
        assert not torch.isnan(entropy_B.sqrt()).any()
        (gradient,) = torch.autograd.grad(entropy_B.sum(), leaf)
        assert bool(torch.isfinite(gradient).all())


def test_what_is_common_to_all_labels_of_a_frame_costs_no_digits():
    problem = random_problem(1, 60, 4, 3, seed=2)
    problem.score_BTC[:, 20:40] = 0.0
    plain = of(problem)
    masked = replace(problem, score_BTC=problem.score_BTC.clone())
    masked.score_BTC[:, 20:40] = -9e11
    p = of(masked)
    assert p.entropy().item() == pytest.approx(plain.entropy().item(), abs=1e-9)
    assert p.topk(2)[0][0] == (pytest.approx(plain.topk(1)[0][0][0], abs=1e-9), plain.argmax()[0])
    assert p.log_prob(plain.argmax()).item() == pytest.approx(plain.topk(1)[0][0][0], abs=1e-9)


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
    """The first segment starts, and pays for it, whether it is marked or not."""
    problem = extended_problem(2, 5, 3, 2, terms=("start",), seed=1)
    problem = replace(problem, lengths_B=torch.tensor([5, 3]))
    labels = torch.tensor([[0, 0, 1, 1, 0], [1, 0, 0, 7, -3]])
    starts = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
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
    with pytest.raises(ValueError, match=r"labels change inside a gold segment \[first b=0 t=1"):
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
    ],
)
def test_what_is_no_segmentation_is_named(value, words):
    p = SegmentDistribution(torch.zeros(2, 4, 2), torch.zeros(2, 2), torch.zeros(4, 2))
    with pytest.raises(UsageError, match=words):
        p.log_prob(value)


def test_a_label_out_of_range_is_named_with_its_frame():
    p = SegmentDistribution(torch.zeros(2, 4, 2), torch.zeros(2, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="label 2 at b=0 t=0"):
        p.log_prob(torch.full((2, 4), 2))


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


@pytest.mark.parametrize("terms", [(), ("start", "end"), ("segment",), ("start", "end", "segment")])
@pytest.mark.parametrize("soft", [0.0, 500.0])
def test_scores_of_single_segments_are_in_entropy_and_log_prob(terms, soft):
    problem = extended_problem(1, 5, 3, 2, terms=terms, masked=0.1, soft=soft, seed=3)
    p = of(problem)
    paths, scores = listing(problem, 0)
    logs = log_probs(scores)
    found = [p.log_prob([path]).item() for path in paths]
    assert all(close(x, y) for x, y in zip(found, logs, strict=True))
    assert math.fsum(map(math.exp, found)) == pytest.approx(1, abs=1e-12)
    assert close(p.entropy().item(), -expectation(logs, logs))


def test_a_model_that_nothing_fits_spoils_no_batch():
    problem = random_problem(2, 4, 2, 2, seed=1)
    score = problem.score_BTC.clone()
    score[0, 2] = -INF
    score.requires_grad_()
    p = SegmentDistribution(score, problem.transition_CC, problem.duration_KC, torch.tensor([4, 4]))
    assert p.entropy()[0] == 0 and torch.isfinite(p.entropy()).all()
    p.entropy().sum().backward()
    assert not bool(score.grad.isnan().any()) and not bool(score.grad[0].any())
    assert p.argmax()[0] == [] and p.topk(2)[0] == [] and p.sample(2)[0] == [[], []]
    assert p.log_prob(p.argmax()).tolist()[0] == -INF
    assert p.log_prob([[(0, 2, 0), (2, 4, 0)]] * 2).tolist()[0] == -INF


def test_draws_of_a_distribution_are_those_of_its_model():
    p = of(random_problem(1, 4, 3, 2, seed=8))
    drawn = p.sample(400, generator=torch.Generator().manual_seed(3))[0]
    surprise = -math.fsum(p.log_prob([path]).item() for path in drawn) / 400
    assert abs(surprise - p.entropy().item()) < 0.25  # 5 standard deviations of the mean


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


def test_segments_that_are_no_whole_numbers_are_refused():
    problem = random_problem(1, 4, 3, 2, seed=1)
    with pytest.raises(UsageError, match="must be whole numbers"):
        of(problem).log_prob([[(0, 1.5, 0), (1.5, int(problem.lengths_B[0]), 1)]])
