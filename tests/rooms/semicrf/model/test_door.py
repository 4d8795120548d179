"""The one door for numbers: what forbids, what is refused, and that every function agrees on both."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from lab.errors import BadDataError  # noqa: E402
from lab.rooms.semicrf import SegmentDistribution, SemiCRF  # noqa: E402
from lab.rooms.semicrf.model import api  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, inputs_of, parts, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
BACKENDS = ("naive", "torch", "auto")
LOWEST = float(torch.finfo(torch.float32).min)
PLAIN = ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C")
TERMS = ("seg_start_BTC", "seg_end_BTC", "segment_BTKC")


def masked(problem, name, value, seed=0):
    """`value` in a third of an input."""
    whole = getattr(problem, name)
    chosen = torch.rand(whole.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    if name == "score_BTC":  # a whole frame that a finite number masks is another question
        chosen[..., 0] = chosen[..., 0] & ~chosen.all(-1)
    return replace(problem, **{name: whole.masked_fill(chosen, value)})


def answers(problem, backend):
    """Everything that is asked of a model, with a generator of its own."""
    inputs = {**inputs_of(problem), "backend": backend}
    leaves = [value.clone().requires_grad_() for value in problem.floats()]
    log_z_B = api.log_partition(**inputs_of(problem.with_floats(leaves)), backend=backend)
    gradients = torch.autograd.grad(log_z_B.sum(), leaves, allow_unused=True)
    tensors = [log_z_B.detach(), *(g for g in gradients if g is not None), *parts(api.posteriors(**inputs))]
    tensors.append(api.entropy(**inputs))
    draws = api.sample(**inputs, samples=3, generator=torch.Generator().manual_seed(1))
    return tensors, [api.viterbi(**inputs)[1], api.kbest(**inputs, count=3), draws]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*PLAIN, *TERMS])
def test_a_large_negative_score_is_minus_inf_to_the_last_bit(backend, name):
    for seed in range(3):
        plain = random_problem(3, 6, 3, 3, seed=seed)
        problem = plain if name in PLAIN else extended_problem(3, 6, 3, 3, terms=("start", "end", "segment"))
        tensors, lists = answers(masked(problem, name, -math.inf, seed), backend)
        for value in (-1e12, -1e20, LOWEST):
            found, paths = answers(masked(problem, name, value, seed), backend)
            assert all(torch.equal(a, b) for a, b in zip(found, tensors, strict=True)), value
            assert paths == lists, value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_limit_is_minus_1e12_as_the_dtype_rounds_it_or_its_lowest_number(dtype):
    lowest = torch.finfo(dtype).min
    limit = torch.tensor(max(-1e12, lowest), dtype=dtype)
    above = torch.tensor(-60000.0 if dtype == torch.float16 else -9e11, dtype=dtype)
    for value, forbids in ((limit, True), (torch.tensor(lowest, dtype=dtype), True), (above, False)):
        score = torch.zeros(1, 3, 2, dtype=dtype)
        score[0, 1, 1] = value
        path = [[(0, 1, 0), (1, 2, 1), (2, 3, 0)]]
        log_p = SegmentDistribution(score, torch.zeros(2, 2), torch.zeros(2, 2)).log_prob(path)
        assert bool(torch.isneginf(log_p)) == forbids, value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 2e12])
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_refused_is_refused_by_every_function_with_its_place(backend, bad, name):
    problem = random_problem(3, 6, 3, 2, seed=1)
    problem.lengths_B[:] = 6
    value = getattr(problem, name).clone()
    value[(1,) * value.dim()] = bad
    inputs = inputs_of(replace(problem, **{name: value}))
    title = name.partition("_")[0]
    for function in (api.log_partition, api.posteriors, api.viterbi, api.kbest, api.sample, api.entropy):
        with pytest.raises(
            BadDataError, match=f"^{title} is .*, and numbers must not be NaN or above 1e"
        ) as caught:
            function(**inputs, backend=backend)
        place = "sequence 1, frame 1" if name == "score_BTC" else f"{title}[1"
        assert str(caught.value.location).startswith(place)


def test_what_no_sequence_reaches_may_be_anything():
    problem = random_problem(2, 6, 3, 2, seed=1)
    problem.lengths_B[:] = torch.tensor([4, 6])
    tensors, lists = answers(masked(problem, "score_BTC", -math.inf), "auto")
    for bad in (math.nan, math.inf, 1e20, -1e20):
        spoilt = masked(problem, "score_BTC", -1e30)
        spoilt.score_BTC[0, 4:] = bad
        found, paths = answers(spoilt, "auto")
        assert all(torch.equal(a, b) for a, b in zip(found, tensors, strict=True)), bad
        assert paths == lists


@pytest.mark.parametrize("mask", [-1e12, -1e15, -1e20, LOWEST, -math.inf])
def test_the_heads_loss_is_minus_log_prob_whatever_masks(mask):
    torch.manual_seed(0)
    head, hidden = SemiCRF(6, 20), torch.randn(1, 60, 6)
    labels = torch.randint(6, (1, 60))
    never = torch.rand(hidden.shape) < 0.3
    kept = hidden.masked_fill(never & (torch.arange(6) != labels[..., None]), mask)
    right = -head.distribution(kept.masked_fill(kept < -1e11, -math.inf)).log_prob(labels)
    assert head.loss(kept, None, labels).item() == pytest.approx(right.item(), rel=1e-13)
    assert -head.distribution(kept).log_prob(labels).item() == right.item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "mask", [-1e4, -1e9, -9e11, -1e12, -1e13, -1e15, -1e30, LOWEST, "bfloat16", "float16"]
)
def test_a_frame_masked_whole_by_a_finite_number_says_nothing(mask, backend):
    """Each as Hugging Face masks: a number added to all labels of a frame cancels, whatever its size."""
    torch.manual_seed(0)
    head, hidden = SemiCRF(4, 5, backend=backend), torch.randn(2, 12, 4)
    labels = torch.randint(4, (2, 12))
    if isinstance(mask, str):
        dtype = getattr(torch, mask)
        hidden, mask = hidden.to(dtype), torch.finfo(dtype).min
    level, closed = hidden.clone(), hidden.clone()
    level[:, 8:], closed[:, 8:] = 0, mask
    right, loss = head.loss(level, None, labels), head.loss(closed.requires_grad_(), None, labels)
    assert loss.item() == pytest.approx(right.item(), rel=1e-12)
    p, q = head.distribution(level), head.distribution(closed)
    assert torch.allclose(q.log_prob(labels), p.log_prob(labels), rtol=1e-12, atol=0)
    loss.backward()
    assert bool(torch.isfinite(closed.grad).all()) and closed.grad[:, 8:].abs().max() > 0
    digits = 1e-12 if abs(mask) < 1e5 or abs(mask) >= 1e12 else 1e-3
    assert torch.allclose(q.marginals, p.marginals, atol=digits)
    assert q.argmax() == p.argmax()
    draws = [x.sample(2, torch.Generator().manual_seed(1)) for x in (p, q)]
    assert draws[0] == draws[1]


def test_of_a_frame_masked_whole_the_differences_between_labels_stay():
    torch.manual_seed(0)
    score = torch.randn(1, 5, 3).double()
    head = SemiCRF(3, 4).double()
    labels = torch.tensor([[0, 1, 1, 2, 0]])
    score[0, 2] = torch.tensor([-math.inf, 0.0, -2.0])
    right = head.loss(score, None, labels)
    score[0, 2] = torch.tensor([-math.inf, -(2.0**42), -(2.0**42) - 2], dtype=torch.float64)
    assert head.loss(score, None, labels).item() == pytest.approx(right.item(), rel=1e-13)
    score[0, 2] = torch.tensor([LOWEST, -(2.0**42), -(2.0**42) - 2], dtype=torch.float64)
    assert head.loss(score, None, labels).item() == pytest.approx(right.item(), rel=1e-13)


def test_a_frame_of_minus_inf_alone_leaves_nothing():
    torch.manual_seed(0)
    head, closed = SemiCRF(6, 20), torch.randn(1, 60, 6)
    labels = torch.randint(6, (1, 60))
    closed[0, 40:] = -math.inf
    assert head.loss(closed, None, labels).item() == math.inf
    assert head.distribution(closed).log_prob(labels).item() == -math.inf
    assert head.decode(closed)[0].segments == [] and head.sample(closed) == [[[]]]
    head.validator = SemiCRF(6, 20, validate=True).validator
    with pytest.raises(RuntimeError, match=r"no segmentation is possible.* at t=40"):
        head.loss(closed, None, labels)
