"""The CUDA C kernels: their logic as C++ on the CPU, and on a GPU if there is one."""

from __future__ import annotations

import functools
import math
import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.errors import BadDataError, UsageError  # noqa: E402
from lab.rooms.semicrf.model import autograd, ledger, log_domain, naive  # noqa: E402
from lab.rooms.semicrf.model import native as choose  # noqa: E402
from lab.rooms.semicrf.model.autograd import MendedCounts  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.problem import admitted, make_problem  # noqa: E402
from lab.rooms.semicrf.workload.cases import random_case, solve  # noqa: E402
from lab.rooms.semicrf.workload.check import stale_messages  # noqa: E402
from tests.rooms.semicrf.model.native.emulated import SMALL, Emulated, build  # noqa: E402
from tests.rooms.semicrf.problems import (  # noqa: E402
    COUNTS,
    NEEDS_NVIDIA,
    balanced,
    extended_problem,
    on_the_gpu,
    random_problem,
    worst,
)

pytestmark = pytest.mark.torch
compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here to emulate the kernels with")
CASES = {
    "several blocks": {"shape": (2, 9, 5, 2)},
    "durations longer than the sequence": {"shape": (2, 3, 7, 2)},
    "one frame, one label": {"shape": (1, 1, 1, 1)},
    "a linear chain": {"shape": (1, 5, 1, 3)},
    "segments over many blocks, more than there are slices": {"shape": (3, 40, 23, 3)},
    "forbidden transitions": {"shape": (2, 8, 4, 3), "masked": 0.5},
    "a grammar of dead ends": {"shape": (2, 12, 30, 3), "masked": 0.6, "seed": 2},
    "only whole segments": {"shape": (2, 12, 5, 3), "masked": 1.0},
    "long segments win": {"shape": (2, 33, 12, 4), "tilt": 0.3},
    "large scores": {"shape": (2, 12, 5, 3), "scale": 30.0},
}


@pytest.fixture
def small(monkeypatch):
    """The kernels' sizes, small: a short sequence then has several blocks, chunks, tiles and slices."""
    monkeypatch.setattr(native_cuda, "SIZES", SMALL)
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The emulated kernels by number type, at the sizes of `small`."""
    found = {}

    def library(dtype):
        if dtype not in found:
            found[dtype] = build(tmp_path_factory.mktemp("emulated"), dtype)
        return found[dtype]

    return library


@pytest.fixture
def run(small, libraries, monkeypatch):
    """A function from a problem, and an order of threads, to what the kernels make of it."""

    def posteriors(problem, order=0):
        dtype = torch.float64 if problem.score_BTC.dtype == torch.float64 else torch.float32
        machine = Emulated(libraries(dtype), order)
        monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *sizes: machine)
        state = native_cuda.forward(problem, count=False)
        return state, native_cuda.backward(state)

    return posteriors


def counted_again(state):
    """The counts of messages that were changed since."""
    state.counted, state.settled = None, False
    return native_cuda.backward(state)


def same_bits(a, b, rows=slice(None)):
    names = (*COUNTS, "log_z_B", "mass_error_B", "mass_frame_B")
    return all(torch.equal(getattr(a, name)[rows], getattr(b, name)[rows]) for name in names)


def check(problem, found, limit):
    expected = naive.posteriors(problem)
    assert float(torch.nan_to_num(found.log_z_B - expected.log_z_B).abs().max()) <= limit
    assert torch.equal(torch.isinf(found.log_z_B), torch.isinf(expected.log_z_B))
    assert worst(expected, found) <= limit
    assert balanced(problem, found, problem.score_BTC.dtype)


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_equal_the_naive_form(run, name, dtype):
    options = dict(CASES[name])
    problem = random_problem(*options.pop("shape"), dtype=dtype, **options)
    _, found = run(problem)
    check(problem, found, 1e-10 if dtype == torch.float64 else 2e-5)


@compiler
@pytest.mark.parametrize("stage", [3, 64])
def test_long_durations_in_stages_and_in_one_walk_equal_the_naive_form(monkeypatch, tmp_path, stage):
    sizes = replace(SMALL, stage=stage)
    monkeypatch.setattr(native_cuda, "SIZES", sizes)
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    machine = Emulated(build(tmp_path, torch.float64, sizes=sizes), order=2)
    monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *sizes: machine)
    for shape, masked in (((3, 61, 50, 3), 0.0), ((2, 40, 40, 4), 0.4), ((2, 30, 57, 2), 0.0)):
        problem = random_problem(*shape, masked=masked, seed=9, scale=0.5)
        state = native_cuda.forward(problem)
        check(problem, native_cuda.backward(state), 1e-10)
        alone = native_cuda.forward(problem, keep=False)
        assert torch.equal(alone.log_z_B, state.log_z_B)
    assert ("outside_sums" in machine.launched) == (stage == 3)


@compiler
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_small_problem_is_the_naive_one(run, data):
    whole = st.integers
    shape = data.draw(st.tuples(whole(1, 3), whole(1, 20), whole(1, 22), whole(1, 4)))
    masked, seed = data.draw(st.sampled_from([0.0, 0.3, 0.8])), data.draw(whole(0, 10**6))
    problem = random_problem(*shape, masked=masked, seed=seed)
    check(problem, run(problem)[1], 1e-10)


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_bits_do_not_depend_on_the_order_of_threads(run, dtype):
    problem = random_problem(2, 30, 19, 3, dtype=dtype, seed=5)
    first = run(problem)[1]
    assert same_bits(first, run(problem, order=1)[1]) and same_bits(first, run(problem, order=2)[1])


@compiler
def test_bits_do_not_depend_on_the_number_of_threads(run, monkeypatch, tmp_path):
    dtype = torch.float32
    problem = random_problem(3, 41, 33, 3, dtype=dtype, seed=5, scale=0.4)
    first = run(problem)[1]
    monkeypatch.setattr(native_cuda, "SIZES", replace(SMALL, threads=8))
    machine = Emulated(build(tmp_path, dtype, sizes=native_cuda.SIZES))
    monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *sizes: machine)
    fewer = native_cuda.backward(native_cuda.forward(problem))
    assert all(torch.equal(getattr(first, name), getattr(fewer, name)) for name in (*COUNTS, "log_z_B"))


def test_a_crowd_of_lanes_gets_fewer_threads_where_that_leaves_two_for_each_label(monkeypatch):
    monkeypatch.setattr(native_cuda, "at_once", lambda device: 10)
    threads = {
        (batch, labels): native_cuda.sizes_for(random_problem(batch, 2, 2, labels), 2).threads
        for batch in (5, 6)
        for labels in (32, 64, 65)
    }
    assert [threads[6, n] for n in (32, 64, 65)] == [128, 128, 256]
    assert {threads[5, n] for n in (32, 64, 65)} == {256}


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_kernels_gradients_are_the_counts_weighted_by_the_incoming_ones(run, dtype):
    problem = random_problem(4, 19, 6, 3, dtype=dtype, seed=2)
    problem.score_BTC[2, 0] = -float("inf")
    state, found = run(problem)
    grad_B = torch.tensor([0.5, -2.0, 1.5, 3.0])
    _, got = native_cuda.differentiate(state, grad_B)
    usable_B = torch.where(torch.isfinite(found.log_z_B), grad_B.double(), 0.0)
    counts = (found.transition, found.duration_BKC, found.starts_BTC[:, 0], found.end_BC(problem.lengths_B))
    expected = [found.label_BTC * usable_B.to(dtype)[:, None, None]]
    expected += [torch.einsum("b,b...->...", usable_B, count.double()) for count in counts]
    for value, one, source in zip(expected, got, problem.floats(), strict=True):
        assert one.shape == source.shape and torch.allclose(one.double(), value.double(), atol=1e-6)
    assert not bool(got[0][2].any())


@compiler
def test_where_a_sequence_is_done_elsewhere_the_kernels_give_no_gradients(run):
    problem = random_problem(2, 9, 4, 3, seed=3)
    problem.score_BTC[0, 4, 1] = 2e9
    state, _ = run(problem)
    assert native_cuda.differentiate(state, torch.ones(2))[1] is None


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_sequence_has_the_same_bits_alone_in_any_batch_and_in_any_padding(run, dtype):
    problem = random_problem(4, 21, 10, 3, dtype=dtype, seed=8)
    together = run(problem)[1]
    order = torch.tensor([2, 0, 3, 1])
    shuffled = run(problem.rows(order))[1]
    for name in (*COUNTS, "log_z_B"):
        assert torch.equal(getattr(together, name)[order], getattr(shuffled, name))
    for row in range(4):
        alone = run(cut(problem, row))[1]
        length = int(problem.lengths_B[row])
        assert torch.equal(alone.log_z_B[0], together.log_z_B[row])
        assert torch.equal(alone.duration_BKC[0], together.duration_BKC[row])
        assert torch.equal(alone.transition[0], together.transition[row])
        assert torch.equal(alone.label_BTC[0], together.label_BTC[row, :length])


def cut(problem, row):
    """One sequence without its padding."""
    length = problem.lengths_B[row : row + 1]
    one = problem.score_BTC[row : row + 1, : int(length)]
    return make_problem(
        one, problem.transition_CC, problem.duration_KC, length, problem.start_C, problem.end_C
    )


@compiler
def test_nan_in_the_padding_moves_no_bit(run):
    problem = random_problem(3, 18, 7, 3, seed=3)
    outside = torch.arange(18) >= problem.lengths_B[:, None]
    poisoned = make_problem(
        problem.score_BTC.masked_fill(outside[..., None], float("nan")),
        problem.transition_CC,
        problem.duration_KC,
        problem.lengths_B,
        problem.start_C,
        problem.end_C,
    )
    assert same_bits(run(problem)[1], run(poisoned)[1])


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_hostile_scores_and_grammars_give_what_torch_gives(run, dtype):
    problem = random_problem(3, 10, 4, 3, dtype=dtype, seed=1)
    problem.score_BTC[0, 3] = torch.tensor([1e9, -1e30, 0.0])
    problem.score_BTC[2, 4, 1:] = -1e30
    problem.score_BTC[1, 2, :] = -float("inf")
    problem.transition_CC[1] = -float("inf")
    _, found = run(problem)
    expected = log_domain.posteriors(admitted(problem))
    assert (
        torch.isinf(found.log_z_B).tolist() == torch.isinf(expected.log_z_B).tolist() == [False, True, False]
    )
    usable = torch.isfinite(expected.log_z_B)
    gap = (found.log_z_B - expected.log_z_B)[usable].abs() / expected.log_z_B[usable].abs().clamp(min=1)
    assert float(gap.max()) <= (1e-12 if dtype == torch.float64 else 1e-6)
    assert worst(expected, found) <= 2e-5 and not bool(found.label_BTC[1].any())


@compiler
def test_a_label_that_no_minus_infinity_forbids_is_reachable_though_float32_cannot_hold_its_weight(run):
    problem = random_problem(1, 6, 3, 2, dtype=torch.float32)
    problem.score_BTC[0, 2] = torch.tensor([9e11, -9e11])
    problem.start_C[0] = problem.transition_CC[1, 0] = -float("inf")
    state, found = run(problem)
    assert state.again.tolist() == [0] and float(found.log_z_B) == pytest.approx(-9e11, rel=1e-6)
    assert bool((found.label_BTC[0, 2] == torch.tensor([0, 1])).all())


def soft_problems(dtype):
    """Penalties that a scaled float can lose between two messages, on some of each kind of score."""
    generator = torch.Generator().manual_seed(4)
    for penalty in (40.0, 80.0, 660.0):
        for kind in ("duration_KC", "transition_CC", "start_C", "end_C", "score_BTC"):
            problem = random_problem(2, 30, 3, 4, dtype=dtype, scale=0.5, seed=int(penalty))
            value = getattr(problem, kind)
            chosen = torch.rand(value.shape, generator=generator) < 0.6
            value[chosen] -= penalty
            yield penalty, kind, problem
        problem = random_problem(2, 30, 2, 4, dtype=dtype, seed=int(penalty))
        problem.duration_KC[0] -= penalty
        yield penalty, "all durations but one", problem


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_soft_penalties_lose_no_mass_between_the_messages(run, dtype):
    limit = 1e-10 if dtype == torch.float64 else 5e-5
    unflagged = 0
    for penalty, kind, problem in soft_problems(dtype):
        state, found = run(problem)
        expected = naive.posteriors(problem)
        unflagged += 0 if state.again is None else -len(state.again)
        unflagged += len(problem.lengths_B)
        assert worst(expected, found) <= limit, (penalty, kind)
        assert float(found.imbalance_B.max()) <= ledger.tolerance_of(dtype, 30), (penalty, kind)
    assert unflagged >= (24 if dtype == torch.float64 else 10)


@compiler
def test_a_short_sequence_whose_start_weighs_2_to_the_760_has_finite_counts(run):
    """The largest transition, e^-543, moves into durations and out of the start."""
    problem = random_problem(1, 3, 4, 2, seed=1)
    problem.transition_CC[0] = -float("inf")
    problem.transition_CC[1] = torch.tensor([-544.1, -543.2])
    problem.score_BTC[0, 0, 0] = -1e30
    for length in (1, 2, 3):
        problem.lengths_B[0] = length
        _, found = run(problem)
        assert worst(naive.posteriors(problem), found) <= 1e-10 and float(found.imbalance_B) <= 1e-9


@compiler
def test_a_weight_that_underflows_beside_a_large_message_marks_its_sequence(run):
    score_BTC = torch.tensor([[[-500.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    duration_KC = torch.tensor([[200.0, -200.0], [0.0, 0.0]], dtype=torch.float64)
    start_C = torch.tensor([400.0, 200.0], dtype=torch.float64)
    problem = make_problem(score_BTC, score_BTC.new_zeros(2, 2), duration_KC, None, start_C)
    state, found = run(problem)
    assert state.again.tolist() == [0] and float(found.log_z_B) == pytest.approx(300, abs=1e-9)


@compiler
@pytest.mark.parametrize(
    "dtype, size", [(torch.float64, 700), (torch.float32, 60), (torch.float32, 350)], ids=str
)
def test_soft_scores_of_any_sign_on_any_input_lose_nothing(run, dtype, size):
    limit = 1e-9 if dtype == torch.float64 else 1e-4
    for seed in range(20):
        problem = random_problem(4, 1 + seed % 9, 1 + seed % 6, 1 + seed % 4, dtype=dtype, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for value in problem.floats():
            far = torch.rand(value.shape, generator=generator) < torch.rand(1, generator=generator)
            soft = size * (2 * torch.rand(value.shape, generator=generator) - 1)
            value[far] = soft[far].to(dtype)
        _, found = run(problem)
        expected = naive.posteriors(problem)
        off = (found.log_z_B - expected.log_z_B).abs() / (1 + expected.log_z_B.abs())
        assert float(off.max()) <= (1e-11 if dtype == torch.float64 else 1e-6), seed
        alone = native_cuda.forward(problem, keep=False)  # no pass from the right to flag it
        off = (alone.log_z_B - expected.log_z_B).abs() / (1 + expected.log_z_B.abs())
        assert float(off.max()) <= (1e-11 if dtype == torch.float64 else 1e-6), seed
        assert worst(expected, found) <= limit, seed
        assert float(found.imbalance_B.max()) <= ledger.tolerance_of(dtype, 9), seed


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_forms_own_audit_is_the_ledgers(run, dtype):
    problem = random_problem(3, 26, 9, 4, dtype=dtype, seed=12)
    state, clean = run(problem)
    limit = 1e-12 if dtype == torch.float64 else 1e-6
    assert torch.allclose(clean.imbalance_B, ledger.imbalance(problem, clean), atol=limit)
    for name in ("source", "arrived"):
        for at in (5, 60, 130):
            rows = state.buffer(name)
            kept = rows.clone()
            rows[at, 1] *= 1.25
            found = counted_again(state)
            rows.copy_(kept)
            expected = ledger.imbalance(problem, found)
            assert torch.allclose(found.imbalance_B, expected, atol=limit, rtol=1e-5), (name, at)
    assert torch.equal(counted_again(state).imbalance_B, clean.imbalance_B)


@compiler
def test_a_fault_between_the_passes_leaves_mass_that_is_not_1_and_rounding_is_divided_out(run):
    problem = random_problem(2, 17, 6, 3, seed=4)
    state, _ = run(problem)
    sums = {}
    for factor in (0.5, 1 / (1 + 1e-5)):
        z = state.buffer("z_value")
        kept = z.clone()
        z[2:] *= factor
        found = counted_again(state)
        z.copy_(kept)
        frame = int(found.mass_frame_B[1])
        sums[factor] = (float(found.mass_error_B[1]), float(found.label_BTC[1, frame].sum()))
        assert float(found.mass_error_B[0]) < 1e-12
    assert sums[0.5] == (pytest.approx(1), pytest.approx(2))
    assert sums[1 / (1 + 1e-5)] == (pytest.approx(1e-5, rel=1e-3), pytest.approx(1, abs=1e-12))


@compiler
def test_counts_queued_behind_the_passes_have_the_same_bits_and_give_the_messages_up(run):
    problem = random_problem(3, 19, 6, 3, seed=4)
    problem.score_BTC[1, 0, 1] = 2e9  # a sequence that is done elsewhere
    _, later = run(problem)
    state = native_cuda.forward(problem)
    assert "messages" not in state.bound and state.again.tolist() == [1]
    found = native_cuda.backward(state)
    assert same_bits(found, later, rows=[0, 2])


@compiler
def test_what_an_alarm_does_to_the_counts_is_audited(run):
    problem = random_problem(2, 12, 5, 3, seed=5)
    run(problem)  # its machine is there from here on

    def spoil(found):
        found.label_BTC[0, 2] *= 1.5
        found.imbalance_B[0] = 0.5

    call = autograd.Call(native_cuda, spoil, problem.names())
    with pytest.warns(MendedCounts, match="1 sequence"):
        found, own = call.counts(problem, native_cuda.forward(problem), torch.ones(2))
    assert own is None and worst(naive.posteriors(problem), found) <= 1e-10


@compiler
def test_stale_messages_are_noticed_and_mended(run, monkeypatch):
    """What `check` plants on a GPU."""
    case = random_case(1, (3, 9, 4, 3))
    run(make_problem(**case.arguments()))
    monkeypatch.setattr(choose, "engine_for", lambda score_BTC: native_cuda)
    found, exact = solve(case, functools.partial(stale_messages, backend="native")), solve(case, "naive")
    assert found.mended is not None
    pairs = zip(found.tensors().values(), exact.tensors().values(), strict=True)
    assert all(torch.allclose(mine, right, atol=1e-9) for mine, right in pairs)


@compiler
def test_a_length_that_nobody_looked_at_is_refused_if_it_is_out_of_range(run):
    problem = random_problem(5, 12, 5, 3, seed=5)
    for lengths, words in (
        ([0, 7, 12, 1, 12], "must be positive, got min=0"),
        ([12, 13, 1, 2, 3], "got max=13"),
    ):
        with pytest.raises(UsageError, match=words):
            run(replace(problem, lengths_B=torch.tensor(lengths)))


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["score_BTC", "transition_CC", "duration_KC", "start_C", "end_C"])
@pytest.mark.parametrize("value", [-1e12, -3e38])
def test_a_large_negative_score_is_minus_inf_to_the_last_bit(run, name, value, dtype):
    """The kernels look at numbers on their way: all of an input, or a part."""
    for seed, share in ((1, 0.3), (2, 0.3), (3, 1.0)):
        problem = random_problem(3, 11, 5, 3, seed=seed, dtype=dtype)
        never = (
            torch.rand(getattr(problem, name).shape, generator=torch.Generator().manual_seed(seed)) < share
        )
        if name == "score_BTC":  # a whole frame that a finite number masks is another question
            never[..., 0] = False
        pair = []
        for number in (value, -math.inf):
            changed = getattr(problem, name).masked_fill(never, number)
            pair.append(replace(problem, **{name: changed}))
        pair[1] = admitted(pair[1])
        (_, found), (_, right) = (run(one) for one in pair)
        assert torch.equal(torch.isneginf(found.log_z_B), torch.isneginf(right.log_z_B))
        assert same_bits(found, right), (seed, share)


@compiler
@pytest.mark.parametrize("value", [-1e12, -3e38])
def test_a_frame_masked_whole_by_a_finite_number_says_nothing(run, value):
    problem = random_problem(3, 11, 5, 3, seed=1, dtype=torch.float32)
    problem.score_BTC[1, 4] = problem.score_BTC[2] = value
    (_, found), (_, right) = run(problem), run(admitted(problem))
    assert torch.allclose(found.log_z_B, right.log_z_B, rtol=1e-6)
    assert torch.allclose(found.label_BTC, right.label_BTC, atol=1e-5)


@compiler
@pytest.mark.parametrize("bad", [math.nan, math.inf, 2e12])
@pytest.mark.parametrize("name", ["score_BTC", "transition_CC", "duration_KC", "start_C", "end_C"])
def test_what_is_refused_is_flagged_by_the_kernels_and_named(run, name, bad):
    for seed in range(4):
        problem = random_problem(3, 12, 5, 3, seed=seed)
        value = getattr(problem, name).clone()
        value.view(-1)[seed * 7 % value.numel()] = bad
        problem = replace(problem, **{name: value}, lengths_B=torch.full((3,), 12))
        with pytest.raises(BadDataError, match="numbers must not be NaN or above"):
            run(problem)


@compiler
def test_without_the_counts_one_pass_runs_and_log_z_has_the_same_bits(run):
    problem = random_problem(2, 14, 6, 3, seed=4)
    state, found = run(problem)
    alone = native_cuda.forward(problem, keep=False)
    assert torch.equal(alone.log_z_B, found.log_z_B) and not alone.keeps
    assert state.machine.launched.count("messages") == 2
    with pytest.raises(UsageError, match="not kept"):
        native_cuda.backward(alone)


@compiler
@pytest.mark.parametrize("labels, dtype", [(24, torch.float64), (100, torch.float32)], ids=str)
def test_at_the_sizes_of_a_gpu_the_kernels_equal_torch(monkeypatch, tmp_path, labels, dtype):
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)
    sizes = native_cuda.SIZES
    problem = random_problem(2, 75, 60, labels, dtype=dtype, seed=6, scale=0.5)
    counts = []
    for used in (sizes.padded(labels), sizes.used(labels)):
        library = build(tmp_path, dtype, sizes.padded(labels), sizes=sizes, more=(used,))
        machine = Emulated(library, order=1)
        monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *sizes, machine=machine: machine)
        counts.append(native_cuda.backward(native_cuda.forward(problem)))
    whole, found = counts  # labels that are not there change no bit
    for name in ("log_z_B", *native_cuda.COUNTED.values()):
        assert torch.equal(getattr(whole, name), getattr(found, name))
    expected = log_domain.posteriors(problem)
    limit = 1e-10 if dtype == torch.float64 else 2e-5
    assert float((found.log_z_B - expected.log_z_B).abs().max()) <= limit and worst(expected, found) <= limit


def test_what_the_kernels_do_not_take_is_an_error():
    with pytest.raises(UsageError, match="tensors on the CPU"):
        native_cuda.forward(random_problem(1, 3, 2, 2))
    with pytest.raises(UsageError, match="terms of single segments"):
        native_cuda.forward(extended_problem(1, 3, 2, 2, terms=("start",)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_there_is_a_reason():
    assert native_cuda.available() in (
        "torch sees no CUDA device",
        "this is torch for ROCm, and the kernels are CUDA C",
    )


@pytest.mark.gpu
@NEEDS_NVIDIA
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 70, 40, 24), (2, 50, 60, 39), (2, 40, 20, 128), (1, 1, 1, 1), (2, 33, 1, 5)]
)
def test_on_a_gpu_the_kernels_equal_the_naive_form(shape, dtype):
    problem = random_problem(*shape, dtype=dtype, scale=0.5)
    found = native_cuda.backward(native_cuda.forward(on_the_gpu(problem)))
    expected = log_domain.posteriors(problem)
    limit = 1e-10 if dtype == torch.float64 else 2e-5
    assert float((found.log_z_B.cpu() - expected.log_z_B).abs().max()) <= limit
    assert (
        max(float((getattr(found, n).cpu().double() - getattr(expected, n)).abs().max()) for n in COUNTS)
        <= limit
    )


@pytest.mark.gpu
@NEEDS_NVIDIA
def test_on_a_gpu_twenty_repeats_have_the_same_bits():
    problem = on_the_gpu(random_problem(5, 90, 40, 24, dtype=torch.float32))
    first = native_cuda.backward(native_cuda.forward(problem))
    assert all(same_bits(first, native_cuda.backward(native_cuda.forward(problem))) for _ in range(20))


@compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_nothing_fits_has_counts_of_zero_though_messages_from_the_right_overflow(run, dtype):
    for length in (2, 7, 20):
        problem = random_problem(2, length, 3, 2, seed=length, dtype=dtype)
        never_C = torch.full_like(problem.start_C, -math.inf)
        _, found = run(replace(problem, start_C=never_C, duration_KC=problem.duration_KC.abs() * 300))
        assert torch.isneginf(found.log_z_B).all()
        assert not any(getattr(found, name).any() for name in COUNTS)


@compiler
def test_the_gradient_of_a_sum_needs_no_copy_for_each_sequence_and_has_the_same_bits(run):
    problem = random_problem(3, 9, 4, 3, seed=5, dtype=torch.float32)
    state, _ = run(problem)
    one = torch.tensor(1.7, dtype=torch.float64)
    spaced = torch.full((3, 2), 1.7, dtype=torch.float64)[:, 0]
    right = native_cuda.differentiate(state, one.repeat(3))[1]
    for same in (one.expand(3), spaced):
        for mine, wanted in zip(native_cuda.differentiate(state, same)[1], right, strict=True):
            assert torch.equal(mine, wanted)
    apart = native_cuda.differentiate(state, torch.tensor([1.7, 0.0, 1.0], dtype=torch.float64))[1]
    assert not any(torch.equal(mine, wanted) for mine, wanted in zip(apart, right, strict=True))
