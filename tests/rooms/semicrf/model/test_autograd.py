"""Derivatives of log Z and of what is computed from it, to any order, by autograd and torch.func."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model import api, log_domain, naive  # noqa: E402
from lab.rooms.semicrf.model.autograd import MendedCounts  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, inputs_of, random_problem  # noqa: E402

pytestmark = pytest.mark.torch

ALL = ("start", "end", "segment")
transforms = pytest.mark.skipif(not hasattr(torch, "func"), reason="torch older than 2.0 has no torch.func")


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


@pytest.mark.parametrize("terms", [(), ALL])
def test_second_derivatives_of_every_input_are_those_of_the_definition(terms):
    for seed in range(2):
        batch, frames, longest, labels = [(3, 6, 4, 3), (1, 1, 2, 1)][seed]
        problem = extended_problem(
            batch, frames, longest, labels, terms=terms, masked=0.1 * (seed % 3), seed=seed
        )
        assert apart(penalised(problem, "auto"), penalised(problem, "naive")) < 1e-11


@pytest.mark.parametrize("penalty", [450.0, 1e4, -300.0])
def test_second_derivatives_hold_where_the_linear_recursion_underflows(penalty):
    for seed, terms in ((0, ()), (1, ALL)):
        problem = extended_problem(2, 10, 4, 3, terms=terms, soft=penalty, seed=seed)
        costly = torch.full_like(problem.duration_KC, -abs(penalty))
        costly[seed] = 0
        problem = replace(problem, duration_KC=problem.duration_KC + costly)
        assert apart(penalised(problem, "auto"), penalised(problem, "naive")) < 1e-9


def test_every_expected_count_is_differentiable():
    problem = extended_problem(3, 6, 3, 2, terms=ALL, masked=0.1, seed=4)
    leaves = leaves_of(problem)
    found = api.posteriors(**inputs_of(problem.with_floats(leaves)))
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
    shared = {"duration_BKC": first["duration_KC"], "transition": first["transition_CC"]}
    for name, right in (*per_sequence.items(), *shared.items()):
        mine = getattr(found, name) if name in per_sequence else getattr(found, name).sum(0)
        assert torch.allclose(mine, right, atol=1e-11)
        weight = noise(5, *right.shape)
        grads = grads_of((mine * weight).sum(), leaves, retain_graph=True)
        expected = grads_of((right * weight).sum(), reference, retain_graph=True)
        assert apart(grads, expected) < 1e-11, name


def test_the_entropy_and_its_gradient_are_those_of_all_segmentations():
    problem = extended_problem(2, 4, 3, 2, terms=ALL, masked=0.1, seed=6)
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


def test_counts_that_were_mended_are_the_gradient(monkeypatch):
    problem = random_problem(2, 8, 3, 2, seed=16)
    right = penalised(problem, "torch")

    sound = log_domain.backward

    def faulty(state):
        found = sound(state)
        found.label_BTC[1, 3] *= 1.5
        return found

    engine = type(
        "Engine", (), {"forward": staticmethod(log_domain.forward), "backward": staticmethod(faulty)}
    )
    monkeypatch.setattr(api, "engine_for", lambda *_: engine)
    leaves = leaves_of(problem)
    with pytest.warns(MendedCounts):
        grads = grads_of(api.log_partition(**inputs_of(problem.with_floats(leaves))).sum(), leaves)
    assert apart(grads, grads_of(naive.log_partition(problem.with_floats(leaves)).sum(), leaves)) < 1e-10
    assert apart(penalised(problem, "torch"), right) < 1e-10  # further derivatives are the log domain's own


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
def test_transforms_of_torch_func_give_what_they_give_for_the_definition():
    problem = random_problem(2, 4, 3, 2, masked=0.2, seed=18)
    found, right = with_func(problem, "auto"), with_func(problem, "naive")
    for name, value in found.items():
        mine, expected = flattened(value), flattened(right[name])
        assert [x.shape for x in mine] == [x.shape for x in expected], name
        assert apart(mine, expected) < 1e-11, name


@transforms
def test_a_vmap_over_terms_of_segments_and_transitions():
    problem = extended_problem(2, 5, 3, 2, terms=ALL, seed=19)
    many = [several(value, at) for at, value in enumerate(problem.floats()[5:])]
    crossing = several(problem.transition_CC, 7)

    def log_z(transition, *terms):
        names = problem.names()[5:]
        return api.log_partition(
            **inputs_of(replace(problem, transition_CC=transition, **dict(zip(names, terms, strict=True))))
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
def test_a_transform_of_a_decoding_is_refused_in_words():
    problem = random_problem(1, 4, 2, 2, seed=20)
    for decode in (api.viterbi, api.sample, api.kbest):
        with pytest.raises(UsageError, match=r"torch\.func cannot transform"):
            torch.func.vmap(lambda x, of=decode: of(**inputs_of(replace(problem, score_BTC=x))))(
                problem.score_BTC[None]
            )


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="this torch has no torch.compiler")
def test_compiled_code_leaves_the_model_to_python_and_trains_and_decodes_the_same():
    torch._dynamo.reset()
    problem, heard = random_problem(2, 5, 2, 2, seed=29), []
    inputs = inputs_of(problem)
    leaf = problem.score_BTC.clone().requires_grad_()

    def both(score):
        _, paths = api.viterbi(**{**inputs, "score_BTC": score.detach()})
        return paths, api.log_partition(**{**inputs, "score_BTC": score}, alarm=heard.append).sum() * 2

    paths, value = torch.compile(both, backend="aot_eager")(leaf)
    value.backward()
    assert paths == api.viterbi(**inputs)[1] and len(heard) == 1
    assert torch.allclose(leaf.grad, 2 * api.marginals(**inputs), atol=1e-12)


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


@pytest.mark.parametrize("forbidden", [False, True])
def test_a_log_z_that_was_changed_in_place_keeps_its_gradient_and_warns_of_nothing(forbidden):
    problem = random_problem(3, 5, 3, 2, seed=4)
    if forbidden:
        problem.score_BTC[1, 2] = -torch.inf

    def gradient(change):
        score_BTC = problem.score_BTC.clone().requires_grad_()
        change(api.log_partition(score_BTC, problem.transition_CC, problem.duration_KC)).sum().backward()
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
