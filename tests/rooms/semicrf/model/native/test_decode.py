"""Viterbi in C++, and in CUDA C (emulated on the CPU), against the definition."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.rooms.semicrf.model import (  # noqa: E402
    api,
    naive,
    native,
)
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
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
        return lambda problem: paths_of(*native_cpu.best(problem))
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, order=1)
    return by_kernels


def by_kernels(problem):
    return paths_of(*native_cuda.best(problem))


def paths_of(score_B, ends_BT):
    return list(zip(score_B.tolist(), map(api.segments_of, ends_BT), strict=True))


def torch_viterbi(problem):
    return api.viterbi(**problem.arguments(), backend="torch")


def whole_numbers(problem):
    """The same with scores rounded: sums are exact in any order, and many segmentations tie."""
    floats = (value.round() for value in problem.floats())
    score, transition, duration, start, end = floats
    return make_problem(score, transition, duration, problem.lengths_B, start, end)


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
    score_B, expected = torch_viterbi(problem)
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
def test_on_a_gpu_paths_are_those_of_torch(shape, dtype):
    problem = whole_numbers(random_problem(*shape, dtype=dtype, scale=3.0, masked=0.1, seed=3))
    score_B, expected = torch_viterbi(problem)
    right = list(zip(score_B.tolist(), expected, strict=True))
    there = on_the_gpu(problem)
    assert by_kernels(there) == right
    found_B, found = api.viterbi(**there.arguments(), backend="native")
    assert found_B.is_cuda and list(zip(found_B.tolist(), found, strict=True)) == right
