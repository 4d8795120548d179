"""A start or an end that all labels pay alike changes no choice, however large it is, though float64 has no
digits left for a score of 1 beside 1e30.
"""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from lab.rooms.semicrf import OnlineDecoder, SegmentDistribution  # noqa: E402
from lab.rooms.semicrf.model import api  # noqa: E402

pytestmark = pytest.mark.torch
EDGES = [(0.0, -1e30), (-1e30, 0.0), (1e30, 0.0), (-1e30, 1e30), (-3e20, -1e12)]
BACKENDS = ["auto", "torch"]


@pytest.fixture(autouse=True)
def no_digit_is_lost():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def model(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"score_BTC": (2, 8, 3), "transition_CC": (3, 3), "duration_KC": (4, 3)}
    found = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return {**found, "lengths_B": torch.tensor([8, 5])}


def distribution(given, **more):
    named = {("transition" if name == "transition_CC" else name): value for name, value in given.items()}
    return SegmentDistribution(**named, **more)


def edges(start, end, dtype=torch.float64, own=0.0):
    """Of three labels; `own` is what they differ by beside the large part."""
    differ = own * torch.arange(3, dtype=dtype)
    return {"start_C": start + differ, "end_C": end + differ}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start, end", EDGES)
def test_what_is_likely_stays_as_likely(backend, start, end, dtype):
    given = model(dtype)
    plain, far = (
        distribution(given, **more, backend=backend)
        for more in (edges(0, 0, dtype), edges(start, end, dtype))
    )
    same = {"atol": 1e-5 if dtype is torch.float32 else 1e-12, "rtol": 0}
    torch.testing.assert_close(far.marginals, plain.marginals, **same)
    torch.testing.assert_close(far.posteriors.transition, plain.posteriors.transition, **same)
    torch.testing.assert_close(far.entropy(), plain.entropy(), **same)
    best = plain.argmax()
    assert far.argmax() == best
    torch.testing.assert_close(far.log_prob(best), plain.log_prob(best), **same)
    for one, other in zip(far.topk(5), plain.topk(5), strict=True):
        assert [path for _, path in one] == [path for _, path in other]
        assert [score for score, _ in one] == pytest.approx([score for score, _ in other], abs=same["atol"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start, end", EDGES)
def test_two_models_differ_by_what_else_they_hold(backend, start, end):
    def of(seed, more):
        given = {**model(seed=seed), "score_BTC": model()["score_BTC"]}
        return distribution(given, **more, backend=backend)

    p, q, far_p, far_q = (of(seed, edges(*more)) for more in ((0, 0), (start, end)) for seed in (0, 1))
    for measure in ("kl", "cross_entropy"):
        expected_B = getattr(p, measure)(q)
        for one, other in ((far_p, far_q), (far_p, q), (p, far_q)):
            torch.testing.assert_close(getattr(one, measure)(other), expected_B, atol=1e-11, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start, end", EDGES)
def test_gradients_are_those_without_them(backend, start, end):
    given, found = model(), []
    for more in (edges(0, 0), edges(start, end)):
        inputs = [value.clone().requires_grad_() for value in (*list(given.values())[:3], *more.values())]
        log_z_B = api.log_partition(
            *inputs[:3], given["lengths_B"], start_C=inputs[3], end_C=inputs[4], backend=backend
        )
        found.append((log_z_B.detach(), torch.autograd.grad(log_z_B.sum(), inputs)))
    (plain_B, wanted), (far_B, gradients) = found
    torch.testing.assert_close(far_B, plain_B + (start + end), rtol=1e-15, atol=0)
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start, end", EDGES)
def test_draws_are_as_frequent(backend, start, end):
    given = model()
    drawn = api.sample(**given, **edges(start, end), samples=3000, backend=backend)
    assert_as_frequent(drawn, api.marginals(**given))


def assert_as_frequent(drawn, right_BTC):
    for paths, right_TC in zip(drawn, right_BTC, strict=True):
        seen_TC = torch.zeros_like(right_TC)
        for path in paths:
            for begin, stop, label in path:
                seen_TC[begin:stop, label] += 1
        sigma_TC = (right_TC.clamp(0, 1) * (1 - right_TC.clamp(0, 1)) * len(paths)).sqrt()
        assert ((seen_TC - len(paths) * right_TC).abs() <= 5 * sigma_TC + 1e-3).all()


@pytest.mark.parametrize("start, end", EDGES)
def test_a_stream_decodes_the_same(start, end):
    given = model()
    plain = api.viterbi(**given)[1]
    for b, length in enumerate(given["lengths_B"].tolist()):
        decoder = OnlineDecoder(given["transition_CC"], given["duration_KC"], **edges(start, end))
        found = [*decoder.push(given["score_BTC"][b, :length]), *decoder.finish()]
        assert [(one.start, one.end, one.label) for one in found] == plain[b]
        whole_B, _ = api.viterbi(**given, **edges(start, end))
        assert decoder.score == pytest.approx(float(whole_B[b]), rel=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_labels_differ_by_beside_it_counts(backend):
    """At 2**40 a number of float64 still holds eighths."""
    given, top = model(), 2.0**40
    near, far = edges(0, 0, own=0.125), edges(-top, top, own=0.125)
    expected = api.marginals(**given, **near, backend=backend)
    torch.testing.assert_close(api.marginals(**given, **far, backend=backend), expected, atol=1e-12, rtol=0)
    assert api.kbest(**given, **far, count=1)[0][0][1] == api.kbest(**given, **near, count=1)[0][0][1]


@pytest.mark.parametrize("size", [1.0, 1e6, 1e8, 1e12, 1e30])
@pytest.mark.parametrize("name", ["score_BTC", "start_C", "end_C", "duration_KC"])
def test_an_expected_value_is_of_the_numbers_that_were_given(name, size):
    """Not of those less what all segmentations pay alike."""
    given = model()
    p, plain = distribution(given), distribution(given)
    like = {**given, **edges(0, 0)}[name]
    f = (1 + torch.rand(like.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)) * size
    counts = plain.posteriors
    own = {
        "score_BTC": counts.label_BTC,
        "start_C": counts.starts_BTC[:, 0],
        "end_C": counts.end_BC(given["lengths_B"]),
        "duration_KC": counts.duration_BKC,
    }[name]
    expected_B = (own * f).flatten(1).sum(1)
    torch.testing.assert_close(p.expected({name: f}), expected_B, rtol=1e-12, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("start, end", EDGES)
def test_a_gpu_finds_what_a_cpu_finds_without_them(start, end, dtype):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    given = model(dtype)
    plain = distribution(given)
    there = {name: value.cuda() for name, value in {**given, **edges(start, end, dtype)}.items()}
    far = distribution(there)
    same = {"atol": 1e-5 if dtype is torch.float32 else 1e-11, "rtol": 0}
    torch.testing.assert_close(far.marginals.double().cpu(), plain.marginals.double(), **same)
    torch.testing.assert_close(far.entropy().cpu(), plain.entropy(), **same)
    best = plain.argmax()
    assert far.argmax() == best
    torch.testing.assert_close(far.log_prob(best).cpu(), plain.log_prob(best), **same)
    assert [[path for _, path in one] for one in far.topk(5)] == [
        [path for _, path in one] for one in plain.topk(5)
    ]
    assert_as_frequent(far.sample(3000), plain.marginals.double())
