"""Viterbi, the k best and draws in C++ and in CUDA C (emulated on the CPU) against enumeration."""

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

import numpy as np  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.errors import MissingError  # noqa: E402
from lab.rooms.semicrf.model import api, naive, paths  # noqa: E402
from lab.rooms.semicrf.model.native import choose as native  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.native import cuda_driver, decode, decode_cuda  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from lab.rooms.semicrf.model.terms import has_far_edges  # noqa: E402
from tests.rooms.semicrf.model.native.emulated import SMALL, Emulated, build  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
NO_FORM = native.missing_reason("cpu")
FORMS = [
    pytest.param("c++", marks=pytest.mark.skipif(NO_FORM is not None, reason="no compiled form here")),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
    ),
]
both_forms = pytest.mark.skipif(NO_FORM is not None or shutil.which("g++") is None, reason="one form here")
SIZES = decode_cuda.DecodeSizes(
    block=4, threads=16, narrowest=4, tile_bytes=128, apart=4, draws=2, choice_bytes=8000
)
"""Small: four slices of four labels, blocks of 4 frames, tiles of 4 rows, choices of few draws at a time."""
LOOSE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


MUTANTS = {
    "the barrier before the labels' steps": (
        "q + 1, coming);\n        __syncthreads();\n",
        "q + 1, coming);\n",
    ),
    "the barrier after a block": (
        "__syncthreads(); // the next block reads what was found, and the shared rows are free again",
        "",
    ),
    "the barrier before what was sent is read": ("        LABELS_SYNC();\n", ""),
    "the barrier between a draw's tiles": (
        "__syncthreads(); // the next tile is there, the one before it free",
        "",
    ),
    "random numbers read before they are there": ("__syncthreads(); // the random numbers are there", ""),
    "durations read before they are there": ("__syncthreads(); // durations are there for all labels", ""),
    "ties to what began before the block": ("value >= coming[j].value", "value > coming[j].value"),
    "ties to more than one frame": ("one >= coming[0].value", "one > coming[0].value"),
    "ties to the last seen": ("value > best.value;", "value >= best.value;"),
    "the longest duration lost": ("k < longest)", "k < longest - 1)"),
    "a part of the blocks before lost": (
        "UNROLLED(part, 0, SLICES - 1) look_at",
        "UNROLLED(part, 0, SLICES - 2) look_at",
    ),
    "a block between parts lost": ("nearest + each - 1, reach", "nearest + each - 2, reach"),
    "the farthest block lost": ("(at.longest - 2) / N + 1, each", "(at.longest - 2) / N, each"),
    "the frames of a block between forgotten": ("between += product[p * CP + at.c];", ";"),
    "the frames of blocks between parts forgotten": (
        "between += product[(i64)(q - passed) * CP + at.c];",
        ";",
    ),
    "the frames of the latest block forgotten": ("between += latest[i * CP + at.c];", ";"),
    "the rest of a block's frames forgotten": ("before[i] + rest;", "before[i];"),
    "the last frame taken for another": ("pending[(length - 1) % N", "pending[length % N"),
    "gamma of the boundary before": (
        "gamma[row + (i64)(r + 1) * labels + c]",
        "gamma[row + (i64)r * labels + c]",
    ),
    "the block before lost": ("if (q > 0) {", "if (q % 2) {"),
    "the second block before lost": ("if (q > 1) {", "if (q % 2) {"),
    "a label before lost": (
        "for (int a = 0; count > 0 && a < labels; ++a) {",
        "for (int a = 1; count > 0 && a < labels; ++a) {",
    ),
    "a boundary's labels before lost": (
        "steps[row + (i64)r * labels + c] = step[r];",
        "steps[row + (i64)r * labels + c] = r + 1 < count ? step[r] : CP;",
    ),
    "sums of other threads forgotten": ("sums[turn + threadIdx.x - 1]", "0"),
    "the end score dropped": ("% N * CP + c] + end[c]", "% N * CP + c]"),
    "a deviation taken twice": ("parent.worth[begin] = -infinity();", ";"),
    "what lies behind forgotten": ("? behind + value :", "? value :"),
    "steps joined before they are there": ("__syncthreads(); // all steps are there", ""),
    "the label before joined steps kept": ("step[r] += ahead[to] - label;", "step[r] += ahead[to];"),
    "joined steps counted as one": ("passed[r] += passes[to];", ";"),
    "the steps of a run forgotten": ("segment += passed;", "segment += 1;"),
    "marks not cleared": ("frames + f] = 0;", "frames + f] += 0;"),
    "marks of further paths not cleared": ("i < paths * REACH;", "i < REACH;"),
    "paths that meet too early": ("mark_labels[row] == c)", "true)"),
    "frames read before they are there": ("APART_SYNC(); // the frames are there", ""),
    "frames gone before they are read": ("APART_SYNC(); // all have read the frames", ""),
    "lanes that know nothing of others": ("APART_SYNC(); // what all have is there", ""),
    "frames of the lanes before forgotten": ("content = sum;", ";"),
    "the first of equal choices lost": ("choices[other] < best.after", "choices[other] > best.after"),
    "a node's choices looked at again": ("node == begin ? own_there : infinity()", "infinity()"),
    "the end of the segment left forgotten": ("path.boundary[begin] - begin % 2,", "path.boundary[begin],"),
    "paths told apart before they part": (
        "common_nodes(q, a.path, b.path)",
        "common_nodes(q, a.path, b.path) + 2",
    ),
    "the nodes after a meeting moved": ("own - met - 2,", "own - met,"),
    "the label where paths meet not looked at": (
        "own : own - 1; // the nodes",
        "own : own - 2; // the nodes",
    ),
    "the barrier before the worth of a path": ("__syncthreads(); // the values are there", ""),
    "content not multiplied": ("content *= frame.weight;", "content = frame.weight;"),
    "content not multiplied by the check": ("content *= frame->weight;", "content = frame->weight;"),
    "the last durations lost": ("for (; tried < reach && ", "for (; tried < reach - 1 && "),
    "draws with the durations of others": ("DRAWS + s] : 0;", "DRAWS] : 0;"),
    "draws with the random numbers of others": (
        "targets[s] = uniforms[2 * s + 1]",
        "targets[s] = uniforms[1]",
    ),
    "groups of draws alike": ("(u64)(first + own + s)", "(u64)(own + s)"),
    "choices of a thread block alike": (
        "follows += ((i64)b * group + own) * draw;",
        "follows += (i64)b * group * draw;",
    ),
    "the label after a draw's segment forgotten": ("label = found % CP;", "label = 0;"),
    "the duration of a segment into another tile forgotten": (
        "(last / USED) - found / CP",
        "(last / USED) - 1",
    ),
    "a tile's states moved": ("(row - k) * USED + to[s] % CP", "(row - k) * USED"),
    "states of the tile before taken for this one's": ("k <= row && k <= f;", "k <= f;"),
    "states before the first frame": ("k <= row && k <= f;", "k <= row;"),
    "the last tile not put down": ("i <= last; ++i) {", "i < last; ++i) {"),
    "ends of the tile before left there": ("found[other * (TILE + 1) + r] = 0;", ";"),
    "exponents of draws dropped": ("* power_of_two_64(power[r] - power[r + 1])", ""),
    "scores of other programs forgotten": (
        "content += contents[(i64)b * gridDim.x + i]",
        "content = contents[(i64)b * gridDim.x]",
    ),
    "a first label by its message alone": ("across[a] = ends[a];", ";"),
}
"""Faults in decode.cu that the tests must see."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The emulated kernels by source and type of scores, at small sizes."""
    found = {}

    def library(form, dtype, real=None):
        key = form, dtype, real
        if key not in found:
            sizes, folder = SIZES if form is decode_cuda else SMALL, tmp_path_factory.mktemp("emulated")
            found[key] = build(folder, dtype, sizes=sizes, form=form, more=(real,) if real else ())
        return found[key]

    return library


def make_small(patch):
    patch.setattr(native_cuda, "SIZES", SMALL)
    patch.setattr(decode_cuda, "SIZES", SIZES)
    patch.setattr(native_cuda, "supports", lambda problem: None)


def emulate(patch, library, order=0):
    """The kernels of both sources run in the emulation from now on."""
    for form in (native_cuda, decode_cuda):
        patch.setattr(
            form,
            "machine_for",
            lambda problem, *more, form=form: Emulated(
                library(form, problem.score_BTC.dtype, *more[2:]), order
            ),
        )


@pytest.fixture(params=FORMS)
def form(request, monkeypatch, libraries):
    if request.param == "c++":
        return decode
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, order=1)
    return decode_cuda


def best(form, problem, count=1):
    """[(score, path), ...] for each sequence."""
    score_BN, decoded = form.best(problem, count)
    return [
        [(score, path) for score, path in zip(*pair, strict=True) if score > -math.inf]
        for pair in zip(score_BN.tolist(), decoded.paths(), strict=True)
    ]


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
def test_viterbi_is_the_definitions_score_and_path(form, shape, masked, scale, seed):
    problem = whole_numbers(random_problem(*shape, masked=masked, scale=scale, seed=seed))
    score_B, expected = naive.viterbi(problem)
    found = best(form, problem)
    assert [one[0][0] if one else -math.inf for one in found] == score_B.tolist()
    assert [one[0][1] if one else [] for one in found] == expected


@pytest.mark.parametrize("longest", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 18, 25])
def test_a_long_segment_is_found_wherever_it_begins_and_ends_in_blocks(form, longest):
    """Blocks have 4 frames here. The longest duration pays so well that a path has as many as fit."""
    for frames in (longest, longest + 1, longest + 6, 17):
        problem = whole_numbers(random_problem(2, frames, longest, 3, scale=3.0, seed=frames))
        problem.lengths_B[0] = frames
        problem.duration_KC[-1] += 30 * longest
        score_B, expected = naive.viterbi(problem)
        found = best(form, problem)
        assert [(one[0][0], one[0][1]) for one in found] == list(zip(score_B.tolist(), expected, strict=True))
        if frames >= longest:
            assert longest in [end - start for start, end, _ in found[0][0][1]]


@LOOSE
@given(SHAPES, st.sampled_from([0.0, 0.5]), st.integers(0, 10**6))
def test_viterbi_of_fractions_and_float32_has_the_definitions_score(form, shape, masked, seed):
    for dtype in (torch.float64, torch.float32):
        problem = random_problem(*shape, masked=masked, dtype=dtype, seed=seed)
        expected, _ = naive.viterbi(problem)
        for b, one in enumerate(best(form, problem)):
            if not one:
                assert float(expected[b]) == -math.inf
                continue
            score, path = one[0]
            assert score == pytest.approx(float(expected[b]), abs=1e-11)
            assert float(naive.path_score(problem, b, path)) == pytest.approx(score, abs=1e-11)


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
def test_the_k_best_are_the_first_of_all_ties_in_order(
    form, frames, longest, labels, masked, scale, count, seed
):
    problem = whole_numbers(random_problem(2, frames, longest, labels, masked=masked, scale=scale, seed=seed))
    found = best(form, problem, count)
    assert found == [ranked(problem, b, count) for b in range(2)]


def test_more_paths_than_exist_are_all_that_exist(form):
    problem = random_problem(1, 4, 2, 2, seed=3)
    found = best(form, problem, 100)[0]
    assert (
        len(found)
        == len(naive.enumerate_segmentations(problem, 0)[0])
        == len({tuple(path) for _, path in found})
    )


@pytest.mark.parametrize("shape", [(2, 40, 33, 4), (1, 300, 3, 2), (3, 12, 1, 3)], ids=str)
def test_the_k_best_of_longer_sequences_are_those_of_the_torch_form(form, shape):
    problem = whole_numbers(random_problem(*shape, scale=4.0, masked=0.2, seed=5))
    assert best(form, problem, 25) == paths.best(problem, 25)


def test_ties_alone_are_in_order(form):
    zero = torch.zeros
    problem = make_problem(zero(1, 5, 2), zero(2, 2), zero(3, 2))
    assert best(form, problem, 60)[0] == ranked(problem, 0, 60)


@pytest.mark.parametrize("where", ["score", "transition", "duration", "start", "end"])
@pytest.mark.parametrize("large", [-math.inf, -1e30, -650.0])
def test_what_is_forbidden_or_costly_anywhere_is_as_the_definition_has_it(form, where, large):
    for seed in range(8):
        problem = whole_numbers(random_problem(2, 14, 9, 3, scale=3.0, seed=seed))
        at = ("score", "transition", "duration", "start", "end").index(where)
        value = problem.floats()[at]
        value[torch.rand(value.shape, generator=torch.Generator().manual_seed(seed)) < 0.4] = large
        expected_B, expected = naive.viterbi(problem)
        found = best(form, problem)
        scores = [one[0][0] if one else -math.inf for one in found]
        assert scores == pytest.approx(expected_B.tolist(), rel=1e-12)
        if large != -1e30:  # a sum that must hold it has no digits left for the rest: test_decoding.py
            assert [one[0][1] if one else [] for one in found] == expected


@both_forms
@LOOSE
@given(
    SHAPES,
    st.sampled_from([0.0, 0.3, 0.7]),
    st.sampled_from([0.2, 3.0]),
    st.integers(1, 7),
    st.integers(0, 10**6),
)
def test_draws_are_those_that_one_walk_after_the_other_makes(
    monkeypatch, libraries, shape, masked, scale, count, seed
):
    """That is how C++ draws, by the same random numbers. Lengths from 1 on, segments longer than tiles."""
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    problem = random_problem(*shape, masked=masked, scale=scale, seed=seed)
    problem.duration_KC.add_(torch.arange(shape[2])[:, None] * (seed % 3))
    (found, lost_B), (expected, known_B) = (one.draws(problem, count, seed) for one in (decode_cuda, decode))
    assert not bool((lost_B | known_B).any())
    assert found.paths() == expected.paths()


@both_forms
@pytest.mark.parametrize(
    "kind", ["one duration", "a cycle", "a label for ever", "no way to the end", "long beside short"]
)
def test_models_that_never_forget_and_lengths_apart_draw_alike(monkeypatch, libraries, kind):
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    problem = random_problem(5, 42, 30, 3, seed=7, scale=0.5)
    problem.lengths_B[:] = torch.tensor([42, 1, 6, 5, 36])
    if kind == "one duration":
        problem.duration_KC[torch.arange(30) != 2] = -math.inf
    elif kind == "a cycle":
        problem.transition.masked_fill_(torch.eye(3).roll(1, 1) == 0, -math.inf)
    elif kind == "a label for ever":
        problem.transition.masked_fill_(torch.eye(3) == 0, -50.0)
    elif kind == "no way to the end":
        problem.score_BTC[::2, 3] = -math.inf
    else:
        problem.duration_KC[1:-1] = -math.inf
    found, expected = (one.draws(problem, 9, 11) for one in (decode_cuda, decode))
    assert (
        found[0].paths() == expected[0].paths() and found[1].tolist() == expected[1].tolist() == [False] * 5
    )
    if kind == "no way to the end":
        assert [bool(one[0]) for one in found[0].paths()] == [False, True, False, True, False]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
@pytest.mark.parametrize("doubles", [[], [1, 3], [0]], ids=["none", "parameters", "scores"])
def test_draws_of_float32_are_those_of_the_same_numbers_in_float64(monkeypatch, libraries, doubles):
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    narrow = random_problem(3, 30, 9, 4, dtype=torch.float32, masked=0.1, seed=2, scale=2.0).floats()
    wide = [value.double() for value in narrow]
    lengths_B = torch.tensor([30, 7, 19])
    mixed = [(wide if i in doubles else narrow)[i] for i in range(5)]
    problems = (make_problem(*one[:3], lengths_B, *one[3:]) for one in (mixed, wide))
    (found, lost_B), (expected, known_B) = (decode_cuda.draws(problem, 4, 3) for problem in problems)
    assert found.paths() == expected.paths() and not bool((lost_B | known_B).any())


def test_more_draws_begin_with_the_same(form):
    problem = random_problem(3, 30, 9, 4, seed=2, scale=0.3)
    many = form.draws(problem, 23, 6)[0].paths()
    for count in (1, 2, 5):
        assert [one[:count] for one in many] == form.draws(problem, count, 6)[0].paths()


@pytest.mark.parametrize("masked", [0.0, 0.3])
def test_draws_come_as_often_as_their_probability_says(form, masked):
    problem = random_problem(1, 4, 3, 2, masked=masked, seed=2)
    every, scores = naive.enumerate_segmentations(problem, 0)
    mass = (scores - torch.logsumexp(scores, 0)).exp().tolist()
    count = 4000 if form is decode else 1500
    decoded, lost_B = form.draws(problem, count, 7)
    drawn = [tuple(path) for path in decoded.paths()[0]]
    assert not bool(lost_B.any()) and len(drawn) == count
    for path, p in zip(every, mass, strict=True):
        assert abs(drawn.count(tuple(path)) / count - p) <= 5 * math.sqrt(p * (1 - p) / count) + 5 / count
    assert {*drawn} <= {tuple(path) for path, p in zip(every, mass, strict=True) if p > 0}


def test_draws_under_soft_penalties_are_right_or_known_to_be_lost(form):
    kept = 0
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        problem = random_problem(1, 1 + seed % 5, 1 + seed % 4, 2, seed=seed)
        for value in problem.floats():
            penalty = 40 + 660 * torch.rand(value.shape, generator=g, dtype=torch.float64)
            value.sub_(penalty * (torch.rand(value.shape, generator=g) < seed / 12))
        decoded, lost_B = form.draws(problem, 500, seed)
        if bool(lost_B.any()):
            continue
        kept += 1
        every, scores = naive.enumerate_segmentations(problem, 0)
        drawn = [tuple(path) for path in decoded.paths()[0]]
        for path, p in zip(every, torch.softmax(scores, 0).tolist(), strict=True):
            assert abs(drawn.count(tuple(path)) / 500 - p) <= 5 * math.sqrt(p * (1 - p) / 500) + 5 * min(
                p, 1 / 500
            )
    assert kept >= 4


def test_draws_of_long_segments_cover_frames_as_often_as_the_posteriors_say(form):
    problem = random_problem(1, 60, 48, 3, seed=6, scale=0.3)
    problem.duration_KC.add_((torch.arange(48)[:, None] / 12) ** 2)
    count = 2000 if form is decode else 200
    decoded, lost_B = form.draws(problem, count, 1)
    assert not bool(lost_B.any())
    seen_TC = torch.zeros(60, 3, dtype=torch.float64)
    seen_K = torch.zeros(48, dtype=torch.float64)
    for path in decoded.paths()[0]:
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


def test_other_seeds_samples_and_sequences_have_other_draws(form):
    problem = random_problem(2, 30, 5, 4, seed=1, scale=0.2)
    problem.lengths_B[:] = 30
    first, second = (form.draws(problem, 3, seed)[0].paths() for seed in (0, 2**40))
    assert first == form.draws(problem, 3, 0)[0].paths()
    assert len({str(path) for drawn in (*first, *second) for path in drawn}) == 12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_sequence_decodes_alike_alone_in_any_batch_and_in_any_padding(form, dtype):
    problem = random_problem(4, 21, 10, 3, dtype=dtype, masked=0.2, seed=8)
    outside = torch.arange(21) >= problem.lengths_B[:, None]
    problem = replace(problem, score_BTC=problem.score_BTC.masked_fill(outside[..., None], math.nan))
    together, drawn = best(form, problem, 4), form.draws(problem, 5, 3)[0].paths()
    order = torch.tensor([2, 0, 3, 1])
    assert best(form, problem.rows(order), 4) == [together[i] for i in order.tolist()]
    assert form.draws(problem.rows(order), 5, 3)[0].paths() == [drawn[i] for i in order.tolist()]
    for b in range(4):
        row = problem.rows(torch.tensor([b]))
        alone = replace(row, score_BTC=row.score_BTC[:, : int(row.lengths_B)])
        assert best(form, alone, 4) == [together[b]]
        assert form.draws(alone, 5, 3)[0].paths() == [drawn[b]]


def test_nothing_feasible_has_no_path_and_no_draw_and_its_neighbour_has(form):
    problem = random_problem(2, 7, 3, 3, seed=4)
    problem.lengths_B[:] = 7
    problem.score_BTC[0, 3] = -math.inf
    found, drawn = best(form, problem, 3), form.draws(problem, 2, 0)
    assert [len(one) for one in found] == [0, 3]
    assert drawn[0].paths()[0] == [[], []] and all(drawn[0].paths()[1]) and not bool(drawn[1].any())


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
@pytest.mark.parametrize("number", [-1e30, 2e9, -2e9, 5e8, -math.inf])
@pytest.mark.parametrize("labels", [3, 2, 1])
@pytest.mark.parametrize("name", ["start_C", "end_C"])
def test_the_kernels_tell_of_starts_and_ends_that_are_all_far(monkeypatch, libraries, name, labels, number):
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    for dtype in (torch.float32, torch.float64):
        problem = random_problem(2, 9, 6, 3, seed=4, scale=0.2)
        problem = problem.with_floats([value.to(dtype) for value in problem.floats()])
        getattr(problem, name)[:labels] = number
        far = has_far_edges(problem)
        assert far == (number == 2e9 or (labels == 3 and number in (-1e30, -2e9)))
        assert decode_cuda.best(problem, 1)[1].ordinary == (not far)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
@pytest.mark.parametrize("number", [math.nan, math.inf, 2e6, -2e6, -math.inf, 7.0])
@pytest.mark.parametrize("where", ["score", "frame", "padding", "transition", "duration", "start", "end"])
def test_the_kernels_see_what_a_look_at_all_numbers_does(monkeypatch, libraries, where, number):
    """On a GPU nobody looks before: the kernels tell of NaN, +inf and frames whose largest score is large."""
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    problem = random_problem(2, 9, 6, 3, seed=4, scale=0.2)
    problem.lengths_B[:] = torch.tensor([9, 7])
    places = {
        "score": (problem.score_BTC, (0, 4, 1)),
        "frame": (problem.score_BTC, (1, 6)),
        "padding": (problem.score_BTC, (1, 7, 2)),
        "transition": (problem.transition, (2, 1)),
        "duration": (problem.duration_KC, (5, 0)),
        "start": (problem.start_C, (2,)),
        "end": (problem.end_C, (0,)),
    }
    value, at = places[where]
    value[at] = number
    bad = math.isnan(number) or number == math.inf
    large = (where == "frame" and number != 7.0) or (where == "score" and number == 2e6)
    assert decode_cuda.best(problem, 1)[1].ordinary == (where == "padding" or not (bad or large))
    if bad:  # draws by torch then, which looks
        assert bool(decode_cuda.draws(problem, 2, 0)[1].any()) == (where != "padding")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_kernels_read_views_with_the_sign_turned_as_torch_does(monkeypatch, dtype):
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    problem = random_problem(2, 7, 4, 3, seed=3)
    problem = replace(problem, score_BTC=problem.score_BTC.to(dtype))
    turned = problem.with_floats([torch._neg_view(-value) for value in problem.floats()])
    for found, expected in (
        (native_cuda.as_read(turned), native_cuda.as_read(problem)),
        (decode_cuda.as_read(turned)[0], decode_cuda.as_read(problem)[0]),
    ):
        for one, other in zip(found.floats(), expected.floats(), strict=True):
            assert not one.is_neg() and torch.equal(one, other) and one.dtype == other.dtype


def test_paths_in_pinned_memory_are_copied_where_much_of_it_is_held(monkeypatch):
    monkeypatch.setattr(decode_cuda, "MOST_HELD_BYTES", 36)

    def drawn(pinned=True):
        ends_BNT = torch.eye(6, dtype=torch.uint8).numpy()[2:].reshape(2, 2, 6)  # behind the flags
        found = decode_cuda.Marked(ends_BNT, pinned=pinned).paths()
        return found, np.shares_memory(found[1].ends_NT, ends_BNT)

    first, held = drawn()
    assert held and first == [[[(0, 3, 0)], [(0, 4, 0)]], [[(0, 5, 0)], [(0, 6, 0)]]]
    assert drawn() == (first, False)
    del first
    assert drawn()[1] and not drawn(pinned=False)[1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
def test_messages_that_do_not_add_up_along_the_first_draw_lose_the_sequence(monkeypatch, libraries):
    """A message too small at the first boundary: only sums over all durations show it."""
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    problem = random_problem(2, 9, 9, 3, seed=4, scale=0.2)
    problem.lengths_B[:] = 9
    damage(monkeypatch, lambda state: state.buffer("source")[0, :3].mul_(1 - 1e-7))
    for seed in range(12):
        assert decode_cuda.draws(problem, 1, seed)[1].tolist() == [True, False]


def damage(monkeypatch, change):
    """From now on draws find what `change` leaves of a state's messages."""
    forward = native_cuda.forward

    def damaged(model, behind, **options):
        return forward(model, behind=lambda state: (change(state), behind(state)), **options)

    monkeypatch.setattr(native_cuda, "forward", damaged)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
def test_messages_are_missed_where_a_draw_comes_by_and_nowhere_else(monkeypatch, libraries):
    """What ends at a boundary is looked at by draws that cut there: any of them, not the first alone."""
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    problem = random_problem(2, 19, 9, 3, seed=4, scale=0.2)
    problem.lengths_B[:] = 19
    problem.duration_KC.add_(1.5 * torch.arange(9)[:, None])
    drawn = decode_cuda.draws(problem, 3, 1)[0].paths()
    cuts = [{end for _, end, _ in path} for path in drawn[0]]
    seen = [set().union(*cuts[:count]) for count in (1, 2, 3)]
    assert len(seen[0]) < len(seen[1]) < len(seen[2]) < 19
    for t in range(1, 19):
        with monkeypatch.context() as patch:
            damage(patch, lambda state, t=t: state.buffer("arrived")[t - 1].mul_(1 - 1e-7))
            for count in (1, 2, 3):
                found, lost_B = decode_cuda.draws(problem, count, 1)
                assert lost_B.tolist() == [t in seen[count - 1], False]
                assert lost_B[0] or found.paths() == [one[:count] for one in drawn]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
@pytest.mark.parametrize("buffer", ["source", "arrived"])
def test_what_rounding_leaves_beyond_all_weights_goes_to_the_last_that_has_one(
    monkeypatch, libraries, tmp_path, buffer
):
    """The largest random number, and messages so little above their weights that it is called rounding."""
    make_small(monkeypatch)
    emulate(monkeypatch, libraries, 1)
    largest = ("(double)(bits >> 11) * 1.1102230246251565e-16;", "1.0 - 1.1102230246251565e-16;")
    library = build(tmp_path, torch.float64, mutant=largest, sizes=SIZES, form=decode_cuda)
    monkeypatch.setattr(decode_cuda, "machine_for", lambda problem: Emulated(library))
    damage(monkeypatch, lambda state: state.buffer(buffer).mul_(1 + 5e-10))
    for seed in range(12):
        problem = random_problem(1, 6, 4, 3, masked=0.4, seed=seed, scale=0.2)
        problem.duration_KC[3 - seed % 2 :, 2] = -math.inf
        every, scores = naive.enumerate_segmentations(problem, 0)
        feasible = [path for path, score in zip(every, scores.tolist(), strict=True) if score > -math.inf]
        drawn, lost_B = decode_cuda.draws(problem, 3, 0)
        assert drawn.paths()[0] == [max(feasible, key=from_the_end, default=[])] * 3 and not bool(
            lost_B.any()
        )


@pytest.mark.parametrize("order", [0, 2])
def test_the_kernels_do_not_depend_on_the_order_of_threads(monkeypatch, libraries, order):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to emulate with")
    make_small(monkeypatch)
    problem = random_problem(2, 30, 19, 3, seed=5, masked=0.2)
    results = []
    for one in (1, order):
        emulate(monkeypatch, libraries, one)
        results.append((best(decode_cuda, problem, 6), decode_cuda.draws(problem, 3, 0)[0].paths()))
    assert results[0] == results[1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
@pytest.mark.parametrize("labels, dtype", [(24, torch.float32), (100, torch.float64)], ids=str)
def test_at_the_sizes_of_a_gpu_the_kernels_decode_as_torch_does(monkeypatch, tmp_path, labels, dtype):
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    sizes = decode_cuda.SIZES
    library = build(tmp_path, dtype, sizes.padded(labels), sizes=sizes, form=decode_cuda)
    machine = Emulated(library, order=1)
    monkeypatch.setattr(decode_cuda, "machine_for", lambda problem: machine)
    problem = whole_numbers(random_problem(2, 75, 60, labels, dtype=dtype, seed=6, scale=4.0))
    problem.lengths_B[0] = 75
    problem.duration_KC[:47] += 40 * torch.arange(47, dtype=dtype)[:, None]
    score_B, expected = paths.viterbi(problem)
    for count in (1, 3):
        found = best(decode_cuda, problem, count)
        assert [one[0] for one in found] == list(zip(score_B.tolist(), expected, strict=True))
    assert max(end - start for start, end, _ in expected[0]) > 4 * sizes.block


@both_forms
@pytest.mark.parametrize("labels", [24, 100])
def test_at_the_sizes_of_a_gpu_the_kernels_draw_as_cpp_does(monkeypatch, tmp_path, labels):
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    used = native_cuda.SIZES.used(labels)
    for form in (native_cuda, decode_cuda):
        wide = form.SIZES.padded(labels)
        library = build(tmp_path, torch.float64, wide, sizes=form.SIZES, form=form, more=(None, used))
        machine = Emulated(library, order=2)
        monkeypatch.setattr(form, "machine_for", lambda problem, *sizes, machine=machine: machine)
    problem = random_problem(2, 75, 60, labels, seed=6)
    problem.lengths_B[0] = 75
    problem.duration_KC[:47] += 0.3 * torch.arange(47)[:, None]
    found, expected = (one.draws(problem, 7, 3) for one in (decode_cuda, decode))
    assert found[0].paths() == expected[0].paths() and found[1].tolist() == [False, False]


@pytest.mark.parametrize("capability", [(6, 1), (9, 0)], ids=["Pascal", "Hopper"])
@pytest.mark.parametrize("labels, dtype", [(24, torch.float32), (128, torch.float64)], ids=str)
def test_nvrtc_compiles_the_kernels_without_a_gpu(monkeypatch, tmp_path, labels, dtype, capability):
    path = cuda_driver.find_nvrtc()
    if path is None:
        pytest.skip("no libnvrtc here (LAB_NVRTC names one)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        known = cuda_driver.architecture(cuda_driver.nvrtc(path), capability)
    except MissingError as error:
        pytest.skip(error.problem)
    sizes = decode_cuda.SIZES
    target = f"compute_{known.rpartition('_')[2]}"
    defines = native_cuda.defines(dtype, sizes.padded(labels), sizes)
    ptx = cuda_driver.compiled(path, decode_cuda.SOURCE.text, target, defines).decode()
    names = (
        "prepare",
        "best_messages",
        "best_labels",
        "best_path",
        "other_choices",
        "further_paths",
        "weigh_frames",
        "draw_choices",
        "draws",
        "check_draws",
    )
    assert all(f".entry {name}(" in ptx for name in names)
    assert "atom." not in ptx


def on_the_gpu(problem):
    score, transition, duration, start, end = (value.cuda() for value in problem.floats())
    return make_problem(score, transition, duration, problem.lengths_B.cuda(), start, end)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or bool(torch.version.hip), reason="torch sees no NVIDIA GPU"
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(3, 300, 40, 24), (2, 400, 350, 39), (2, 90, 20, 128), (1, 1, 1, 1), (2, 33, 1, 5), (2, 30, 90, 3)],
    ids=str,
)
def test_on_a_gpu_paths_are_those_of_cpp_or_torch(shape, dtype):
    problem = whole_numbers(random_problem(*shape, dtype=dtype, scale=3.0, masked=0.1, seed=3))
    found = best(decode_cuda, on_the_gpu(problem), 6)
    score_B, expected = paths.viterbi(problem)
    assert [one[0][1] if one else [] for one in found] == expected
    assert [one[0][0] if one else -math.inf for one in found] == score_B.tolist()
    assert best(decode_cuda, on_the_gpu(problem)) == [one[:1] for one in found]
    if NO_FORM is None:
        assert found == best(decode, problem, 6)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or bool(torch.version.hip), reason="torch sees no NVIDIA GPU"
)
@pytest.mark.skipif(NO_FORM is not None, reason="no compiled form here")
@pytest.mark.parametrize(
    "shape", [(3, 300, 40, 24), (2, 400, 350, 39), (2, 90, 20, 128), (1, 1, 1, 1), (2, 30, 90, 3)], ids=str
)
def test_on_a_gpu_draws_are_those_of_cpp(shape):
    problem = random_problem(*shape, scale=0.5, masked=0.1, seed=3)
    problem.duration_KC.add_((torch.arange(shape[2])[:, None] / 9) ** 1.5 / 4)
    (found, lost_B), (expected, known_B) = (
        decode_cuda.draws(on_the_gpu(problem), 7, 5),
        decode.draws(problem, 7, 5),
    )
    assert found.paths() == expected.paths() and not bool((lost_B | known_B).any())


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or bool(torch.version.hip), reason="torch sees no NVIDIA GPU"
)
def test_on_a_gpu_draws_cover_frames_as_the_posteriors_say_and_repeat():
    problem = random_problem(2, 200, 48, 24, seed=6, scale=0.3)
    count = 1000
    decoded, lost_B = decode_cuda.draws(on_the_gpu(problem), count, 1)
    again = [decode_cuda.draws(on_the_gpu(problem), count, 1)[0].paths() for _ in range(3)]
    assert not bool(lost_B.any()) and all(decoded.paths() == one for one in again)
    right = api.marginals(
        *problem.floats()[:3], problem.lengths_B, start_C=problem.start_C, end_C=problem.end_C
    )
    for b, drawn in enumerate(decoded.paths()):
        seen_TC = torch.zeros(200, 24, dtype=torch.float64)
        for path in drawn:
            for start, end, label in path:
                seen_TC[start:end, label] += 1 / count
        sigma_TC = (right[b] * (1 - right[b]) / count).sqrt()
        assert bool(((seen_TC - right[b]).abs() <= 6 * sigma_TC + 6 / count).all())


def level(score=0.0):
    """All segmentations tie, but for rounding and segments of one frame. In float64, as the mutants are."""
    sizes = ((1, 23, 2), (2, 2), (7, 2))
    problem = make_problem(*(torch.zeros(size, dtype=torch.float64) for size in sizes))
    problem.duration_KC[0] -= 1
    problem.score_BTC.add_(score)
    return problem


def whole_of(problem, unlike):
    """All that the emulated kernels make of two problems, or the failed assertion."""
    try:
        drawn, lost_B = decode_cuda.draws(unlike, 12, 3)
        other = decode_cuda.draws(unlike, 1, 4)[0].paths()
        return (
            best(decode_cuda, problem, 12),
            best(decode_cuda, problem),
            best(decode_cuda, level()),
            best(decode_cuda, level(0.1), 40),
            drawn.paths(),
            other,
            lost_B.tolist(),
        )
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


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to emulate with")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_kernels_is_killed(unmutated, libraries, monkeypatch, tmp_path, name):
    problem, unlike, expected = unmutated
    make_small(monkeypatch)
    machine = Emulated(build(tmp_path, torch.float64, mutant=MUTANTS[name], sizes=SIZES, form=decode_cuda))
    emulate(monkeypatch, libraries)
    monkeypatch.setattr(decode_cuda, "machine_for", lambda problem: machine)

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
