"""The C++ form on the CPU against the definition and against torch."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model import api, log_domain, naive  # noqa: E402
from lab.rooms.semicrf.model.native import build as native_build  # noqa: E402
from lab.rooms.semicrf.model.native import choose as native  # noqa: E402
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402
from lab.rooms.semicrf.model.native import decode  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from lab.rooms.semicrf.workload.cases.case import Case  # noqa: E402
from lab.rooms.semicrf.workload.cases.solution import bits_equal, same_bits  # noqa: E402
from lab.rooms.semicrf.workload.cases.solution import solve as solve_case  # noqa: E402
from lab.rooms.semicrf.workload.checks.hostile import hostile_case  # noqa: E402
from tests.rooms.semicrf.problems import COUNTS, balanced, random_problem, worst  # noqa: E402

pytestmark = pytest.mark.torch
NO_FORM = native.missing_reason("cpu")
compiled = pytest.mark.skipif(NO_FORM is not None, reason=(NO_FORM or "").splitlines()[0] if NO_FORM else "")
ALL = ("log_z_B", *COUNTS, "mass_error_B", "mass_frame_B")


def solve(problem):
    return native_cpu.backward(native_cpu.forward(problem))


def agree(problem, expected, found):
    finite = torch.isfinite(expected.log_z_B)
    assert torch.equal(finite, torch.isfinite(found.log_z_B))
    gap = (found.log_z_B - expected.log_z_B)[finite].abs()
    assert bool((gap <= 1e-12 * expected.log_z_B[finite].abs() + 1e-11).all())
    assert worst(expected, found) <= 1e-10
    assert balanced(problem, found)


def gaps(one, other):
    return [name for name in ALL if not torch.equal(getattr(one, name), getattr(other, name))]


@compiled
@settings(max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 16),
    st.integers(1, 9),
    st.sampled_from([0.1, 1.0, 10.0, 300.0]),
    st.sampled_from([0.0, 0.3, 0.7]),
    st.integers(0, 99),
)
def test_the_cpp_form_equals_the_definition(batch, frames, longest, labels, scale, masked, seed):
    problem = random_problem(batch, frames, longest, labels, scale=scale, masked=masked, seed=seed)
    agree(problem, naive.posteriors(problem), solve(problem))


@compiled
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1),
        (2, 90, 1, 7),
        (2, 5, 300, 3),
        (3, 40, 16, 33),
        (2, 70, 31, 48),
        (2, 33, 9, 65),
        (2, 150, 129, 24),
        (1, 20, 4, 130),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [0.0, 0.4])
def test_the_cpp_form_equals_torch_at_every_number_of_vectors(shape, masked):
    problem = random_problem(*shape, masked=masked, seed=7)
    agree(problem, log_domain.posteriors(problem), solve(problem))


def draws_of(problems):
    return [decode.draws(problem, 5, 1)[0].tolist() for problem in problems]


@compiled
@pytest.mark.parametrize("lanes", [2])
def test_vectors_of_every_width_give_the_same_numbers(monkeypatch, tmp_path, lanes):
    problems = [random_problem(2, 40, 9, labels, masked=0.3, seed=labels) for labels in (1, 5, 8, 13, 39)]
    usual, drawn = [solve(problem) for problem in problems], draws_of(problems)
    compiler, _ = native_build.find_compiler()
    monkeypatch.setenv("CXX", shlex.join([*compiler, f"-DLAB_LANES={lanes}"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = native_build.built()
    monkeypatch.setattr(native_cpu, "library", lambda: other)
    assert draws_of(problems) == drawn
    for problem, expected in zip(problems, usual, strict=True):
        agree(problem, expected, solve(problem))


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_gradients_follow_the_incoming_gradient_in_the_inputs_dtype(dtype):
    problem = random_problem(3, 9, 4, 3, masked=0.2, seed=8, dtype=dtype)
    weight = torch.tensor([0.3, -2.0, 1.1], dtype=torch.float64)
    grads = []
    for backend, kind in (("naive", torch.float64), ("native", dtype)):
        inputs = [value.to(kind).clone().requires_grad_() for value in problem.floats()]
        log_z = api.log_partition(
            *inputs[:3], problem.lengths_B, start_C=inputs[3], end_C=inputs[4], backend=backend
        )
        assert log_z.dtype == torch.float64
        grads.append(torch.autograd.grad((log_z * weight).sum(), inputs))
    for expected, found in zip(*grads, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.double(), expected, atol=8 * torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps
        )


@compiled
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_scores_changed_in_place_before_the_way_back_are_an_error(backend):
    leaf = torch.randn(1, 9, 3, requires_grad=True)
    score = leaf * 1.0
    log_z = api.log_partition(score, torch.zeros(3, 3), torch.zeros(2, 3), backend=backend)
    score.detach().add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_z.sum().backward()


@compiled
def test_a_view_that_is_not_contiguous_is_read_as_it_is_meant():
    problem = random_problem(2, 12, 4, 5, seed=2)
    turned = problem.score_BTC.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not turned.is_contiguous()
    strided = replace(problem, score_BTC=turned, transition=problem.transition.t().contiguous().t())
    assert gaps(solve(problem), solve(strided)) == []


@compiled
def test_a_view_that_torch_reads_with_the_sign_turned_is_read_so():
    problem = random_problem(2, 12, 4, 5, seed=2)
    turned = problem.with_floats([torch._neg_view(-value) for value in problem.floats()])
    assert all(value.is_neg() and value.is_contiguous() for value in turned.floats())
    assert gaps(solve(problem), solve(turned)) == []


@compiled
def test_log_z_alone_keeps_no_messages_and_has_the_same_bits():
    problem = random_problem(4, 30, 6, 9, masked=0.3, seed=4)
    alone = native_cpu.forward(problem, keep=False)
    assert alone.alpha_BTC is None
    assert bits_equal(alone.log_z_B, native_cpu.forward(problem).log_z_B)
    with pytest.raises(AssertionError, match="were not kept"):
        native_cpu.backward(alone)


@compiled
@pytest.mark.parametrize("labels", [5, 39])
def test_padding_batch_and_number_of_threads_change_no_bit(labels):
    problem = random_problem(5, 70, 20, labels, masked=0.2, seed=2)
    whole = solve(problem)
    for threads in (2, 3, 16):
        torch.set_num_threads(threads)
        assert gaps(whole, solve(problem)) == [], threads
    torch.set_num_threads(1)
    wide = replace(
        problem, score_BTC=torch.nn.functional.pad(problem.score_BTC, (0, 0, 0, 71), value=math.nan)
    )
    padded = solve(wide)
    for b in range(5):
        alone = solve(problem.rows(torch.tensor([b])))
        for name in ALL:
            value = getattr(whole, name)[b]
            assert torch.equal(value, getattr(alone, name)[0]), name
            assert torch.equal(
                value, getattr(padded, name)[b][: len(value)] if value.dim() else getattr(padded, name)[b]
            )
    assert float(padded.label_BTC[:, 70:].abs().max()) == 0


@compiled
def test_twenty_repeats_have_one_bit_pattern():
    case = Case(
        *random_problem(6, 50, 12, 11, seed=3, dtype=torch.float32).floats()[:3],
        torch.tensor([50, 1, 12, 49, 7, 33]),
        torch.zeros(11),
        torch.zeros(11),
    )
    torch.set_num_threads(2)
    first = solve_case(case, "native")
    assert all(same_bits(first, solve_case(case, "native")) for _ in range(19))


@compiled
def test_hostile_batches_agree_with_the_log_domain_and_never_give_nan():
    dice = torch.Generator().manual_seed(11)
    for at in range(60):
        case, kinds = hostile_case(dice, 16)
        found = solve_case(case, "native")
        assert found.first_nonfinite(case.lengths_B) is None, (at, kinds)
        assert float(torch.nan_to_num(found.score_BTC).max()) <= 1 + 1e-6, (at, kinds)
        exact = log_domain.posteriors(
            make_problem(
                case.score_BTC, case.transition_CC, case.duration_KC, case.lengths_B, case.start_C, case.end_C
            )
        )
        assert torch.equal(torch.isneginf(found.logZ_B), torch.isneginf(exact.log_z_B)), (at, kinds)
        assert bool(
            (
                torch.isneginf(exact.log_z_B)
                | ((found.logZ_B - exact.log_z_B).abs() <= 1e-9 * exact.log_z_B.abs() + 1e-9)
            ).all()
        )
        assert float((found.score_BTC.double() - exact.label_BTC).abs().max()) <= 1e-6, (at, kinds)


@compiled
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_one_pass_alone_loses_is_seen_and_done_again(side):
    """Label 0 leads by e^14 a frame, and there is a way between the labels in one direction only.

    So from one side label 1 is what never went over, e^-4200 in the end; from the other it always is one step
    behind.
    """
    score = torch.zeros(1, 300, 2, dtype=torch.float64)
    score[:, :, 0] = 14.0
    transition = torch.tensor([[0.0, -math.inf], [0.0, 0.0]], dtype=torch.float64)
    transition = transition if side == "left" else transition.T.contiguous()
    problem = make_problem(score, transition, torch.zeros(4, 2, dtype=torch.float64))
    state = native_cpu.forward(problem)
    _, redo_B = native_cpu.counted(state)
    assert bool(redo_B[0]) and bool(state.flagged_B[0]) == (side == "left")
    found = native_cpu.backward(state)
    assert found.log_z_B.item() == pytest.approx(naive.log_partition(problem).item(), rel=1e-13)
    assert worst(log_domain.posteriors(problem), found) <= 1e-12


@compiled
def test_what_underflows_in_one_sequence_leaves_its_neighbours_bits():
    problem = replace(random_problem(3, 12, 4, 3, seed=1), lengths_B=torch.tensor([12, 11, 9]))
    apart = torch.full((3, 3), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    problem, hard = replace(problem, transition=apart), problem.score_BTC.clone()
    hard[1, 4] = torch.tensor([1e9, -1e9, 0.0])
    easy, mixed = solve(problem), solve(replace(problem, score_BTC=hard))
    for name in ALL:
        assert torch.equal(getattr(easy, name)[[0, 2]], getattr(mixed, name)[[0, 2]]), name
    assert native_cpu.forward(replace(problem, score_BTC=hard)).flagged_B.tolist() == [0, 1, 0]


@compiled
def test_minimum_durations_and_forbidden_starts_are_zeros_and_not_taken_for_underflow():
    problem = random_problem(2, 40, 9, 4, masked=0.3, seed=5)
    duration, start = problem.duration_KC.clone(), problem.start_C.clone()
    duration[:6], start[1:] = -math.inf, -math.inf
    problem = replace(problem, duration_KC=duration, start_C=start, lengths_B=torch.tensor([40, 5]))
    assert native_cpu.forward(problem).flagged_B.tolist() == [0, 0]
    agree(problem, naive.posteriors(problem), solve(problem))
    assert (
        bool(torch.isneginf(solve(problem).log_z_B[1]))
        and float(solve(problem).label_BTC[1].abs().max()) == 0
    )


@compiled
def test_long_sequences_keep_eleven_digits_of_log_z():
    problem = random_problem(1, 5000, 12, 5, seed=6)
    expected, found = log_domain.forward(problem), solve(problem)
    assert found.log_z_B.item() == pytest.approx(expected.log_z_B.item(), rel=1e-13)
    assert float(found.mass_error_B) < 1e-11


FAULTS = {
    "a stale label": lambda s: (s.alpha_BTC[1, 20:30, 2].zero_(), s.gamma_BTC[1, 20:30, 2].zero_()),
    "a whole stale row": lambda s: (s.alpha_BTC[1, 20].zero_(), s.gamma_BTC[1, 20].zero_()),
    "a checkpoint e^0.5 too large": lambda s: (
        s.alpha_BTC[1, 20:30].mul_(1.65),
        s.gamma_BTC[1, 20:30].mul_(1.65),
    ),
    "an exponent not written": lambda s: s.exponent_BT[1, 20:30].zero_(),
    "the ring rotated by one": lambda s: s.gamma_BTC.copy_(s.gamma_BTC.roll(1, 1)),
    "log Z +3": lambda s: s.z_B.mul_(math.exp(3)),
    "log Z -60": lambda s: s.z_B.mul_(math.exp(-60)),
}


@compiled
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_messages_raises_the_alarm_on_posterior_mass(monkeypatch, name):
    forward = native_cpu.forward

    def faulty(problem, keep=True):
        state = forward(problem, keep)
        if keep:
            FAULTS[name](state)
        return state

    monkeypatch.setattr(native_cpu, "forward", faulty)
    torch.manual_seed(1)
    head = SemiCRF(5, 8, backend="native", validate=True)
    score = (3 * torch.randn(2, 60, 5)).requires_grad_()
    loss = head.loss(score, None, torch.zeros(2, 60, dtype=torch.int64))
    with pytest.raises(
        RuntimeError, match=r"Posterior mass is not 1 in CRF backward \(native\): worst error"
    ):
        loss.backward()


@compiled
def test_the_processors_way_with_tiny_numbers_is_as_it_was_after_a_call():
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    solve(random_problem(2, 20, 5, 3))
    assert float(tiny * 0.5) > 0


def test_a_weight_that_only_its_scale_makes_too_small_marks_the_sequence():
    """Hostile batch 229 of seed 77: e^-425 met a message of 2^453 from which that power was taken first."""
    dice = torch.Generator().manual_seed(77)
    for _ in range(230):
        case, _ = hostile_case(dice, 24)
    problem = make_problem(*case.to(dtype=torch.float64).inputs().values()).rows(torch.tensor([0]))
    _, redo_B = native_cpu.counted(native_cpu.forward(problem))
    assert redo_B.tolist() == [True]
    assert worst(naive.posteriors(problem), native_cpu.backward(native_cpu.forward(problem))) <= 1e-10


class Wrapper(torch.Tensor):
    """A tensor without memory of its own around another one, as a DTensor is."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        tree = torch.utils._pytree
        args, kwargs = tree.tree_map(lambda x: getattr(x, "inner", x), (args, kwargs or {}))
        found = function(*args, **kwargs)
        return tree.tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, found)


@compiled
@pytest.mark.parametrize("decoded", [False, True])
def test_a_tensor_without_memory_of_its_own_is_refused_before_its_address_is_read(decoded):
    problem = random_problem(1, 4, 2, 2)
    wrapped = problem.with_floats([Wrapper(value) for value in problem.floats()])
    with pytest.raises(UsageError, match="without memory of its own"):
        decode.best(wrapped, 1) if decoded else native_cpu.forward(wrapped)
