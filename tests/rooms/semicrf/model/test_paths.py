"""Best segmentations, the k best and draws, against enumeration."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.rooms.semicrf.model import api, decoding, naive, paths  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch


@settings(max_examples=25)
@given(
    st.integers(1, 8),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    st.integers(0, 99),
)
def test_viterbi_finds_a_path_as_good_as_the_naive_one(frames, longest, labels, masked, by_duration, seed):
    problem = random_problem(2, frames, longest, labels, masked=masked, by_duration=by_duration, seed=seed)
    score, path = decoding.viterbi(problem, "torch")
    expected, expected_path = naive.viterbi(problem)
    assert torch.allclose(score, expected, atol=1e-12)
    for b in range(2):
        assert bool(path[b]) == bool(expected_path[b])
        if path[b]:  # equal sums in another order may differ in the last bit, so the path may differ in a tie
            assert naive.path_score(problem, b, path[b]).item() == pytest.approx(
                expected[b].item(), abs=1e-12
            )


def test_ties_go_to_the_shortest_segment_and_the_smallest_label():
    zero = torch.zeros(1, 3, 2, dtype=torch.float64)
    score, path = api.viterbi(zero, torch.zeros(2, 2).double(), torch.zeros(3, 2).double())
    assert (score.item(), path) == (0.0, [[(0, 1, 0), (1, 2, 0), (2, 3, 0)]])
    assert (
        path
        == naive.viterbi(api.make_problem(zero, torch.zeros(2, 2).double(), torch.zeros(3, 2).double()))[1]
    )


@pytest.mark.parametrize("by_duration", [False, True])
def test_the_k_best_are_the_first_of_all(by_duration):
    problem = random_problem(2, 5, 3, 2, masked=0.2, by_duration=by_duration, seed=1)
    for b, found in enumerate(paths.best(problem, 6)):
        all_paths, scores = naive.enumerate_segmentations(problem, b)
        ranked = sorted((-s, i) for i, s in enumerate(scores.tolist()) if s > -math.inf)[:6]
        assert [score for score, _ in found] == pytest.approx([-s for s, _ in ranked], abs=1e-12)
        index = {tuple(path): i for i, path in enumerate(all_paths)}
        chosen = [index[tuple(path)] for _, path in found]
        assert len(set(chosen)) == len(chosen)
        assert [scores[i].item() for i in chosen] == pytest.approx([s for s, _ in found], abs=1e-12)


@pytest.mark.parametrize("by_duration", [False, True])
def test_the_first_of_the_k_best_is_viterbis_to_the_last_bit(by_duration):
    problem = random_problem(4, 40, 9, 5, masked=0.2, by_duration=by_duration, seed=4)
    score_B, best = decoding.viterbi(problem, "torch")
    assert [found[0] for found in paths.best(problem, 6)] == list(zip(score_B.tolist(), best, strict=True))


@pytest.mark.parametrize("by_duration", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 3, 2), (2, 4, 6, 3), (1, 6, 1, 3), (1, 1, 2, 1)], ids=str)
def test_ties_of_the_k_best_go_to_the_smaller_label_then_duration_from_the_end(shape, by_duration):
    random = random_problem(*shape, masked=0.2, by_duration=by_duration, seed=1)
    floats = [value.round() for value in random.floats()]
    problem = api.make_problem(*floats[:3], random.lengths_B, *floats[3:])
    for b, found in enumerate(paths.best(problem, 12)):
        every, scores = naive.enumerate_segmentations(problem, b)
        backwards = [[(label, end - start) for start, end, label in reversed(path)] for path in every]
        order = sorted(zip((-scores).tolist(), backwards, every, strict=True))[:12]
        assert found == [(-score, path) for score, _, path in order if score < math.inf]


@pytest.mark.parametrize("by_duration", [False, True])
def test_draws_come_as_often_as_their_probability_says(by_duration):
    problem = random_problem(1, 4, 3, 2, by_duration=by_duration, seed=2)
    all_paths, scores = naive.enumerate_segmentations(problem, 0)
    mass = (scores - torch.logsumexp(scores, 0)).exp().tolist()
    count = 3000
    drawn = [tuple(path) for path in paths.sample(problem, count, seed=7)[0]]
    for path, p in zip(all_paths, mass, strict=True):
        assert abs(drawn.count(tuple(path)) / count - p) <= 5 * math.sqrt(p * (1 - p) / count) + 1e-9


def test_an_impossible_sequence_has_no_path_and_no_draw():
    score = torch.full((1, 3, 2), -math.inf, dtype=torch.float64)
    args = (score, torch.zeros(2, 2).double(), torch.zeros(2, 2).double())
    assert api.viterbi(*args) == (torch.tensor([-math.inf], dtype=torch.float64), [[]])
    assert api.sample(*args) == [[[]]]
    assert api.kbest(*args) == [[]]
    assert float(api.log_partition(*args)) == -math.inf
    assert float(api.marginals(*args).abs().max()) == 0
