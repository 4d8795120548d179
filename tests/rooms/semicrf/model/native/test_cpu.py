"""The C++ form on the CPU against the definition and against torch."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")


from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf.model import (  # noqa: E402
    api,
    log_domain,
    naive,
    native,
)
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402
from lab.rooms.semicrf.workload.cases import bits_equal  # noqa: E402
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


@compiled
@pytest.mark.parametrize("lanes", [2])
def test_vectors_of_every_width_give_the_same_numbers(monkeypatch, tmp_path, lanes):
    problems = [random_problem(2, 40, 9, labels, masked=0.3, seed=labels) for labels in (1, 5, 8, 13, 39)]
    usual = [solve(problem) for problem in problems]
    compiler, _ = native_cpu.CPP.find_compiler()
    monkeypatch.setenv("CXX", shlex.join([*compiler, f"-DLAB_LANES={lanes}"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = native_cpu.CPP.built(native_cpu.SOURCE)
    monkeypatch.setattr(native_cpu, "library", lambda: other)
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
    strided = replace(problem, score_BTC=turned, transition_CC=problem.transition_CC.t().contiguous().t())
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
    assert alone.messages == [None, None, None]
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
def test_minimum_durations_and_forbidden_starts_are_zeros():
    problem = random_problem(2, 40, 9, 4, masked=0.3, seed=5)
    duration, start = problem.duration_KC.clone(), problem.start_C.clone()
    duration[:6], start[1:] = -math.inf, -math.inf
    problem = replace(problem, duration_KC=duration, start_C=start, lengths_B=torch.tensor([40, 5]))
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
        native_cpu.best(wrapped) if decoded else native_cpu.forward(wrapped)
