"""Viterbi, the k best and draws in C++, and Viterbi in CUDA C (emulated on the CPU), against enumeration."""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import resource
import shutil
import signal
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.rooms.semicrf.model import decoding, naive, paths  # noqa: E402
from lab.rooms.semicrf.model.native import choose as native  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.native import decode  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from tests.rooms.semicrf.model.native.emulated import SMALL, Emulated, build  # noqa: E402
from tests.rooms.semicrf.problems import NEEDS_NVIDIA, on_the_gpu, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
NO_FORM = native.missing_reason("cpu")
FORMS = [
    pytest.param("c++", marks=pytest.mark.skipif(NO_FORM is not None, reason="no compiled form here")),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
    ),
]
compiled = pytest.mark.skipif(NO_FORM is not None, reason="no compiled form here")
emulates = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
LOOSE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


MUTANTS = {
    "the barrier before what was sent is read": (
        "__syncthreads(); // two buffers: who is a step ahead writes the other one",
        "",
    ),
    "ties to the longer segment": ("begins >= before;", "begins > before;"),
    "ties to the larger label": ("value > best ? a : label", "value >= best ? a : label"),
    "the longest duration lost": (
        "int d = nearest ? nearest : longest;",
        "int d = nearest ? nearest : longest - 1;",
    ),
    "a slot not emptied": ("d == longest || t == 0 ? -infinity() : ring[at]", "ring[at]"),
    "the frame forgotten": ("(shorter ? begins : before) + frame", "(shorter ? begins + frame : before)"),
    "the end score dropped": ("t == length ? last_scores[a]", "t == length ? 0"),
    "ends not cleared": ("ends[own + f] = 0;", ";"),
}
"""Faults in the kernel that the tests must see."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The emulated kernels by type of scores, at small sizes."""
    cache = {}

    def library(dtype):
        if dtype not in cache:
            cache[dtype] = build(tmp_path_factory.mktemp("emulated"), dtype)
        return cache[dtype]

    return library


def make_small(patch):
    patch.setattr(native_cuda, "SIZES", SMALL)
    patch.setattr(native_cuda, "supports", lambda problem: None)


def emulate(patch, library, order=0):
    """The kernels run in the emulation from now on."""
    patch.setattr(
        native_cuda,
        "machine_for",
        lambda problem, *more: Emulated(library(problem.score_BTC.dtype), order),
    )


@pytest.fixture(params=FORMS)
def viterbi(request, monkeypatch, libraries):
    """A form's best segmentation of each sequence, (score, path)."""
    if request.param == "c++":
        return lambda problem: [found[0] if found else (-math.inf, []) for found in best(problem, 1)]
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, order=1)
    return by_kernels


def by_kernels(problem):
    score_B, ends_BT = native_cuda.best(problem)
    return list(zip(score_B.tolist(), map(decoding.segments_of, ends_BT), strict=True))


def best(problem, count):
    return decoding.best(problem, count, "native")


def draws_of(problem, count, seed):
    ends_BNT, lost_B = decode.draws(problem, count, seed)
    return [[decoding.segments_of(ends_T) for ends_T in ends_NT] for ends_NT in ends_BNT], lost_B


def whole_numbers(problem):
    """The same with scores rounded: sums are exact in any order, and many segmentations tie."""
    floats = (value.round() for value in problem.floats())
    score, transition, duration, start, end = floats
    return make_problem(score, transition, duration, problem.lengths_B, start, end)


def from_the_end(path):
    return [(label, end - start) for start, end, label in reversed(path)]


def ranked(problem, b, count):
    """The first of all segmentations; ties by label, then duration, from the end."""
    every, scores = naive.enumerate_segmentations(problem, b)
    order = sorted(
        (-score, from_the_end(path), i)
        for i, (score, path) in enumerate(zip(scores.tolist(), every, strict=True))
    )
    return [(-score, every[i]) for score, _, i in order[:count] if -score > -math.inf]


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 22), st.integers(1, 24), st.integers(1, 4))


@LOOSE
@given(SHAPES, st.sampled_from([0.0, 0.3, 0.7]), st.sampled_from([1.0, 600.0]), st.integers(0, 10**6))
def test_viterbi_is_the_definitions_score_and_path(viterbi, shape, masked, scale, seed):
    problem = whole_numbers(random_problem(*shape, masked=masked, scale=scale, seed=seed))
    score_B, expected = naive.viterbi(problem)
    assert viterbi(problem) == list(zip(score_B.tolist(), expected, strict=True))


@pytest.mark.parametrize("longest", [1, 2, 4, 5, 8, 9, 13, 18, 25])
def test_a_long_segment_is_found_wherever_it_begins_and_ends_in_blocks(viterbi, longest):
    """Blocks have 4 frames here. The longest duration pays so well that a path has as many as fit."""
    for frames in (longest, longest + 1, longest + 6, 17):
        problem = whole_numbers(random_problem(2, frames, longest, 3, scale=3.0, seed=frames))
        problem.lengths_B[0] = frames
        problem.duration_KC[-1] += 30 * longest
        score_B, expected = naive.viterbi(problem)
        found = viterbi(problem)
        assert found == list(zip(score_B.tolist(), expected, strict=True))
        if frames >= longest:
            assert longest in [end - start for start, end, _ in found[0][1]]


@LOOSE
@given(SHAPES, st.sampled_from([0.0, 0.5]), st.integers(0, 10**6))
def test_viterbi_of_fractions_and_float32_has_the_definitions_score(viterbi, shape, masked, seed):
    for dtype in (torch.float64, torch.float32):
        problem = random_problem(*shape, masked=masked, dtype=dtype, seed=seed)
        expected, _ = naive.viterbi(problem)
        for b, (score, path) in enumerate(viterbi(problem)):
            assert score == pytest.approx(float(expected[b]), abs=1e-11)
            assert not path or float(naive.path_score(problem, b, path)) == pytest.approx(score, abs=1e-11)


@pytest.mark.parametrize("where", ["score", "transition", "duration", "start", "end"])
@pytest.mark.parametrize("large", [-math.inf, -650.0])
def test_what_is_forbidden_or_costly_anywhere_is_as_the_definition_has_it(viterbi, where, large):
    for seed in range(8):
        problem = whole_numbers(random_problem(2, 14, 9, 3, scale=3.0, seed=seed))
        value = problem.floats()[("score", "transition", "duration", "start", "end").index(where)]
        value[torch.rand(value.shape, generator=torch.Generator().manual_seed(seed)) < 0.4] = large
        score_B, expected = naive.viterbi(problem)
        assert viterbi(problem) == list(zip(score_B.tolist(), expected, strict=True))


@compiled
@LOOSE
@given(
    st.integers(1, 6),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([0.5, 3.0, 300.0]),
    st.sampled_from([1, 2, 7, 40]),
    st.integers(0, 10**6),
)
def test_the_k_best_are_the_first_of_all_ties_in_order(frames, longest, labels, masked, scale, count, seed):
    problem = whole_numbers(random_problem(2, frames, longest, labels, masked=masked, scale=scale, seed=seed))
    assert best(problem, count) == [ranked(problem, b, count) for b in range(2)]


@compiled
@pytest.mark.parametrize("shape", [(2, 40, 33, 4), (1, 300, 3, 2), (3, 12, 1, 3)], ids=str)
def test_the_k_best_of_longer_sequences_are_those_of_the_torch_form(shape):
    problem = whole_numbers(random_problem(*shape, scale=4.0, masked=0.2, seed=5))
    assert best(problem, 25) == paths.best(problem, 25)


@compiled
def test_ties_alone_are_in_order():
    zero = torch.zeros
    problem = make_problem(zero(1, 5, 2), zero(2, 2), zero(3, 2))
    assert best(problem, 60)[0] == ranked(problem, 0, 60)


@compiled
@pytest.mark.parametrize("masked", [0.0, 0.3])
def test_draws_come_as_often_as_their_probability_says(masked):
    problem = random_problem(1, 4, 3, 2, masked=masked, seed=2)
    every, scores = naive.enumerate_segmentations(problem, 0)
    mass = (scores - torch.logsumexp(scores, 0)).exp().tolist()
    count = 4000
    drawn, lost_B = draws_of(problem, count, 7)
    drawn = [tuple(path) for path in drawn[0]]
    assert not bool(lost_B.any()) and len(drawn) == count
    for path, p in zip(every, mass, strict=True):
        assert abs(drawn.count(tuple(path)) / count - p) <= 5 * math.sqrt(p * (1 - p) / count) + 5 / count
    assert {*drawn} <= {tuple(path) for path, p in zip(every, mass, strict=True) if p > 0}


@compiled
def test_draws_under_soft_penalties_are_right_or_known_to_be_lost():
    kept = 0
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        problem = random_problem(1, 1 + seed % 5, 1 + seed % 4, 2, seed=seed)
        for value in problem.floats():
            penalty = 40 + 660 * torch.rand(value.shape, generator=g, dtype=torch.float64)
            value.sub_(penalty * (torch.rand(value.shape, generator=g) < seed / 12))
        drawn, lost_B = draws_of(problem, 500, seed)
        if bool(lost_B.any()):
            continue
        kept += 1
        every, scores = naive.enumerate_segmentations(problem, 0)
        drawn = [tuple(path) for path in drawn[0]]
        for path, p in zip(every, torch.softmax(scores, 0).tolist(), strict=True):
            assert abs(drawn.count(tuple(path)) / 500 - p) <= 5 * math.sqrt(p * (1 - p) / 500) + 5 * min(
                p, 1 / 500
            )
    assert kept >= 4


@compiled
def test_draws_of_long_segments_cover_frames_as_often_as_the_posteriors_say():
    problem = random_problem(1, 60, 48, 3, seed=6, scale=0.3)
    problem.duration_KC.add_((torch.arange(48)[:, None] / 12) ** 2)
    count = 2000
    drawn, lost_B = draws_of(problem, count, 1)
    assert not bool(lost_B.any())
    seen_TC = torch.zeros(60, 3, dtype=torch.float64)
    seen_K = torch.zeros(48, dtype=torch.float64)
    for path in drawn[0]:
        assert [0, *(end for _, end, _ in path)] == [*(start for start, _, _ in path), 60]
        for start, end, label in path:
            seen_TC[start:end, label] += 1 / count
            seen_K[end - start - 1] += 1 / count
    right = naive.posteriors(problem)
    share_TC = right.label_BTC[0]
    sigma_TC = (share_TC * (1 - share_TC) / count).sqrt().clamp(min=1e-3)
    assert bool(((seen_TC - share_TC).abs() <= 5 * sigma_TC).all())
    expected_K = right.duration_BKC[0].sum(-1)
    assert bool(((seen_K - expected_K).abs() <= 8 * (expected_K / count).sqrt() + 8 / count).all())


@compiled
def test_other_seeds_samples_and_sequences_have_other_draws():
    problem = random_problem(1, 30, 5, 4, seed=1, scale=0.2).rows([0, 0])
    first, second = (draws_of(problem, 3, seed)[0] for seed in (0, 2**40))
    assert first == draws_of(problem, 3, 0)[0]
    assert len({str(path) for drawn in (*first, *second) for path in drawn}) == 12
    assert [drawn[:2] for drawn in first] == draws_of(problem, 2, 0)[0]  # more draws begin with the same


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_sequence_decodes_alike_alone_in_any_batch_and_in_any_padding(viterbi, dtype):
    problem = random_problem(4, 21, 10, 3, dtype=dtype, masked=0.2, seed=8)
    outside = torch.arange(21) >= problem.lengths_B[:, None]
    problem = replace(problem, score_BTC=problem.score_BTC.masked_fill(outside[..., None], math.nan))
    together = viterbi(problem)
    order = torch.tensor([2, 0, 3, 1])
    assert viterbi(problem.rows(order)) == [together[i] for i in order.tolist()]
    for b in range(4):
        row = problem.rows(torch.tensor([b]))
        assert viterbi(replace(row, score_BTC=row.score_BTC[:, : int(row.lengths_B)])) == [together[b]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_kernels_read_views_with_the_sign_turned_as_torch_does(monkeypatch, dtype):
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    problem = random_problem(2, 7, 4, 3, seed=3)
    problem = replace(problem, score_BTC=problem.score_BTC.to(dtype))
    turned = problem.with_floats([torch._neg_view(-value) for value in problem.floats()])
    read, right = native_cuda.as_read(turned), native_cuda.as_read(problem)
    for one, other in zip(read.floats(), right.floats(), strict=True):
        assert not one.is_neg() and torch.equal(one, other) and one.dtype == other.dtype


@emulates
def test_the_kernels_do_not_depend_on_the_order_of_threads(monkeypatch, libraries):
    make_small(monkeypatch)
    problem = random_problem(2, 30, 19, 3, seed=5, masked=0.2)
    results = []
    for order in (0, 1, 2):
        emulate(monkeypatch, libraries, order)
        results.append(by_kernels(problem))
    assert results[0] == results[1] == results[2]


@emulates
@pytest.mark.parametrize("labels, dtype", [(24, torch.float32), (100, torch.float64)], ids=str)
def test_at_the_sizes_of_a_gpu_the_kernels_decode_as_torch_does(monkeypatch, tmp_path, labels, dtype):
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    sizes = native_cuda.SIZES
    library = build(tmp_path, dtype, sizes.padded(labels), sizes=sizes)
    machine = Emulated(library, order=1)
    monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *more: machine)
    problem = whole_numbers(random_problem(2, 75, 60, labels, dtype=dtype, seed=6, scale=4.0))
    problem.lengths_B[0] = 75
    problem.duration_KC[:47] += 40 * torch.arange(47, dtype=dtype)[:, None]
    score_B, expected = decoding.viterbi(problem, "torch")
    assert by_kernels(problem) == list(zip(score_B.tolist(), expected, strict=True))
    assert max(end - start for start, end, _ in expected[0]) > 32


@pytest.mark.gpu
@NEEDS_NVIDIA
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(3, 300, 40, 24), (2, 400, 350, 39), (2, 90, 20, 128), (1, 1, 1, 1), (2, 33, 1, 5), (2, 30, 90, 3)],
    ids=str,
)
def test_on_a_gpu_paths_are_those_of_torch_and_the_rest_goes_to_the_host(shape, dtype):
    problem = whole_numbers(random_problem(*shape, dtype=dtype, scale=3.0, masked=0.1, seed=3))
    score_B, expected = decoding.viterbi(problem, "torch")
    right = list(zip(score_B.tolist(), expected, strict=True))
    there = on_the_gpu(problem)
    assert by_kernels(there) == right
    found_B, found = decoding.viterbi(there, "native")
    assert found_B.is_cuda and list(zip(found_B.tolist(), found, strict=True)) == right
    assert best(there, 6) == best(problem, 6)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert decoding.sample(there, 3, generators[0], "native") == decoding.sample(
        problem, 3, generators[1], "native"
    )


def level(score=0.0):
    """All segmentations tie, but for rounding and segments of one frame. In float64, as the mutants are."""
    sizes = ((1, 23, 2), (2, 2), (7, 2))
    problem = make_problem(*(torch.zeros(size, dtype=torch.float64) for size in sizes))
    problem.duration_KC[0] -= 1
    problem.score_BTC.add_(score)
    return problem


def whole_of(problem, unlike):
    """All that the emulated kernels make of the problems, or the failed assertion."""
    try:
        ties = make_problem(
            *(torch.zeros(size, dtype=torch.float64) for size in ((1, 23, 2), (2, 2), (7, 2)))
        )
        return [by_kernels(one) for one in (problem, unlike, level(), level(0.1), ties)]
    except AssertionError as error:
        return error


@pytest.fixture(scope="module")
def unmutated(libraries):
    """Problems on which every line counts, and what the kernels make of them as they are."""
    problem = whole_numbers(random_problem(2, 75, 27, 4, masked=0.2, scale=1.5, seed=5, tilt=0.2))
    problem.end_C.add_(torch.arange(4) * 9)
    problem.score_BTC[0, 30, 1] = -math.inf
    problem.duration_KC[-1] += 180
    unlike = random_problem(2, 70, 45, 3, seed=6, scale=0.5)
    unlike.duration_KC.add_((torch.arange(45)[:, None] / 9) ** 2)
    unlike.score_BTC.mul_(8)
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        emulate(patch, libraries)
        return problem, unlike, whole_of(problem, unlike)


@emulates
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_kernels_is_killed(unmutated, libraries, monkeypatch, tmp_path, name):
    problem, unlike, expected = unmutated
    make_small(monkeypatch)
    machine = Emulated(build(tmp_path, torch.float64, mutant=MUTANTS[name]))
    emulate(monkeypatch, libraries)
    monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *more: machine)

    def as_unmutated():
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
        torch.use_deterministic_algorithms(True)  # new memory holds NaN, not what the unmutated kernels left
        for machine.order in (0, 1):
            if whole_of(problem, unlike) != expected:
                sys.exit(1)

    # A fault may lead a walk outside of its arrays, or round and round.
    child = multiprocessing.get_context("fork").Process(target=as_unmutated)
    child.start()
    child.join(600)
    assert child.exitcode in (1, -signal.SIGSEGV, -signal.SIGXCPU, -signal.SIGKILL)
