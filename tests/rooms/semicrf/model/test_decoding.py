"""viterbi, kbest and sample as users call them, by the default form and by torch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf.model import api, naive  # noqa: E402
from lab.rooms.semicrf.model.native import choose as native  # noqa: E402
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402
from lab.rooms.semicrf.model.native import decode  # noqa: E402
from lab.rooms.semicrf.model.native.build import SOURCE, built  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
compiled = pytest.mark.skipif(native.missing_reason("cpu") is not None, reason="no compiled form here")


@pytest.fixture(params=["auto", "torch"])
def backend(request):
    return request.param


def call(function, problem, **options):
    score, transition, duration, start, end = problem.floats()
    return function(score, transition, duration, problem.lengths_B, start_C=start, end_C=end, **options)


@pytest.mark.parametrize("by_duration", [False, True])
def test_draws_come_from_torchs_stream_or_a_generator_and_equal_sequences_are_drawn_apart(
    backend, by_duration
):
    alone = random_problem(1, 20, 4, 3, by_duration=by_duration, seed=2, scale=0.1)
    problem = alone.rows([0] * 32)

    def drawn(**options):
        return call(api.sample, problem, samples=2, backend=backend, **options)

    torch.manual_seed(1)
    once, again = drawn(), drawn()
    torch.manual_seed(1)
    assert drawn() == once and again != once
    assert len({str(path) for paths in once for path in paths}) > 48
    seeded = [drawn(generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert seeded[0] == seeded[1] != seeded[2]


@compiled
def test_what_underflows_is_drawn_from_the_log_domain():
    problem = random_problem(2, 12, 4, 2, seed=3)
    problem.lengths_B[:] = 12
    problem.transition[:] = torch.tensor([[0.0, -900.0], [-900.0, 0.0]])
    problem.score_BTC[0, :6, 1] = problem.score_BTC[0, 6:, 0] = -1200.0
    assert bool(decode.draws(problem, 3, 0)[1][0])
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
    expected = api.kbest(*wide.floats()[:3], wide.lengths_B, backend=backend)
    assert api.kbest(*grown, plain.lengths_B, backend=backend) == expected
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
    for kind in (np.int64, np.uint8, torch.tensor):
        assert call(api.kbest, problem, count=kind(5), backend=backend) == found
        assert len(call(api.sample, problem, samples=kind(5), backend=backend)[0]) == 5
    for name, function in (("count", api.kbest), ("samples", api.sample)):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            call(function, problem, backend=backend, **{name: 3.0})


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
