"""viterbi, kbest and sample as users call them, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf.model import api, naive, paths  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, inputs_of, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
TERMS = [(), ("start", "end", "segment")]


def rounded(problem):
    """Whole numbers: sums are exact in any order, and many segmentations tie."""
    return problem.with_floats([value.round() for value in problem.floats()])


def ranked(problem, b, count):
    """The first of all segmentations; ties by label, then duration, from the end."""
    every, scores = naive.enumerate_segmentations(problem, b)
    backwards = [[(label, end - start) for start, end, label in reversed(path)] for path in every]
    order = sorted(zip((-scores).tolist(), backwards, every, strict=True))[:count]
    return [(-score, path) for score, _, path in order if score < math.inf]


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([1, 2, 7, 40]),
    st.sampled_from(TERMS),
    st.integers(0, 10**6),
)
def test_the_k_best_are_the_first_of_all_ties_in_order(frames, longest, labels, masked, count, terms, seed):
    problem = rounded(extended_problem(2, frames, longest, labels, masked=masked, terms=terms, seed=seed))
    assert paths.best(problem, count) == [ranked(problem, b, count) for b in range(2)]
    for backend in ("auto", "torch"):
        score_B, found = api.viterbi(**inputs_of(problem), backend=backend)
        tops = [ranked(problem, b, 1) or [(-math.inf, [])] for b in range(2)]
        assert list(zip(score_B.tolist(), found, strict=True)) == [top for (top,) in tops]


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("soft", [0.0, 500.0])
def test_draws_come_as_often_as_their_probability_says(terms, soft):
    problem = extended_problem(2, 4, 3, 2, terms=terms, masked=0.1, soft=soft, seed=2)
    count = 4000
    for b, draws in enumerate(paths.sample(problem, count, seed=7)):
        every, scores = naive.enumerate_segmentations(problem, b)
        mass = torch.softmax(scores, 0).tolist()
        drawn = [tuple(path) for path in draws]
        for path, p in zip(every, mass, strict=True):
            allowed = 5 * math.sqrt(p * (1 - p) / count) + (3 / count if p else 0)  # few draws are no normal
            assert abs(drawn.count(tuple(path)) / count - p) <= allowed


def test_draws_of_long_segments_cover_frames_as_often_as_the_posteriors_say():
    problem = random_problem(1, 60, 48, 3, seed=6, scale=0.3)
    problem.duration_KC.add_((torch.arange(48)[:, None] / 12) ** 2)
    count = 2000
    covered_TC, lasted_K = torch.zeros(60, 3, dtype=torch.float64), torch.zeros(48, dtype=torch.float64)
    for path in paths.sample(problem, count, seed=1)[0]:
        assert [0, *(end for _, end, _ in path)] == [*(start for start, _, _ in path), 60]
        for start, end, label in path:
            covered_TC[start:end, label] += 1 / count
            lasted_K[end - start - 1] += 1 / count
    right = naive.posteriors(problem)
    share_TC, expected_K = right.label_BTC[0], right.duration_BKC[0].sum(-1)
    sigma_TC = (share_TC * (1 - share_TC) / count).sqrt().clamp(min=1e-3)
    assert bool(((covered_TC - share_TC).abs() <= 5 * sigma_TC).all())
    assert bool(((lasted_K - expected_K).abs() <= 8 * (expected_K / count).sqrt() + 8 / count).all())


def test_draws_come_from_torchs_stream_or_a_generator_and_equal_sequences_are_drawn_apart():
    problem = random_problem(1, 20, 4, 3, seed=2, scale=0.1).rows([0] * 32)

    def drawn(**options):
        return api.sample(**inputs_of(problem), samples=2, **options)

    torch.manual_seed(1)
    once, again = drawn(), drawn()
    torch.manual_seed(1)
    assert drawn() == once and again != once
    assert len({str(path) for draws in once for path in draws}) > 48
    seeded = [drawn(generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert seeded[0] == seeded[1] != seeded[2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_dtype_strides_and_gradients_decode_as_float64_does(dtype):
    plain = random_problem(2, 8, 3, 3, seed=4, dtype=dtype)
    wide = make_problem(*(x.double() for x in plain.floats()[:3]), plain.lengths_B)
    odd = plain.score_BTC.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    grown = (
        odd,
        plain.transition_CC.t().contiguous().t().requires_grad_(),
        plain.duration_KC.requires_grad_(),
    )
    assert not odd.is_contiguous()
    assert api.kbest(*grown, plain.lengths_B) == api.kbest(*wide.floats()[:3], wide.lengths_B)
    score_B, found = api.viterbi(*grown, plain.lengths_B)
    assert found == naive.viterbi(wide)[1] and score_B.dtype == torch.float64 and not score_B.requires_grad


def test_more_than_there_are_needs_no_more_room_than_there_are():
    problem = random_problem(2, 3, 3, 2, seed=4)
    found = api.kbest(**inputs_of(problem), count=10**12)
    assert [len(one) for one in found] == [
        len(naive.enumerate_segmentations(problem, b)[0]) for b in range(2)
    ]


def test_whole_numbers_of_every_kind_count_and_what_makes_no_sense_is_refused():
    inputs = inputs_of(random_problem(1, 9, 2, 2, scale=0.3))
    found = api.kbest(**inputs, count=5)
    for kind in (np.int64, np.uint8, torch.tensor):
        assert api.kbest(**inputs, count=kind(5)) == found
        assert len(api.sample(**inputs, samples=kind(5))[0]) == 5
    for name, function in (("count", api.kbest), ("samples", api.sample)):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            function(**inputs, **{name: 3.0})
    with pytest.raises(UsageError, match="count must be at least 1"):
        api.kbest(**inputs, count=0)
    with pytest.raises(UsageError, match="must not be negative"):
        api.sample(**inputs, samples=-1)
    assert api.sample(**inputs, samples=0) == [[]]


def test_an_impossible_sequence_has_no_path_and_no_draw():
    score = torch.full((1, 3, 2), -math.inf, dtype=torch.float64)
    args = (score, torch.zeros(2, 2).double(), torch.zeros(2, 2).double())
    assert api.viterbi(*args) == (torch.tensor([-math.inf], dtype=torch.float64), [[]])
    assert api.sample(*args) == [[[]]]
    assert api.kbest(*args) == [[]]
    assert float(api.log_partition(*args)) == -math.inf
    assert float(api.marginals(*args).abs().max()) == 0
