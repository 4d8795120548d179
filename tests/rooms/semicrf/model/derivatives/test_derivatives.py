"""Derivatives of log Z and of what is computed from it: right to second order, or an error in words."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf import SegmentDistribution, SemiCRF  # noqa: E402
from lab.rooms.semicrf.model import api, naive  # noqa: E402
from lab.rooms.semicrf.model.derivatives import autograd, second  # noqa: E402
from lab.rooms.semicrf.model.factorised import backend as torch_factorised  # noqa: E402
from lab.rooms.semicrf.model.finish import MendedCounts  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from lab.rooms.semicrf.workload.checks.hostile import comparable, hostile_case  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, inputs_of, random_problem  # noqa: E402

pytestmark = pytest.mark.torch

KINDS = ["shared", "duration", "frame"]
ALL = ("start", "end", "segment")
transforms = pytest.mark.skipif(not hasattr(torch, "func"), reason="torch older than 2.0 has no torch.func")
compiles = pytest.mark.skipif(
    not hasattr(torch.library, "custom_op"), reason="torch older than 2.4 has no custom operators"
)


def noise(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaves_of(problem):
    return [value.clone().requires_grad_() for value in problem.floats()]


def grads_of(value, leaves, **more):
    found = torch.autograd.grad(value, leaves, allow_unused=True, **more)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def penalised(problem, backend):
    """The gradient of a loss that holds log Z, its square, and a product with its gradient."""
    leaves = leaves_of(problem)
    log_z_B = api.log_partition(**inputs_of(problem.with_floats(leaves)), backend=backend)
    log_z_B = log_z_B[torch.isfinite(log_z_B)]
    weight_B = noise(1, len(log_z_B))
    first = grads_of((log_z_B * weight_B).sum(), leaves, create_graph=True)
    pairs = enumerate(first)
    penalty = sum((grad * noise(at, *grad.shape)).sum() + grad.pow(2).sum() for at, grad in pairs)
    return grads_of((0.1 * log_z_B).pow(2).sum() + penalty, leaves)


def apart(found, right):
    return max(
        float((a - b).abs().max()) / max(1, float(b.abs().max())) for a, b in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", [(), ("start",), ("end",), ("segment",), ALL])
def test_second_derivatives_of_every_input_are_those_of_the_definition(backend, kind, terms):
    for seed in range(4):
        batch, frames, longest, labels = [(3, 7, 4, 3), (2, 3, 6, 2), (2, 6, 1, 3), (1, 1, 2, 1)][seed]
        problem = extended_problem(
            batch, frames, longest, labels, kind=kind, terms=terms, masked=0.1 * (seed % 3), seed=seed
        )
        assert apart(penalised(problem, backend), penalised(problem, "naive")) < 1e-11


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("unread", [math.nan, math.inf, -math.inf])
def test_the_row_of_transitions_that_is_not_read_moves_nothing(frames, unread):
    problem = extended_problem(2, frames, 3, 3, kind="frame", terms=("segment",), seed=5)
    spoiled = problem.transition.clone()
    spoiled[:, 0] = unread
    found, right = penalised(replace(problem, transition=spoiled), "auto"), penalised(problem, "auto")
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    assert float(right[0].abs().max()) > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [40.0, 450.0, 700.0, 1e4, -300.0])
def test_second_derivatives_hold_where_the_linear_recursion_underflows(kind, penalty):
    for seed, terms in ((0, ()), (1, ALL)):
        problem = extended_problem(2, 10, 4, 3, kind=kind, terms=terms, soft=penalty, seed=seed)
        costly = torch.full_like(problem.duration_KC, -abs(penalty))
        costly[seed] = 0
        problem = replace(problem, duration_KC=problem.duration_KC + costly)
        assert apart(penalised(problem, "auto"), penalised(problem, "naive")) < 1e-9


def test_one_free_duration_beside_one_that_costs_500_has_its_second_derivative():
    """Three segments of two frames: one more frame of the free duration cannot be, so nothing moves."""
    duration = torch.tensor([[-500.0], [0.0]], dtype=torch.float64, requires_grad=True)
    log_z = api.log_partition(torch.zeros(1, 6, 1).double(), torch.zeros(1, 1).double(), duration)
    (first,) = torch.autograd.grad(log_z.sum(), duration, create_graph=True)
    assert first.flatten().tolist() == pytest.approx([0, 3], abs=1e-12)
    (moved,) = torch.autograd.grad(first[1, 0], duration)
    assert moved.flatten().tolist() == pytest.approx([0, 0], abs=1e-12)


def test_float32_inputs_have_second_derivatives_in_float32():
    problem = random_problem(2, 8, 3, 3, masked=0.2, dtype=torch.float32, seed=2)
    wide = problem.with_floats([value.double() for value in problem.floats()])
    found, right = penalised(problem, "auto"), penalised(wide, "naive")
    assert all(value.dtype == torch.float32 for value in found)
    assert apart([value.double() for value in found], right) < 1e-5


def test_finite_differences_agree():
    problem = extended_problem(1, 3, 2, 2, kind="frame", terms=ALL, seed=3)
    names = ["score_BTC", "transition", "duration_KC", "segment_BTKC"]

    def log_z(*values):
        return api.log_partition(**inputs_of(replace(problem, **dict(zip(names, values, strict=True)))))

    values = [getattr(problem, name).clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(log_z, values, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(log_z, values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["auto", "torch", "naive"])
def test_every_expected_count_is_differentiable(kind, backend):
    problem = extended_problem(3, 6, 3, 2, kind=kind, terms=ALL, masked=0.1, seed=4)
    leaves = leaves_of(problem)
    found = api.posteriors(**inputs_of(problem.with_floats(leaves)), backend=backend)
    reference = leaves_of(problem)
    log_z_B = api.log_partition(**inputs_of(problem.with_floats(reference)), backend="naive")
    kept_B = torch.isfinite(log_z_B)
    assert kept_B.any()
    first = dict(
        zip(problem.names(), grads_of(log_z_B[kept_B].sum(), reference, create_graph=True), strict=True)
    )
    per_sequence = {
        "label_BTC": first["score_BTC"],
        "starts_BTC": first["seg_start_BTC"],
        "ends_BTC": first["seg_end_BTC"],
        "segment_BTKC": first["segment_BTKC"],
    }
    shared = {"duration_BKC": first["duration_KC"], "transition": first["transition"]}
    (per_sequence if kind == "frame" else shared)["transition"] = first["transition"]
    if kind == "frame":
        del shared["transition"]
    for name, right in (*per_sequence.items(), *shared.items()):
        mine = getattr(found, name) if name in per_sequence else getattr(found, name).sum(0)
        assert torch.allclose(mine, right, atol=1e-11)
        weight = noise(5, *right.shape)
        grads = grads_of((mine * weight).sum(), leaves, retain_graph=True)
        expected = grads_of((right * weight).sum(), reference, retain_graph=True)
        assert apart(grads, expected) < 1e-11, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_entropy_and_its_gradient_are_those_of_all_segmentations(kind):
    problem = extended_problem(2, 4, 3, 2, kind=kind, terms=ALL, masked=0.1, seed=6)
    leaves, reference = leaves_of(problem), leaves_of(problem)
    found_B = api.entropy(**inputs_of(problem.with_floats(leaves)))
    grads = grads_of(found_B[torch.isfinite(found_B)].sum(), leaves)
    total = torch.zeros((), dtype=torch.float64)
    for b in range(2):
        scores = naive.enumerate_segmentations(problem.with_floats(reference), b)[1]
        scores = scores[scores > -math.inf]
        if len(scores):
            log_p = torch.log_softmax(scores, 0)
            entropy = -(log_p.exp() * log_p).sum()
            assert float(found_B[b].detach()) == pytest.approx(float(entropy.detach()), abs=1e-12)
            total = total + entropy
    assert apart(grads, grads_of(total, reference)) < 1e-11


@pytest.mark.parametrize("offset", [-1e30, -1e12, 1e12, 1e30])
def test_the_entropy_and_its_gradient_keep_their_digits_beside_frames_that_are_huge(offset):
    """A frame in which all labels are alike says nothing, whatever its score."""
    problem = random_problem(2, 8, 3, 3, seed=7)
    entropies, grads = [], []
    for level in (0.0, offset):
        leaves = leaves_of(problem)
        score = leaves[0].index_fill(1, torch.tensor([3]), level)
        entropies.append(api.entropy(**inputs_of(problem.with_floats([score, *leaves[1:]]))))
        grads.append(grads_of(entropies[-1].sum(), leaves))
    assert torch.allclose(*entropies, atol=1e-12)
    assert apart(*grads) < 1e-11


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_entropy_of_hostile_batches_is_that_of_all_segmentations(backend):
    """Scores are added as fractions: beside 1e30 a float64 sum has no digit of the rest."""
    dice, compared = torch.Generator().manual_seed(8), 0
    for _ in range(60):
        case = hostile_case(dice, 5)[0].to(dtype=torch.float64)
        problem = make_problem(*case.inputs().values())
        values = torch.cat([value.flatten() for value in problem.floats()])
        if (
            problem.shape[3] > 3
            or problem.shape[1] > 5
            or bool((torch.isnan(values) | (values == math.inf)).any())
        ):
            continue
        found_B = api.entropy(**inputs_of(problem), backend=backend)
        for b in comparable(case):
            scores = exact_scores(problem, b)
            if scores:
                log_p = torch.tensor(
                    [float(max(x - max(scores), -10_000)) for x in scores], dtype=torch.float64
                )
                log_p = torch.log_softmax(log_p, 0)
                assert float(found_B[b]) == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=1e-10)
                compared += 1
    assert compared > 25


def exact_scores(problem, b):
    """The score of each segmentation that nothing forbids."""
    _, _, longest, labels = problem.shape
    found = []
    for path in naive.segmentations(int(problem.lengths_B[b]), longest, labels):
        terms = [problem.start_C[path[0][2]], problem.end_C[path[-1][2]]]
        for at, (start, end, label) in enumerate(path):
            terms += [
                *problem.score_BTC[b, start:end, label],
                naive.segment_score(problem, b, start, end)[label],
            ]
            if at:
                terms.append(naive.transition_score(problem, b, start, end)[path[at - 1][2], label])
        if all(float(term) > -math.inf for term in terms):
            found.append(sum(Fraction(float(term)) for term in terms))
    return found


def test_the_entropy_keeps_its_digits_where_the_largest_label_leads_nowhere():
    problem = random_problem(1, 5, 3, 2, seed=8)
    closed = torch.tensor([-math.inf, 0.0], dtype=torch.float64)
    way_out = torch.tensor([[0.0, -math.inf], [0.3, 0.1]], dtype=torch.float64)
    problem = replace(problem, end_C=closed, transition=way_out)
    right = api.entropy(**inputs_of(problem))
    score = problem.score_BTC.clone()
    score[0, 2:, 0] = 1e30
    found = api.entropy(**inputs_of(replace(problem, score_BTC=score)))
    assert float(found) == pytest.approx(float(right), abs=1e-11) and float(found) > 0.1


@pytest.mark.parametrize("backend, rounding", [("torch", 0.0), ("auto", 1e-14)])
def test_what_is_forbidden_or_impossible_has_derivatives_of_zero_and_never_nan(backend, rounding):
    problem = random_problem(3, 6, 3, 2, seed=9)
    score = problem.score_BTC.clone()
    score[0, 2], score[1, 1, 0] = -math.inf, -math.inf  # nothing fits the first sequence
    problem = replace(problem, score_BTC=score, lengths_B=torch.tensor([6, 5, 4]))
    leaves = leaves_of(problem)
    inputs = {**inputs_of(problem.with_floats(leaves)), "backend": backend}
    entropy_B = api.entropy(**inputs)
    first = grads_of(api.log_partition(**inputs).sum(), leaves, create_graph=True)
    for value in (
        entropy_B[1:].sum(),
        entropy_B.sum(),
        first[0].pow(2).sum(),
        api.marginals(**inputs).pow(2).sum(),
    ):
        grads = grads_of(value, leaves, retain_graph=True)
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)
        assert float(grads[0][0].abs().max()) == 0 and abs(float(grads[0][1, 1, 0])) <= rounding
        assert float(grads[0][2, 4:].abs().max()) == 0  # padding


def test_nan_in_one_sequence_leaves_the_others_derivatives_alone():
    problem = random_problem(2, 6, 3, 2, seed=10)
    score = problem.score_BTC.clone()
    score[0, 1, 0] = math.nan
    kept = problem.rows(torch.tensor([1]))
    leaf, alone = score.requires_grad_(), kept.score_BTC.clone().requires_grad_()
    spoilt = api.marginals(**inputs_of(replace(problem, score_BTC=leaf)))[1].pow(2).sum()
    right = api.marginals(**inputs_of(replace(kept, score_BTC=alone))).pow(2).sum()
    (found,), (expected,) = torch.autograd.grad(spoilt, leaf), torch.autograd.grad(right, alone)
    assert torch.allclose(found[1], expected[0], atol=1e-13)


@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_other_layouts_of_memory_have_the_same_derivatives(layout):
    problem = extended_problem(2, 5, 3, 2, kind="frame", terms=ALL, seed=11)
    if layout == "expanded":
        problem = replace(problem, transition=problem.transition[:1, :1].expand(2, 5, 2, 2))
    other = problem.with_floats(
        [
            value.transpose(0, -1).contiguous().transpose(0, -1) if layout == "transposed" else value
            for value in problem.floats()
        ]
    )
    assert apart(penalised(other, "auto"), penalised(problem, "naive")) < 1e-11


def test_a_gradient_penalty_moves_a_head_as_autograd_of_the_definition_does():
    hidden = noise(12, 2, 6, 4).float()
    labels = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]])
    moves = []
    for backend in ("naive", "auto"):
        torch.manual_seed(3)
        head = SemiCRF(3, 2, hidden_dim=4, backend=backend).double()
        given = hidden.double().requires_grad_()
        loss = head.loss(given, torch.tensor([6, 5]), labels)
        (grad,) = torch.autograd.grad(loss, given, create_graph=True)
        (loss + grad.pow(2).sum()).backward()
        moves.append([parameter.grad for parameter in head.parameters()])
    assert apart(moves[1], moves[0]) < 1e-11


def test_a_third_derivative_raises_in_words():
    problem = random_problem(1, 4, 2, 2, seed=13)
    for value_of in (
        lambda **given: api.log_partition(**given),
        lambda **given: api.posteriors(**given).log_z_B,
    ):
        score = problem.score_BTC.clone().requires_grad_()
        value = value_of(**inputs_of(replace(problem, score_BTC=score))).sum()
        (first,) = torch.autograd.grad(value, score, create_graph=True)
        (moved,) = torch.autograd.grad(first.pow(2).sum(), score, create_graph=True)
        with pytest.raises(UsageError, match="two derivatives here"):
            torch.autograd.grad(moved.pow(2).sum(), score)


def test_an_input_changed_in_place_before_the_second_derivative_is_an_error():
    problem = random_problem(1, 4, 2, 2, seed=14)
    score = problem.score_BTC.clone().requires_grad_()
    scaled = score * 1
    log_z = api.log_partition(**inputs_of(replace(problem, score_BTC=scaled))).sum()
    (first,) = torch.autograd.grad(log_z, scaled, create_graph=True)
    with torch.no_grad():
        scaled.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.pow(2).sum(), scaled)


def test_without_gradients_nothing_is_recorded_and_with_them_the_alarm_hears_once():
    problem = random_problem(2, 5, 2, 2, seed=15)
    assert not api.marginals(**inputs_of(problem)).requires_grad
    heard = []
    leaves = leaves_of(problem)
    with torch.no_grad():
        assert not api.entropy(**inputs_of(problem.with_floats(leaves))).requires_grad
    log_z_B = api.log_partition(**inputs_of(problem.with_floats(leaves)), alarm=heard.append)
    first = grads_of(log_z_B.sum(), leaves, create_graph=True)
    assert len(heard) == 1
    grads_of(first[0].pow(2).sum(), leaves)
    assert len(heard) == 1


def test_counts_that_were_mended_are_those_whose_change_is_returned(monkeypatch):
    problem = random_problem(2, 8, 3, 2, seed=16)
    right = penalised(problem, "torch")

    def faulty(state):
        found = torch_factorised.backward(state)
        found.label_BTC[1, 3] *= 1.5
        return found

    engine = type(
        "Engine", (), {"forward": staticmethod(torch_factorised.forward), "backward": staticmethod(faulty)}
    )
    monkeypatch.setattr(api, "engine_of", lambda *_: engine)
    with pytest.warns(MendedCounts):
        found = penalised(problem, "torch")
    assert apart(found, right) < 1e-10


@pytest.mark.parametrize(
    "fault",
    [
        lambda f: f.label_BTC.imag[1, 2, 0].mul_(1.01),
        lambda f: f.duration_BKC.imag[1, 1].zero_(),
        lambda f: f.transition.imag[1, 0].zero_(),
        lambda f: f.starts_BTC.imag[1, 3].fill_(math.nan),
    ],
)
def test_a_tangent_that_does_not_add_up_is_computed_again(monkeypatch, fault):
    problem = random_problem(3, 8, 3, 3, seed=17)
    found = api.posteriors(**inputs_of(problem))
    direction = [noise(at, *value.shape) for at, value in enumerate(found.parts()[1:-2])]
    right = second.tangents(problem, direction)
    seen, unsound = [], torch_factorised.unsound

    def spoilt(problem, found):
        fault(found)
        seen.append(unsound(problem, found))
        return seen[-1]

    monkeypatch.setattr(torch_factorised, "unsound", spoilt)
    mended = second.tangents(problem, direction)
    assert seen[0].tolist() == [False, True, False]
    assert apart(mended, right) < 1e-11


def function_of(problem, backend):
    def log_z(score, transition, duration, start, end):
        values = dict(zip(problem.names(), (score, transition, duration, start, end), strict=True))
        return api.log_partition(**inputs_of(replace(problem, **values)), backend=backend)

    return log_z


def several(value, seed):
    return value + noise(seed, 3, *value.shape)


def with_func(problem, backend):
    """Each transform's result, where naive loops over what the others map."""
    from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

    f, args = function_of(problem, backend), problem.floats()
    score, transition, duration, start, end = args
    total = lambda *given: f(*given).sum()  # noqa: E731
    moves = tuple(noise(at, *value.shape) for at, value in enumerate(args))
    every = tuple(range(5))

    def mapped(function, *many, dims=0):
        if backend != "naive":
            return vmap(function, in_dims=dims)(*many)
        return torch.stack([function(*(x.movedim(dims, 0)[n] for x in many)) for n in range(3)])

    scores, durations = several(score, 1), several(duration, 2)
    return {
        "grad": grad(total, argnums=every)(*args),
        "grad of grad": grad(lambda *a: grad(lambda x: total(x, *a[1:]))(a[0]).pow(2).sum(), argnums=every)(
            *args
        ),
        "vjp": vjp(f, *args)[1](noise(3, 2)),
        "jvp": jvp(f, args, moves),
        "jvp of grad": jvp(grad(total, argnums=every), args, moves),
        "jacrev": jacrev(f, argnums=(0, 1, 2))(*args),
        "jacfwd": jacfwd(f, argnums=(0, 1, 2))(*args),
        "hessian": hessian(total, argnums=(0, 1, 2))(*args),
        "vmap of scores": mapped(lambda x: f(x, *args[1:]), scores),
        "vmap of scores, another dimension": mapped(lambda x: f(x, *args[1:]), scores.movedim(0, 2), dims=2),
        "vmap of parameters": mapped(lambda d: f(score, transition, d, start, end), durations),
        "vmap of grad": mapped(lambda x: grad(lambda y: total(y, *args[1:]))(x), scores),
        "vmap of both, second": mapped(
            lambda x, d: jacrev(grad(lambda e: total(x, transition, e, start, end)))(d), scores, durations
        ),
        "entropy": grad(
            lambda x: api.entropy(**inputs_of(replace(problem, score_BTC=x)), backend=backend).sum()
        )(score),
        "vmap of entropy": mapped(
            lambda x: api.entropy(**inputs_of(replace(problem, score_BTC=x)), backend=backend), scores
        ),
        "marginals": jacrev(
            lambda d: api.marginals(**inputs_of(replace(problem, duration_KC=d)), backend=backend)
        )(duration),
    }


def flattened(value):
    return [value] if isinstance(value, torch.Tensor) else [x for one in value for x in flattened(one)]


@transforms
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_transforms_of_torch_func_give_what_they_give_for_the_definition(backend):
    problem = random_problem(2, 4, 3, 2, masked=0.2, seed=18)
    found, right = with_func(problem, backend), with_func(problem, "naive")
    for name, value in found.items():
        mine, expected = flattened(value), flattened(right[name])
        assert [x.shape for x in mine] == [x.shape for x in expected], name
        assert apart(mine, expected) < 1e-11, name


@transforms
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_forward_mode_says_nan_where_log_z_is_nan_as_the_gradient_does(backend):
    problem = random_problem(2, 5, 3, 3, seed=18)
    problem.score_BTC[0, 2, 1] = math.nan
    given = inputs_of(problem)
    f = lambda x: api.log_partition(**{**given, "duration_KC": x}, backend=backend)  # noqa: E731
    ahead, back = (one(f)(problem.duration_KC) for one in (torch.func.jacfwd, torch.func.jacrev))
    assert torch.isnan(ahead[0]).all() and torch.isnan(back[0]).all()
    assert apart([ahead[1]], [back[1]]) < 1e-12


@transforms
def test_a_vmap_over_terms_of_segments_and_transitions_by_frame():
    problem = extended_problem(2, 5, 3, 2, kind="frame", terms=ALL, seed=19)
    many = [several(value, at) for at, value in enumerate(problem.floats()[5:])]
    crossing = several(problem.transition, 7)

    def log_z(transition, *terms):
        names = problem.names()[5:]
        return api.log_partition(
            **inputs_of(replace(problem, transition=transition, **dict(zip(names, terms, strict=True))))
        )

    found = torch.func.vmap(log_z)(crossing, *many)
    right = torch.stack([log_z(crossing[n], *(x[n] for x in many)) for n in range(3)])
    assert torch.allclose(found, right, atol=1e-12)


@transforms
def test_the_gradient_of_each_sample_with_a_length_of_its_own():
    torch.manual_seed(5)
    head = SemiCRF(3, 2, hidden_dim=4)
    hidden, lengths = noise(26, 3, 5, 4).float(), torch.tensor([5, 2, 4])
    weights = dict(head.named_parameters())

    def log_z(weights, hidden, length):
        return torch.func.functional_call(head, weights, (hidden[None], length[None]))["partition"].sum()

    each = torch.func.vmap(torch.func.grad(log_z), in_dims=(None, 0, 0))(weights, hidden, lengths)
    for n in range(3):
        alone = torch.func.grad(log_z)(weights, hidden[n], lengths[n])
        assert apart([each[name][n] for name in alone], list(alone.values())) < 1e-6
    with pytest.raises(UsageError, match="cannot exceed T=5, got max=9"):
        torch.func.vmap(log_z, in_dims=(None, 0, 0))(weights, hidden, torch.tensor([5, 9, 4]))


def test_autograds_own_batched_second_derivative_is_refused_in_words():
    problem = random_problem(1, 3, 2, 2, seed=27)
    function = lambda x: api.log_partition(**inputs_of(replace(problem, score_BTC=x))).sum()  # noqa: E731
    with pytest.raises(UsageError, match="vectorize=True"):
        torch.autograd.functional.hessian(function, problem.score_BTC, vectorize=True)
    found = torch.autograd.functional.hessian(function, problem.score_BTC)
    assert found.shape == (1, 3, 2, 1, 3, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_16_bits_have_gradients_of_16_bits(dtype):
    problem = random_problem(2, 6, 3, 2, seed=28).with_floats(
        [value.to(dtype) for value in random_problem(2, 6, 3, 2, seed=28).floats()]
    )
    wide = problem.with_floats([value.double() for value in problem.floats()])
    grads = []
    for given in (problem, wide):
        leaves = leaves_of(given)
        grads.append(grads_of(api.entropy(**inputs_of(given.with_floats(leaves))).sum(), leaves))
    assert all(grad.dtype == dtype for grad in grads[0])
    assert apart([grad.double() for grad in grads[0]], grads[1]) < 1e-2


@transforms
def test_what_a_transform_cannot_do_says_so():
    problem = random_problem(1, 4, 2, 2, seed=20)
    f = function_of(problem, "auto")
    third = lambda x: f(x, *problem.floats()[1:]).sum()  # noqa: E731
    for _ in range(2):
        third = (lambda inner: lambda x: torch.func.grad(inner)(x).pow(2).sum())(third)
    with pytest.raises(UsageError, match="two derivatives here"):
        torch.func.grad(third)(problem.score_BTC)
    for decode in (api.viterbi, api.sample, api.kbest):
        with pytest.raises(UsageError, match=r"torch\.func cannot transform"):
            torch.func.vmap(lambda x, of=decode: of(**inputs_of(replace(problem, score_BTC=x))))(
                problem.score_BTC[None]
            )


def compiled_and_plain(function, problem):
    results = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        leaves = leaves_of(problem)
        given = inputs_of(problem.with_floats(leaves))
        value = wrap(lambda given: function(**given))(given)
        results.append([value.detach(), *grads_of(value.pow(2).sum(), leaves)])
    return results


@compiles
@pytest.mark.parametrize("name", ["log_partition", "marginals", "entropy"])
def test_a_compiled_function_in_one_graph_has_the_same_values_and_gradients(name):
    problem = extended_problem(2, 6, 3, 2, kind="frame", terms=ALL, seed=21)
    plain, found = compiled_and_plain(getattr(api, name), problem)
    assert apart(found, plain) < 1e-13


@compiles
def test_the_counts_change_is_not_computed_where_only_log_z_is_trained(monkeypatch):
    monkeypatch.setattr(second, "tangents", lambda *_: pytest.fail("a second pass in a training step"))
    compiled_and_plain(api.log_partition, random_problem(2, 5, 2, 2, seed=22))


@compiles
def test_a_compiled_head_trains_as_the_plain_one_does():
    moves = []
    for compile_it in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(4)
        head = SemiCRF(3, 2, hidden_dim=4)
        loss = torch.compile(head.loss, backend="aot_eager", fullgraph=True) if compile_it else head.loss
        labels = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]])
        loss(noise(23, 2, 6, 4).float(), torch.tensor([6, 5]), labels).backward()
        moves.append([parameter.grad for parameter in head.parameters()])
    assert apart(*moves) < 1e-6


@compiles
def test_what_cannot_be_compiled_says_so_and_is_not_dropped():
    torch._dynamo.reset()
    problem = random_problem(1, 4, 2, 2, seed=24)

    def compiled(function, **more):
        return torch.compile(
            lambda score: function(**inputs_of(replace(problem, score_BTC=score)), **more),
            backend="aot_eager",
            fullgraph=True,
        )

    for function, more in ((api.viterbi, {}), (api.log_partition, {"alarm": print})):
        with pytest.raises(Exception, match=r"decode outside|calls its alarm"):
            compiled(function, **more)(problem.score_BTC)
    score = problem.score_BTC.clone().requires_grad_()
    log_z = compiled(api.log_partition)(score).sum()
    (first,) = torch.autograd.grad(log_z, score, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        (log_z + first.pow(2).sum()).backward()


@compiles
def test_without_fullgraph_decoding_and_an_alarm_run_as_they_are():
    torch._dynamo.reset()
    problem, heard = random_problem(2, 5, 2, 2, seed=29), []
    inputs = inputs_of(problem)
    leaf = problem.score_BTC.clone().requires_grad_()

    def both(score):
        given = {**inputs, "score_BTC": score}
        _, paths = api.viterbi(**{**inputs, "score_BTC": score.detach()})
        return paths, api.log_partition(**given, alarm=heard.append).sum() * 2

    paths, value = torch.compile(both, backend="aot_eager")(leaf)
    value.backward()
    assert paths == api.viterbi(**inputs)[1] and len(heard) == 1
    assert torch.allclose(leaf.grad, 2 * api.marginals(**inputs), atol=1e-12)


@compiles
def test_divergences_of_a_distribution_break_the_graph_and_are_not_made_nan():
    torch._dynamo.reset()
    inputs = inputs_of(random_problem(2, 5, 2, 2, seed=30))
    transition, leaf = inputs.pop("transition_CC"), inputs["score_BTC"].clone().requires_grad_()

    def information(score):
        p = SegmentDistribution(transition=transition, **{**inputs, "score_BTC": score})
        q = SegmentDistribution(transition=transition + 1e-6, **inputs)
        return p.kl(p).sum(), p.kl(q).sum(), p.cross_entropy(q).sum(), p.entropy().sum()

    found = torch.compile(information, backend="aot_eager")(leaf)
    (gradient,) = torch.autograd.grad(sum(found), leaf)
    expected = information(leaf)
    assert all(map(torch.equal, found, expected)) and found[0] == 0 and found[1] > 0
    assert torch.equal(gradient, torch.autograd.grad(sum(expected), leaf)[0])
    p = SegmentDistribution(transition=transition, **inputs)
    with pytest.raises(Exception, match="branch on values"):
        torch.compile(lambda x: x + p.entropy().sum(), backend="aot_eager", fullgraph=True)(leaf)


def head_and_gold():
    """A head, hidden states, lengths, labels and the starts of gold segments."""
    labels = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]])
    starts = torch.tensor([[1, 0, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0]], dtype=torch.bool)
    return SemiCRF(3, 2, hidden_dim=4).double(), noise(12, 2, 6, 4), torch.tensor([6, 5]), labels, starts


@compiles
def test_the_loss_of_gold_segments_is_taken_whole():
    torch._dynamo.reset()
    head, hidden, *gold = head_and_gold()
    compiled = torch.compile(head.loss, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(hidden, *gold), head.loss(hidden, *gold))


@transforms
def test_a_vmap_over_the_loss_of_gold_segments_is_that_of_each_sequence():
    head, *given = head_and_gold()

    def of_one(*one):
        return head.loss(*(value[None] for value in one))

    assert torch.allclose(torch.func.vmap(of_one)(*given), head.loss(*given, reduction="none"), atol=1e-12)


OLDER_TORCH = """
import sys, torch
for holder, name in ((torch, "compiler"), (torch, "func"), (torch, "library")):
    delattr(holder, name)
from lab.rooms.semicrf import SemiCRF
from lab.rooms.semicrf.model import api
assert "torch._dynamo" not in sys.modules, "importing the room imports the compiler, a second and more"
head = SemiCRF(2, 2)
score = torch.zeros(1, 4, 2, dtype=torch.float64, requires_grad=True)
loss = head.loss(score, torch.tensor([3]), torch.tensor([[0, 0, 1, 1]]))
(grad,) = torch.autograd.grad(loss, score, create_graph=True)
entropy = api.entropy(score, head.transition_CC, head.duration_KC)
(loss + grad.pow(2).sum() + entropy.sum()).backward()
best = api.viterbi(score, torch.zeros(2, 2), torch.zeros(2, 2))[1]
print(float(head.duration_KC.grad.abs().sum()) > 0, best)
"""


def test_an_older_torch_without_transforms_and_operators_trains_and_decodes():
    done = subprocess.run([sys.executable, "-c", OLDER_TORCH], capture_output=True, text=True, check=False)
    assert done.stdout == "True [[(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 0)]]\n", done.stderr


@compiles
def test_wrong_inputs_of_a_compiled_function_are_refused_in_words():
    torch._dynamo.reset()
    zeros = [torch.zeros(2, 4, 3), torch.zeros(3, 3), torch.zeros(2, 3)]
    compiled = torch.compile(api.log_partition, backend="aot_eager", fullgraph=True)
    with pytest.raises(UsageError, match="cannot exceed T=4"):
        compiled(*zeros, torch.tensor([9, 2]))
    with pytest.raises(Exception, match="unexpected keyword arguments: stert_C"):
        compiled(*zeros, stert_C=torch.zeros(3))


def test_a_second_derivative_of_a_sound_problem_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penalised(random_problem(2, 30, 6, 5, masked=0.2, seed=25), "auto")


def test_the_older_way_is_what_a_training_step_takes():
    """torch.func's checks of the arguments cost more than a small step; torch 1.12 has none of them."""
    score = torch.zeros(1, 3, 2, requires_grad=True)
    log_z_B = api.log_partition(score, torch.zeros(2, 2), torch.zeros(2, 2))
    assert isinstance(log_z_B.grad_fn, autograd.OLDER[autograd.LogPartition]._backward_cls)


@pytest.mark.parametrize("forbidden", [False, True])
def test_a_log_z_that_was_changed_in_place_keeps_its_gradient_and_warns_of_nothing(forbidden):
    problem = random_problem(3, 5, 3, 2, seed=4)
    if forbidden:
        problem.score_BTC[1, 2] = -torch.inf

    def gradient(change):
        score_BTC = problem.score_BTC.clone().requires_grad_()
        change(api.log_partition(score_BTC, problem.transition, problem.duration_KC)).sum().backward()
        return score_BTC.grad

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (0.0, -math.inf, math.inf):
            at = torch.tensor([False, True, False])
            found = gradient(lambda log_z_B, at=at, value=value: log_z_B.masked_fill_(at, value))
            assert torch.equal(found, gradient(lambda log_z_B, at=at: log_z_B.masked_fill(at, 0.0)))
        gold_B = torch.tensor([1.0, -math.inf, 2.0], dtype=torch.float64)
        found = gradient(lambda log_z_B: log_z_B.sub_(gold_B))
        assert torch.equal(found, gradient(lambda log_z_B: log_z_B - gold_B))
