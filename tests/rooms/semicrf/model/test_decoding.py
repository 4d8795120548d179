"""viterbi, kbest and sample as users call them, by the default form and by torch."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lab.errors import BadDataError, UsageError  # noqa: E402
from lab.rooms.semicrf.model import api, decoding, naive  # noqa: E402
from lab.rooms.semicrf.model.native import choose as native  # noqa: E402
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402
from lab.rooms.semicrf.model.native import decode  # noqa: E402
from lab.rooms.semicrf.model.native.build import SOURCE, built  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
compiled = pytest.mark.skipif(native.missing_reason("cpu") is not None, reason="no compiled form here")
NAMES = ("score", "transition", "duration", "start", "end")


@pytest.fixture(params=["auto", "torch"])
def backend(request):
    return request.param


def call(function, problem, **options):
    score, transition, duration, start, end = problem.floats()
    return function(score, transition, duration, problem.lengths_B, start_C=start, end_C=end, **options)


def exact_score(problem, b, path):
    """The sum without rounding, or -inf."""
    terms = [problem.start_C[path[0][2]], problem.end_C[path[-1][2]]]
    terms += [x for s, e, c in path for x in problem.score_BTC[b, s:e, c]]
    terms += [problem.duration_KC[e - s - 1, c] for s, e, c in path]
    terms += [problem.transition[one[2], two[2]] for one, two in itertools.pairwise(path)]
    return sum(Fraction(float(x)) for x in terms) if all(math.isfinite(x) for x in terms) else -math.inf


def check_best(problem, found, count):
    """`found` are the first of all segmentations but for ties, and have the scores that they should."""
    every = naive.enumerate_segmentations(problem, 0)[0]
    expected = sorted((exact_score(problem, 0, path) for path in every), reverse=True)[:count]
    exact = [exact_score(problem, 0, path) for _, path in found]
    assert len(found) == len({tuple(path) for _, path in found}) == count
    assert all(abs(one - other) < 1e-9 for one, other in zip(exact, expected, strict=True))
    assert [score for score, _ in found] == pytest.approx([float(score) for score in exact], rel=1e-14)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("frames", ["one", "many", "forced"])
def test_scores_of_1e30_do_not_swallow_the_others(backend, sign, frames):
    for seed in range(3):
        problem = random_problem(1, 6, 3, 2, seed=seed)
        if frames == "one":
            problem.score_BTC[0, 2, 0] = sign * 1e30
        elif frames == "many":
            problem.score_BTC[0, 1:5, 1] = sign * 1e30
        else:  # the other label is forbidden, so every segmentation pays
            problem.score_BTC[0, 1:5, 0] = sign * 1e30
            problem.score_BTC[0, 1:5, 1] = -math.inf
        check_best(problem, call(api.kbest, problem, count=4, backend=backend)[0], 4)
        score_B, found = call(api.viterbi, problem, backend=backend)
        check_best(problem, [(float(score_B), found[0])], 1)


def test_a_large_score_that_no_segmentation_can_take_sets_no_scale(backend):
    problem = random_problem(1, 6, 3, 2, seed=1)
    problem.start_C[1] = problem.transition[0, 1] = -math.inf
    problem.score_BTC[0, :, 1] = 1e30
    check_best(problem, call(api.kbest, problem, count=3, backend=backend)[0], 3)


def test_what_all_must_pay_swallows_nothing_though_the_frame_has_a_better_score(backend):
    for seed in range(4):
        problem = random_problem(1, 6, 2, 2, seed=seed)
        problem.start_C[1] = problem.transition[0, 1] = -math.inf
        problem.score_BTC[0, 2] = torch.tensor([-1e30, 0.0])
        score_B, found = call(api.viterbi, problem, backend=backend)
        check_best(problem, [(float(score_B), found[0])], 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_nan_and_inf_never_decode(backend, name, bad):
    problem = random_problem(3, 6, 3, 2, seed=1)
    problem.lengths_B[:] = 6
    value = problem.floats()[NAMES.index(name)]
    value[(1,) * value.dim()] = bad
    where = "frame 1" if name == "score" else name
    for function in (api.viterbi, api.kbest, api.sample):
        with pytest.raises(BadDataError, match="NaN or \\+inf") as caught:
            call(function, problem, backend=backend)
        assert where in str(caught.value.location)
    assert name != "score" or "sequence 1" in str(caught.value)


def test_nan_in_the_padding_is_nobodys(backend):
    problem = random_problem(2, 6, 3, 2, seed=1)
    problem.lengths_B[:] = torch.tensor([4, 6])
    clean = [call(f, problem, backend=backend) for f in (api.kbest, api.sample)]
    problem.score_BTC[0, 4:] = math.nan
    assert [call(f, problem, backend=backend) for f in (api.kbest, api.sample)] == clean


@pytest.mark.parametrize("by_duration", [False, True])
def test_draws_do_not_depend_on_the_order_of_the_batch(backend, by_duration):
    problem = random_problem(3, 9, 4, 3, by_duration=by_duration, seed=2)
    order = torch.tensor([2, 0, 1])
    drawn = call(api.sample, problem, samples=4, seed=5, backend=backend)
    shuffled = call(api.sample, problem.rows(order), samples=4, seed=5, backend=backend)
    assert shuffled == [drawn[i] for i in order.tolist()]


def test_negative_and_large_seeds_are_seeds(backend):
    problem = random_problem(1, 20, 4, 3, seed=2, scale=0.1)
    drawn = [call(api.sample, problem, seed=seed, backend=backend) for seed in (0, 1, -1, 2**63, 2**64 - 2)]
    assert len({str(one) for one in drawn}) == 5


@compiled
def test_what_underflows_is_drawn_from_the_log_domain():
    problem = random_problem(2, 12, 4, 2, seed=3)
    problem.lengths_B[:] = 12
    problem.transition[:] = torch.tensor([[0.0, -900.0], [-900.0, 0.0]])
    problem.score_BTC[0, :6, 1] = problem.score_BTC[0, 6:, 0] = -1200.0
    assert decode.draws(problem, 3, 0)[1].tolist()[0]
    for path in call(api.sample, problem, samples=3)[0]:
        assert [label for start, end, label in path for _ in range(start, end)] == [0] * 6 + [1] * 6


@compiled
def test_messages_that_do_not_add_up_are_noticed(tmp_path, monkeypatch):
    text, walked = SOURCE.read_text(), "walk<false>(m, s, false, kept, own);"
    assert text.count(walked) == 1
    fault = f"{walked} if (s.length == 12) kept.gamma[m.nv] *= 1.001;"
    (tmp_path / "vectors.h").write_bytes(SOURCE.with_name("vectors.h").read_bytes())
    (tmp_path / SOURCE.name).write_text(text.replace(walked, fault))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    faulty = built(tmp_path / SOURCE.name)
    monkeypatch.setattr(native_cpu, "library", lambda: faulty)
    problem = random_problem(2, 12, 4, 3, seed=3)
    problem.lengths_B[:] = torch.tensor([11, 12])
    assert [decode.draws(problem, 1, seed)[1].tolist() for seed in range(12)].count([False, True]) == 12


@compiled
def test_ordinary_draws_need_no_log_domain():
    for masked in (0.0, 0.4):
        problem = random_problem(4, 80, 20, 5, masked=masked, seed=3)
        assert not bool(decode.draws(problem, 2, 0)[1].any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_dtype_strides_and_gradients_decode_as_float64_does(backend, dtype):
    plain = random_problem(2, 8, 3, 3, seed=4, dtype=dtype)
    wide = make_problem(*(x.double() for x in plain.floats()[:3]), plain.lengths_B)
    odd = plain.score_BTC.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    grown = (odd, plain.transition.t().contiguous().t().requires_grad_(), plain.duration_KC.requires_grad_())
    assert not odd.is_contiguous()
    for function in (api.kbest, api.sample):
        expected = function(*wide.floats()[:3], wide.lengths_B, backend=backend)
        assert function(*grown, plain.lengths_B, backend=backend) == expected
    score_B, found = api.viterbi(*grown, plain.lengths_B, backend=backend)
    assert found == naive.viterbi(wide)[1] and score_B.dtype == torch.float64 and not score_B.requires_grad


def test_transitions_by_duration_decode(backend):
    problem = random_problem(2, 5, 3, 2, by_duration=True, seed=4)
    score_B, found = call(api.viterbi, problem, backend=backend)
    expected_B, expected = naive.viterbi(problem)
    assert torch.allclose(score_B, expected_B, atol=1e-12) and found == expected
    assert [one[0][1] for one in call(api.kbest, problem, count=2, backend=backend)] == expected


def test_more_than_there_are_needs_no_more_room_than_there_are(backend):
    problem = random_problem(2, 3, 3, 2, seed=4)
    found = call(api.kbest, problem, count=10**12, backend=backend)
    assert [len(one) for one in found] == [
        len(naive.enumerate_segmentations(problem, b)[0]) for b in range(2)
    ]


def test_whole_numbers_of_every_kind_count_and_others_are_refused(backend):
    problem = random_problem(1, 9, 2, 2, scale=0.3)
    found = call(api.kbest, problem, count=5, backend=backend)
    drawn = call(api.sample, problem, samples=5, seed=3, backend=backend)
    for kind in (np.int64, np.uint8, torch.tensor):
        assert call(api.kbest, problem, count=kind(5), backend=backend) == found
        assert call(api.sample, problem, samples=kind(5), seed=kind(3), backend=backend) == drawn
    for name, function in (("count", api.kbest), ("samples", api.sample), ("seed", api.sample)):
        for other in (3.0, None, "3"):
            with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
                call(function, problem, backend=backend, **{name: other})


def test_counts_that_make_no_sense_are_refused(backend):
    problem = random_problem(1, 4, 2, 2)
    with pytest.raises(UsageError, match="count must be at least 1"):
        call(api.kbest, problem, count=0, backend=backend)
    with pytest.raises(UsageError, match="must not be negative"):
        call(api.sample, problem, samples=-1, backend=backend)
    assert call(api.sample, problem, samples=0, backend=backend) == [[]]


@compiled
def test_the_default_form_is_the_compiled_one(monkeypatch):
    problem = random_problem(1, 4, 2, 2)
    called = []
    for name in ("best", "draws"):
        usual = getattr(decode, name)
        monkeypatch.setattr(
            decode, name, lambda *args, usual=usual, name=name: called.append(name) or usual(*args)
        )
    for function in (api.viterbi, api.kbest, api.sample):
        call(function, problem)
    assert called == ["best", "best", "draws"]


def test_taking_out_the_tops_leaves_the_order_of_segmentations():
    problem = random_problem(2, 5, 3, 2, masked=0.3, seed=7)
    problem.score_BTC[0, 1] += 1e30
    less = decoding.without_tops(problem)
    assert float(less.score_BTC[1].amax()) == 0 and less.score_BTC[0, 1].tolist() == [0, 0]
    assert decoding.best(less, 3, "torch")[1] and less.lengths_B is problem.lengths_B
    unchanged = replace(less, score_BTC=less.score_BTC[1:], lengths_B=less.lengths_B[1:])
    paths_of = [path for _, path in decoding.best(unchanged, 3, "torch")[0]]
    assert paths_of == [path for _, path in decoding.best(problem.rows(torch.tensor([1])), 3, "torch")[0]]
